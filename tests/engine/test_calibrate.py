"""A few steps of a run, timed: what they predict, that they change nothing, that they are timed once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import LocalConfig
from fedbench.core.trees import Tree
from fedbench.engine import hardware, schedule
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.hardware import EngineCandidate, run_steps, time_engines
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup, drawn
from fedbench.engine.simulation import Simulation
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Outcome
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedrep import FedRep
from fedbench.models.small import MLP
from tests.methods.toys import federation, setup


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path))


class Ticking:
    """An engine on a clock of its own: a second a step of every client, and `once` seconds a round of a client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, once: float = 0.0) -> None:
        self.now = 0.0
        self.calls = 0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        ticking = self

        class Engine(LoopedTrainer):
            def train(
                self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
            ) -> Outcome:
                ticking.calls += 1
                ticking.now += once * len(ids)
                return super().train(ids, message, memory, clock, score)

            def descend(
                self, client: int, work: Tree, view: Client, stages: Sequence[Stage], purpose: str
            ) -> list[Tensor]:
                losses = super().descend(client, work, view, stages, purpose)
                ticking.now += len(losses)
                return losses

        self.contender = {"ticking": EngineCandidate(Engine)}


@pytest.mark.parametrize("epochs", [1, 5, 40])
def test_the_pace_is_a_rounds_time_over_its_steps(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens once a round counts once, however few of its steps are taken."""
    chosen = setup(FedAvg(), epochs=epochs)
    steps = max(chosen.steps(client) for client in range(5))
    ticking = Ticking(monkeypatch, once=7.0)
    assert time_engines(chosen, ticking.contender)["ticking"] == pytest.approx((steps + 7) / steps)
    assert ticking.calls == 3, "to warm up, a few steps, some more"
    assert ticking.now <= 3 * 7 + 2 * hardware.FEW + hardware.MORE


def test_what_a_method_does_besides_is_part_of_a_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ditto trains two models, so a plain step costs two; FedRep's stages have epochs of their own."""
    contender = Ticking(monkeypatch).contender
    assert time_engines(setup(Ditto(), epochs=20), contender)["ticking"] == pytest.approx(2.0)
    rep = FedRep(head_epochs=30, body_epochs=10)
    assert time_engines(setup(rep, epochs=20), contender)["ticking"] == pytest.approx(2.0)


def test_a_cohort_together_is_counted_by_its_clients_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Ticking(monkeypatch).contender["ticking"].build
    assert time_engines(setup(FedAvg()), {"four": EngineCandidate(engine, 4)})["four"] == pytest.approx(1.0)


def test_timing_happens_once_for_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking = Ticking(monkeypatch)
    contender = ticking.contender
    first = time_engines(setup(FedAvg()), contender)
    assert time_engines(setup(FedAvg(), seed=1, rounds=9), contender) == first
    assert ticking.calls == 3
    others = [
        setup(FedAvg(), batch=4),
        setup(Ditto()),
        setup(FedAvg(), model=MLP(hidden=(8,))),
        setup(FedAvg(), federation(dtype=torch.float32)),
    ]
    for other in others:
        time_engines(other, contender)
    time_engines(setup(FedAvg()), {"ticking": EngineCandidate(contender["ticking"].build, 2)})
    assert ticking.calls == 3 * (2 + len(others))


def finished(chosen: Setup) -> Tree:
    """The server's state after all rounds."""
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    while not simulation.done(state):
        simulation.step(state)
    return state.server


@pytest.mark.parametrize("engine", [LoopedTrainer, lambda brief: StackedTrainer(brief, 3)])
def test_real_engines_are_timed_and_the_run_is_not_touched(engine: Any) -> None:
    chosen, other = setup(Ditto()), setup(Ditto())
    assert 0 < time_engines(chosen, {"engine": EngineCandidate(engine, 3)})["engine"] < 10
    assert chosen.source is drawn
    after, fresh = (finished(each) for each in (chosen, other))
    assert all(torch.equal(leaf, fresh[name]) for name, leaf in after.items())


@pytest.mark.parametrize("local", [LocalConfig(epochs=3, batch_size=8), LocalConfig(iterations=7)])
def test_steps_of_all_are_those_of_each(local: LocalConfig) -> None:
    sizes = torch.tensor([1.0, 8.0, 9.0, 31.0], dtype=torch.float64)
    each = [schedule.steps(int(size), local) for size in sizes]
    assert schedule.all_steps(sizes, local).tolist() == each


def test_the_runs_steps_are_those_of_the_cohorts_expected() -> None:
    chosen = setup(FedAvg(), rounds=7)
    everyone = sum(chosen.steps(client) for client in range(5))
    assert run_steps(chosen) == pytest.approx(7 * everyone)
    assert run_steps(setup(FedAvg(), rounds=7, cohort=0.4)) == pytest.approx(7 * everyone * 2 / 5)
