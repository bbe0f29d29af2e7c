"""Predicted memory against what torch's profiler sees allocated, and chunks that fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.engine.method import Method
from fedbench.engine.pick import footprint as memory
from fedbench.engine.pick.predict import peak_bytes
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.stacked import StackedTrainer
from fedbench.engine.train.trainer import Trainer
from fedbench.methods import METHODS
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedrep import FedRep
from fedbench.methods.ifca import IFCA
from fedbench.methods.sosicfl.sosicfl import SosicFL
from fedbench.models.base import Model
from fedbench.models.lenet5 import LeNet5
from fedbench.models.mlp import MLP
from fedbench.testing.subject import Subject
from tests.helpers.tiers import tiered
from tests.methods.toys import federation, setup

EVERYONE = range(5)
ENGINES: dict[str, Callable[[Setup], Trainer]] = {
    "looped": LoopedTrainer,
    "stacked": lambda chosen: StackedTrainer(chosen, 5),
    "chunks": lambda chosen: StackedTrainer(chosen, 2),
}
SGD = OptimizerConfig(lr=0.01)


def measured(trainer: Trainer) -> int:
    """Most bytes allocated at once in a round after the first, by torch's own account."""
    simulation = Simulation(trainer.setup, trainer)
    state = simulation.begin()
    simulation.step(state)
    # acc_events: without it torch 2.11 warns of cycles, of which there is one.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        simulation.step(state)
    live = peak = 0
    for event in seen.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def chosen(
    method: Method, model: Model | None = None, optimizer: OptimizerConfig = SGD, **more: Any
) -> Setup:
    data = federation((40, 13, 33, 64, 64), (1, 16, 16), dtype=torch.float32)
    net = model or MLP(hidden=(50,))
    return setup(method, data, net, batch=32, rounds=9, eval_every=9, optimizer=optimizer, **more)


@pytest.mark.parametrize("engine", tiered(["looped", "stacked"], quick=["stacked"]))
@pytest.mark.parametrize(
    "method",
    [Ditto(), IFCA(k=3), FedRep(), SosicFL()],
    ids=lambda m: type(m).__name__,
)
def test_the_prediction_is_what_a_round_takes(method: Method, engine: str) -> None:
    trainer = ENGINES[engine](chosen(method))
    assert peak_bytes(trainer, EVERYONE) == pytest.approx(measured(trainer), rel=0.2)


@pytest.mark.parametrize("engine", tiered(ENGINES, quick=["looped"]))
@pytest.mark.parametrize(
    "options",
    [
        {"model": LeNet5(batch_norm=True)},
        {"optimizer": OptimizerConfig(lr=0.01, momentum=0.9, weight_decay=0.1, clip=1.0)},
        {"optimizer": OptimizerConfig("adam", lr=0.01)},
        {"epochs": 15, "model": MLP(hidden=(1,))},  # batches of many steps outweigh the model
    ],
    ids=["convolutions", "momentum", "adam", "steps"],
)
def test_it_knows_layers_optimisers_and_steps(options: Any, engine: str) -> None:
    trainer = ENGINES[engine](chosen(FedAvg(), **options))
    assert peak_bytes(trainer, EVERYONE) == pytest.approx(measured(trainer), rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "batch_norm"])
@pytest.mark.parametrize("preset", list(METHODS))
def test_it_can_be_made_for_every_method(preset: str, kind: str) -> None:
    setup = Subject.of(preset).toy(kind)
    for trainer in (LoopedTrainer(setup), StackedTrainer(setup, 3)):
        assert peak_bytes(trainer, range(4)) > 0


def test_a_prediction_changes_nothing() -> None:
    trainer = ENGINES["stacked"](chosen(Ditto()))
    before = trainer.setup, trainer.setup.federation.x.clone()
    peak_bytes(trainer, EVERYONE)
    assert trainer.setup is before[0]
    assert type(trainer.setup.federation.x) is torch.Tensor
    assert torch.equal(trainer.setup.federation.x, before[1])
    simulation = Simulation(trainer.setup, trainer)
    simulation.step(simulation.begin())


@pytest.mark.slow
def test_the_largest_chunk_that_fits_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = chosen(Ditto())
    peaks = [peak_bytes(StackedTrainer(setup, chunk), EVERYONE) for chunk in (1, 3, 5)]
    assert peaks == sorted(peaks)
    for chunk, peak in zip((1, 3, 5), peaks, strict=True):
        free = int(1.1 * peak / memory.SHARE)
        monkeypatch.setattr(memory, "free_bytes", lambda _, free=free: free)
        found = memory.fitting_chunk(setup)
        assert found >= chunk - 1
        assert peak_bytes(StackedTrainer(setup, found), EVERYONE) <= 1.2 * peak


def test_memory_to_spare_takes_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.Growth, "of", lambda _: 1 / 0)
    monkeypatch.setattr(memory, "free_bytes", lambda _: 2**40)
    assert memory.fitting_chunk(chosen(FedAvg())) == 5


def test_without_a_prediction_a_rough_estimate_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that looks at values has none to see in a prediction."""
    setup = chosen(FedAvg())
    rough = memory.client_bytes(setup)
    monkeypatch.setattr(memory.Growth, "of", lambda _: 1 / 0)
    monkeypatch.setattr(memory, "free_bytes", lambda _: int(2.5 * rough / memory.SHARE))
    assert memory.fitting_chunk(setup) == 2


def test_bytes_of_a_leaf() -> None:
    assert trees.leaf_bytes(torch.zeros(3, 2, dtype=torch.float64)) == 48
