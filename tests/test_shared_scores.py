"""A model that all clients share is scored once on the set that all share, with the same counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench import compose
from fedbench.engine import trees
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.engine.trees import Tree
from fedbench.run import build, execute

ROUND = Clock(0, 2)
SETS = ("local", "global")


def trainers(method: str) -> list[Trainer]:
    """The looped and the stacked engine on five clients of digits that are scored on both sets."""
    where = ["dataset=digits", "partition=homo", "partition.num_clients=5", "model=mlp", "hardware=cpu"]
    run = compose.resolve(
        compose.compose([*where, f"method={method}", "protocol.test.sets=both", "protocol.test.pool=false"])
    )
    setup = build(run)[0]
    return [LoopedTrainer(setup), StackedTrainer(setup, 5)]


def models(trainer: Trainer, count: int) -> list[Tree]:
    return [trainer.setup.task.init(torch.Generator().manual_seed(i)) for i in range(count)]


@pytest.mark.parametrize("index", [0, 1])
def test_one_model_is_scored_once_on_the_global_set(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[int] = []
    spied = "_count" if index == 0 else "_count_on"
    trainer = trainers("fedavg")[index]
    count: Any = getattr(trainer, spied)

    def spy(*arguments: Any) -> Any:
        if "global" in arguments[2 * (1 - index)]:
            scored.append(1 if index == 0 else len(arguments[1]))
        return count(*arguments)

    monkeypatch.setattr(trainer, spied, spy)
    (model,) = models(trainer, 1)
    shared = trainer.evaluate(torch.arange(5), trees.expand(model, 5), {}, ROUND, SETS)
    assert sum(scored) == 1
    apart = trainer.evaluate(torch.arange(5), trees.stack([model] * 5), {}, ROUND, SETS)
    assert sum(scored) == 6
    for name in SETS:
        for ours, theirs in zip(shared[name], apart[name], strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("index", [0, 1])
def test_different_models_are_each_scored(index: int) -> None:
    trainer = trainers("fedavg")[index]
    each = models(trainer, 5)
    counts = trainer.evaluate(torch.arange(5), trees.stack(each), {}, ROUND, ("global",))["global"][0]
    alone = [
        trainer.evaluate(torch.tensor([i]), trees.stack([each[i]]), {}, ROUND, ("global",))["global"][0][0]
        for i in range(5)
    ]
    assert torch.equal(counts, torch.stack(alone))
    assert len({tuple(row.tolist()) for row in counts}) > 1


def test_a_model_changed_by_adaptation_is_not_taken_for_the_shared_one() -> None:
    trainer = trainers("finetune")[0]
    (model,) = models(trainer, 1)
    counts = trainer.evaluate(torch.arange(5), trees.expand(model, 5), {}, ROUND, ("global",))["global"][0]
    assert len({tuple(row.tolist()) for row in counts}) > 1


def test_the_global_model_alone_on_the_whole_test_set(tmp_path: Path) -> None:
    """sets=common spares scoring every client's model there, and finds the same of what it scores."""
    where = ["dataset=digits", "partition=homo", "partition.num_clients=5", "model=mlp", "hardware=cpu"]
    brief = [
        "method=fedavg",
        "protocol.test.pool=false",
        "protocol.rounds=3",
        "progress=none",
        f"runs_dir={tmp_path}",
    ]

    def row(sets: str) -> dict[str, Any]:
        return execute(compose.resolve(compose.compose([*where, *brief, f"protocol.test.sets={sets}"]))).row

    common, both = row("common"), row("both")
    for name in ("acc", "acc_on_local", "acc_on_common", "ipr", "score"):
        assert common[name] == both[name]
    assert both["acc_on_global"] == pytest.approx(both["acc_on_common"]), "everyone has the global model"
    assert "acc_on_global" not in common
