"""bfloat16 is another run: of another key, kept apart in rows and tables, from leaves that stay float32."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from fedbench.config.compose import compose
from fedbench.core.batch import Batch
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.models.modalities import JointTask
from fedbench.models.small import LeNet5
from fedbench.papers.reproduce import select
from fedbench.runs.config import resolve
from fedbench.runs.execution import execute
from fedbench.testing.toys import federation, gap, setup, simulate
from tests.helpers.pair import NETWORKS

RUN = ("method=fedavg", "dataset=digits", "model=mlp", "protocol=quick", "protocol.rounds=1", "progress=none")


def run(*overrides: str):
    return resolve(compose([*RUN, *overrides]))


def task(*, bf16: bool):
    return LeNet5(batch_norm=True).task((1, 16, 16), 4, bf16=bf16)


def test_a_coarse_precision_counts_in_the_key_and_float32_does_not() -> None:
    keys = [run(f"hardware.precision={name}").key for name in ("float32", "tf32", "bf16")]
    assert keys[0] == run().key
    assert len(set(keys)) == 3
    local = run("hardware.precision=bf16").local
    assert local is not None
    assert local.hardware.precision == "bf16", "what it is compared with is trained alike"


@pytest.mark.slow
def test_its_row_says_so(tmp_path: Path) -> None:
    rows = [execute(run(f"runs_dir={tmp_path}", f"hardware.precision={name}")).row for name in ("float32", "bf16")]
    assert "precision" not in rows[0]
    assert rows[1]["precision"] == "bf16"


def test_a_table_made_with_it_is_another() -> None:
    selection, _ = select(["table=fedcollab_t1", "hardware.precision=bf16", "hardware.threads=2"])
    assert selection.changed == ("hardware.precision=bf16",)
    assert "hardware.threads=2" in selection.settings


def test_training_is_coarse_scoring_and_leaves_are_not() -> None:
    fine, coarse = task(bf16=False), task(bf16=True)
    model = fine.init(torch.Generator().manual_seed(0))
    x = torch.randn(5, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    batch = Batch(x, torch.arange(5) % 4)
    apart = float(abs(coarse.loss(dict(model), batch) - fine.loss(dict(model), batch)))
    assert 1e-6 < apart < 0.05
    assert torch.equal(coarse.apply(model, x), fine.apply(model, x))
    assert coarse.apply(model, x, train=True).dtype == torch.float32


@pytest.mark.parametrize("kind", [0, 1], ids=["image", "text"])
def test_clients_of_every_kind_train_coarsely(kind: int) -> None:
    tasks = []
    for bf16 in (False, True):
        plain = [
            net.task(shape, 4, bf16=bf16) for net, shape in zip(NETWORKS.values(), [(1, 4, 4), (1, 1, 4)], strict=True)
        ]
        tasks.append(JointTask(plain, list(NETWORKS), torch.tensor([0, 1])).modalities[kind])
    fine, coarse = tasks
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 1, 4, 4, generator=generator) if kind == 0 else torch.arange(20.0).view(5, 1, 1, 4)
    model, batch = fine.init(generator), Batch(x, torch.arange(5) % 4)
    apart = [
        float(abs(task.loss(dict(model), batch) - fine.loss(dict(model), batch)))
        for task in (coarse, pickle.loads(pickle.dumps(coarse)))
    ]
    assert 1e-6 < apart[0] == apart[1] < 0.05


def test_engines_agree_in_bfloat16() -> None:
    data = federation((9, 6), (1, 16, 16), dtype=torch.float32)
    states = []
    for trainer in (LoopedTrainer, lambda chosen: StackedTrainer(chosen, 2)):
        chosen = setup(FedAvg(), data, LeNet5(), epochs=1)
        chosen.task.bf16 = True
        states.append(simulate(chosen, trainer(chosen)))
    assert gap(states[0].server, states[1].server) < 0.02
    assert all(leaf.dtype == torch.float32 for leaf in states[1].server.values())
