"""The one loop: divergence, who is told, traffic, randomness, one client alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.core import rng, trees
from fedbench.core.batch import Population
from fedbench.core.errors import Diverged
from fedbench.core.trees import Tree
from fedbench.engine import simulation as states
from fedbench.engine.contract import Client, Clock, Preparation
from fedbench.engine.history import PHASES, Observer, Record
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation, State
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.local import Local
from fedbench.models.task import Task
from fedbench.testing.checks import everything
from tests.engine.toys import trainers
from tests.methods.toys import FOUR, SIZES, federation, gap, setup, simulate


class Poisoned(FedAvg):
    """FedAvg whose server sends NaN to one client, in one round."""

    victim, hit = 3, 1

    def send(self, server: trees.Tree, cohort: Any) -> trees.Tree:
        message = trees.clone(super().send(server, cohort))
        if cohort.clock.round == self.hit:
            message["head.weight"][cohort.ids == self.victim] = float("nan")
        return message


def test_divergence_names_the_round_and_the_client() -> None:
    chosen = setup(Poisoned(), rounds=3, score="trained")
    for trainer in trainers(chosen):
        with pytest.raises(Diverged, match=r"in round 2 on client 3: leaf '.*' is not finite; lower protocol"):
            simulate(chosen, trainer)


class Diary(Observer):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.rounds: list[int] = []
        self.records: list[Record] = []

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def advance(self, done: int) -> None:
        self.rounds.append(done)

    def record(self, record: Record) -> None:
        self.records.append(record)


def test_observers_hear_of_every_phase_round_and_record() -> None:
    chosen, diary = setup(FedAvg(), rounds=2), Diary()
    simulation = Simulation(chosen, LoopedTrainer(chosen), diary)
    state = simulation.begin()
    while not simulation.done(state):
        simulation.step(state)
    a_round = ["server", "train", "server", "evaluate"]
    assert diary.phases == ["prepare", "evaluate", *a_round, *a_round]
    assert diary.rounds == [1, 2]
    assert tuple(diary.records) == state.history.records
    assert set(state.seconds) == set(PHASES)
    assert min(state.seconds.values()) >= 0
    times = [sum(record.seconds.values()) for record in diary.records]
    assert times == sorted(times)


def test_traffic_by_hand() -> None:
    """Full models of float64 to and from 3 clients in each of 2 rounds; nothing at all for Local."""
    parameters = 16 * 7 + 7 + 7 * 4 + 4
    state = simulate(setup(FedAvg(), cohort=3))
    assert (state.bytes_up, state.bytes_down) == (2 * 3 * 8 * parameters,) * 2
    head = 7 * 4 + 4
    state = simulate(setup(FedAvg(private=("@head",)), federation(dtype=torch.float32), cohort=3))
    assert (state.bytes_up, state.bytes_down) == (2 * 3 * 4 * (parameters - head),) * 2
    state = simulate(setup(Local()))
    assert (state.bytes_up, state.bytes_down) == (0, 0)
    records = simulate(setup(FedAvg(), cohort=3)).history.records
    assert [record.bytes_up for record in records] == [0, 24 * parameters, 48 * parameters]


def global_randomness() -> tuple[Any, ...]:
    numpy_state = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), [str(part) for part in numpy_state], random.getstate()


def test_global_randomness_is_neither_read_nor_written() -> None:
    def run() -> State:
        return simulate(setup(Ditto(), cohort=0.6))

    first = run()
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    before = global_randomness()
    again = run()
    assert global_randomness() == before
    assert gap(first.server, again.server) == gap(first.memory, again.memory) == 0


def test_keyed_randomness_depends_on_every_key_and_nothing_else() -> None:
    keys = [(0, "a", 1, 2), (1, "a", 1, 2), (0, "b", 1, 2), (0, "a", 2, 1), (0, "a", 12), (0, "a", 1, 2, 0)]
    drawn = {tuple(torch.randn(3, generator=rng.torch_rng(*key)).tolist()) for key in keys}
    assert len(drawn) == len(keys)
    arrays = {tuple(rng.numpy_rng(*key).random(3).tolist()) for key in keys}
    assert len(arrays) == len(keys)
    assert torch.randn(3, generator=rng.torch_rng(*keys[0])).tolist() in [list(each) for each in drawn]
    assert all(0 <= rng.derive(*key) < 2**63 for key in keys)
    assert rng.derive(0, "init") == 3912388711783151084, "another number would change every result"


def test_one_client_alone_is_a_federation() -> None:
    for method in (FedAvg(), Local(), Ditto(lam=0.0)):
        chosen = setup(method, federation((9,)), rounds=2)
        for trainer in trainers(chosen):
            state = simulate(chosen, trainer)
            assert state.history.last.tallies["local"].total.tolist() == [6.0]
    average = simulate(setup(FedAvg(), federation((9,)))).server
    alone = simulate(setup(Local(), federation((9,)))).memory
    assert gap(average, trees.row(alone, 0)) < 1e-12


def test_a_cohort_of_one_moves_that_client_s_model_alone() -> None:
    chosen = setup(Local(), rounds=1, cohort=0.2)
    (drawn,) = chosen.draw_cohort(Clock(0, 1)).tolist()
    start = {k: v.double() for k, v in chosen.task.init(rng.torch_rng(0, "init")).items()}
    for trainer in trainers(chosen):
        memory = simulate(chosen, trainer).memory
        moved = [k for k in range(len(SIZES)) if gap(trees.row(memory, k), start) > 0]
        assert moved == [drawn]


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
