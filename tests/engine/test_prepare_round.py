"""When a method prepares: by default before round 1, else after the rounds that it names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine import simulation as states
from fedbench.engine.contract import Client, Clock, Preparation
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation, State
from fedbench.methods.fedavg import FedAvg
from fedbench.models.task import Task
from fedbench.testing.checks import everything
from tests.methods.toys import FOUR, federation, gap, setup

ROUNDS = 4


@dataclass(frozen=True)
class Prepared(FedAvg):
    """Trains everyone once, halves the server's weights, and notes in each client's memory who it is."""

    after: int = 0

    @property
    def prepare_round(self) -> int:
        return self.after

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        server, _ = super().init(task, population, generator)
        return server, {"seen": torch.zeros(1, 1).expand(population.clients, 1)}

    def prepare(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        uploads = preparation.round(trees.expand(server, len(FOUR)), memory)
        preparation.keep("trained", uploads["head.bias"].numpy())
        preparation.keep("clock", np.array([preparation.everyone.clock.round]))
        halved = {name: leaf / 2 for name, leaf in server.items()}
        return halved, {"seen": memory["seen"] + 1 + torch.arange(len(FOUR)).unsqueeze(1)}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        return {name: work[name] for name in client.message}, client.memory


def simulation(method: FedAvg) -> Simulation:
    chosen = setup(method, federation(FOUR), rounds=ROUNDS, cohort=0.5)
    return Simulation(chosen, LoopedTrainer(chosen))


def after(played: Simulation, rounds: int) -> State:
    state = played.begin()
    for _ in range(rounds):
        played.step(state)
    return state


@pytest.mark.parametrize("when", [0, 2, ROUNDS])
def test_it_finds_the_server_of_that_round(when: int) -> None:
    plain = after(simulation(FedAvg()), when)
    played = simulation(Prepared(after=when))
    state = after(played, when)
    assert gap(state.server, {name: leaf / 2 for name, leaf in plain.server.items()}) == 0
    assert state.arrays["clock"].tolist() == [when]
    message = trees.expand(plain.server, len(FOUR))
    trained = played.trainer.train(torch.arange(4), message, {"seen": torch.zeros(4, 1)}, Clock(when, ROUNDS))
    assert np.array_equal(state.arrays["trained"], trained.uploads["head.bias"].numpy())
    assert state.memory["seen"].flatten().tolist() == [1, 2, 3, 4]


def test_what_crosses_then_counts_once_and_in_that_round() -> None:
    plain, late = after(simulation(FedAvg()), ROUNDS), after(simulation(Prepared(after=2)), ROUNDS)
    whole = trees.row_bytes(trees.expand(late.server, 1)) * len(FOUR)
    extra = [
        (mine.bytes_up - other.bytes_up, mine.bytes_down - other.bytes_down)
        for mine, other in zip(late.history.records, plain.history.records, strict=True)
    ]
    assert [record.round for record in late.history.records] == [0, 1, 2, 3, 4]
    assert extra == [(0, 0), (0, 0), (whole, whole), (whole, whole), (whole, whole)]
    assert (late.prepared, plain.prepared) == ((whole, whole), (0, 0))


def test_a_run_that_ends_before_never_prepares() -> None:
    plain, never = after(simulation(FedAvg()), ROUNDS), after(simulation(Prepared(after=5)), ROUNDS)
    assert gap(plain.server, never.server) == 0
    assert never.arrays == {}


@dataclass(frozen=True)
class Remembers(Prepared):
    """Writes into the memory that it is given, and adds a leaf to it if `adds`."""

    adds: bool = False

    def prepare(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        memory["seen"] = 7 + memory["seen"]
        return server, {**memory, "extra": torch.ones(len(FOUR), 2)} if self.adds else memory


@pytest.mark.parametrize("when", [0, 1])
def test_what_it_writes_into_memory_is_kept(when: int) -> None:
    assert after(simulation(Remembers(after=when)), when).memory["seen"].flatten().tolist() == [7, 7, 7, 7]


def test_other_leaves_may_come_before_round_1_only() -> None:
    assert after(simulation(Remembers(adds=True)), 0).memory["extra"].tolist() == [[1, 1]] * 4
    with pytest.raises(ValueError, match=r"keep \['seen'\] between rounds, there is no place for \['extra'\]"):
        after(simulation(Remembers(adds=True, after=1)), 1)


@pytest.mark.parametrize("stopped", [1, 2, 3])
def test_an_interrupted_run_prepares_once(stopped: int, tmp_path: Path) -> None:
    played, path = simulation(Prepared(after=2)), tmp_path / "state.safetensors"
    states.save(path, after(played, stopped), "key")
    state = states.load(path, "key", torch.device("cpu"))
    while not played.done(state):
        played.step(state)
    whole = after(simulation(Prepared(after=2)), ROUNDS)
    assert gap(everything(state), everything(whole)) == 0
    assert (state.bytes_up, state.bytes_down) == (whole.bytes_up, whole.bytes_down)
    assert state.prepared == whole.prepared
