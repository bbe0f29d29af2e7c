"""A model that all clients share is scored once on the set that all share, with the same counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.config import compose
from fedbench.config.schema import TestConfig
from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.data.federation import Federation
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.methods.fedavg import FedAvg
from fedbench.runs.config import resolve
from fedbench.runs.execution import build, execute
from tests.methods.toys import federation, setup

ROUND = Clock(0, 2)


def trainers(method: str) -> list[Trainer]:
    """The looped and the stacked engine on five clients of digits that are scored on both sets."""
    where = ["dataset=digits", "partition=homo", "partition.num_clients=5", "model=mlp", "hardware=cpu"]
    run = resolve(compose.compose([*where, f"method={method}", "protocol.test.sets=both", "protocol.test.pool=false"]))
    setup = build(run)
    return [LoopedTrainer(setup), StackedTrainer(setup, 5)]


def models(trainer: Trainer, count: int) -> list[Tree]:
    return [trainer.setup.task.init(torch.Generator().manual_seed(i)) for i in range(count)]


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples each call of `Federation.gather` took."""
    counts: list[int] = []
    gather = Federation.gather

    def spy(federation: Federation, indices: Tensor) -> tuple[Tensor, Tensor]:
        counts.append(indices.numel())
        return gather(federation, indices)

    monkeypatch.setattr(Federation, "gather", spy)
    return counts


@pytest.mark.parametrize("index", [0, 1])
def test_one_model_is_scored_once_on_the_global_set(index: int, gathered: list[int]) -> None:
    trainer = trainers("fedavg")[index]
    tests = len(trainer.setup.federation.global_test)
    (model,) = models(trainer, 1)
    shared = trainer.evaluate(torch.arange(5), trees.expand(model, 5), {}, ROUND, ("global",))
    assert sum(gathered) == tests
    apart = trainer.evaluate(torch.arange(5), trees.stack([model] * 5), {}, ROUND, ("global",))
    assert sum(gathered) == 6 * tests
    for ours, theirs in zip(shared["global"], apart["global"], strict=True):
        assert torch.equal(ours, theirs)


def test_only_classes_that_weigh_anything_are_scored(gathered: list[int]) -> None:
    """Under label shares a client's model sees its own classes of the global set; a shared one each class once."""
    labels = [[0], [0, 1], [1, 2], [0, 1, 2], [2]]
    chosen = setup(FedAvg(), federation(labels=labels), test=TestConfig(sets="global", weighting="label_shares"))
    _, y = chosen.federation.gather(chosen.federation.global_test)
    tests = torch.bincount(y, minlength=4)
    counts = chosen.population.label_counts
    own = counts > 0
    assert bool((own.sum(1) < 3).any()), "a client without all classes"
    assert bool((tests[:3] > 0).all())
    looped, stacked = LoopedTrainer(chosen), StackedTrainer(chosen, 5)
    for shared in (True, False):
        several = [trees.map_leaves(torch.Tensor.double, model) for model in models(looped, 5)]
        message = trees.expand(several[0], 5) if shared else trees.stack(several)
        gathered.clear()
        correct, total = looped.evaluate(torch.arange(5), message, {}, ROUND, ("global",))["global"]
        assert sum(gathered) == (tests[own.any(0)] if shared else own * tests).sum()
        assert torch.equal(total, (own * tests).to(total.dtype))
        theirs = stacked.evaluate(torch.arange(5), message, {}, ROUND, ("global",))["global"]
        assert torch.equal(correct, theirs[0])
        assert torch.equal(total, theirs[1])


def test_mini_batches_do_not_depend_on_who_was_scored_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a worker's scores are the same to the bit whichever clients it is dealt, and in whatever order."""
    chosen = setup(
        FedAvg(),
        federation(labels=[[0], [0, 1], [1, 2], [0, 1, 2], [2]]),
        test=TestConfig(sets="global", weighting="label_shares"),
    )
    (model,) = models(LoopedTrainer(chosen), 1)
    message = trees.expand(trees.map_leaves(torch.Tensor.double, model), 5)
    batches: list[set[tuple[int, ...]]] = []
    gather = Federation.gather

    def spy(federation: Federation, indices: Tensor) -> tuple[Tensor, Tensor]:
        batches[-1].add(tuple(indices.tolist()))
        return gather(federation, indices)

    monkeypatch.setattr(Federation, "gather", spy)
    for order in ([0, 1, 2, 3, 4], [3, 4, 0, 1, 2], [4, 0, 2, 1, 3]):
        batches.append(set())
        LoopedTrainer(chosen).evaluate(torch.tensor(order), message, {}, ROUND, ("global",))
    assert batches[0] == batches[1] == batches[2]
    assert len(batches[0]) == 3, "one for each class that somebody has"


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
        return execute(resolve(compose.compose([*where, *brief, f"protocol.test.sets={sets}"]))).row

    common, both = row("common"), row("both")
    for name in ("acc", "acc_on_local", "acc_on_common", "ipr", "score"):
        assert common[name] == both[name]
    assert both["acc_on_global"] == pytest.approx(both["acc_on_common"]), "everyone has the global model"
    assert "acc_on_global" not in common
