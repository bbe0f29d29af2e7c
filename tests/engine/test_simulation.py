"""The one loop: who is told, traffic, one client alone, preparation, and its parts against tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.config.schema import TestConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Population
from fedbench.core.errors import CheckpointError
from fedbench.core.trees import Tree
from fedbench.engine import preparation
from fedbench.engine import simulation as states
from fedbench.engine.client_state import ClientMemory
from fedbench.engine.contract import Client, Clock, Preparation
from fedbench.engine.history import PHASES, Observer, Record
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation, State
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.local import Local
from fedbench.metrics import Measured, Tally
from fedbench.models.task import Task
from fedbench.testing.checks import everything
from tests.engine.toys import trainers
from tests.methods.toys import (
    FOUR,
    SIZES,
    cross_entropy,
    descend,
    federation,
    gap,
    initial,
    logits,
    samples,
    setup,
    simulate,
)


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
    told = len(diary.phases)
    for phase in ("train", "train", "server"):
        with simulation.timed({}, phase):
            pass
    assert diary.phases[told:] == ["train", "server"], "a phase that goes on is told once"


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


def test_the_training_loss_of_a_round_is_the_mean_over_clients_of_the_mean_over_steps() -> None:
    """Two steps of all their samples, by two clients of 6 and 13: a client counts alike, whatever its samples."""
    chosen = setup(FedAvg(), federation(FOUR[:2]), rounds=1, batch=50)
    means = []
    for client in range(2):
        x, y = samples(chosen, client)
        first = initial(chosen)
        second = descend(lambda w, x=x, y=y: cross_entropy(logits(w, x), y), first, 0.1)
        means.append(sum(float(cross_entropy(logits(w, x), y)) for w in (first, second)) / 2)
    assert abs(means[0] - means[1]) > 1e-3
    for trainer in trainers(chosen):
        before, after = simulate(chosen, trainer).history.records
        assert np.isnan(before.train_loss)
        assert after.train_loss == pytest.approx(sum(means) / 2, abs=1e-9)


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
    with pytest.raises(ValueError, match=r"keep \['seen'\] between rounds, but not \['extra'\]"):
        after(simulation(Remembers(adds=True, after=1)), 1)


@pytest.mark.parametrize("stopped", [1, 2, 3])
def test_an_interrupted_run_prepares_once(stopped: int, tmp_path: Path) -> None:
    played, path = simulation(Prepared(after=2)), tmp_path / "state.safetensors"
    states.save_state(path, after(played, stopped), "key")
    state = states.load_state(path, "key", torch.device("cpu"))
    while not played.done(state):
        played.step(state)
    whole = after(simulation(Prepared(after=2)), ROUNDS)
    assert gap(everything(state), everything(whole)) == 0
    assert (state.bytes_up, state.bytes_down) == (whole.bytes_up, whole.bytes_down)
    assert state.prepared == whole.prepared


# ---- parts of the loop, against tables


@pytest.mark.parametrize(
    ("options", "before", "after"),
    [
        ({}, ("local",), ("local",)), ({"sets": "global"}, ("global",), ("global",)),
        ({"sets": "both", "val_fraction": 0.1}, ("local", "global", "val"), ("local", "global", "val")),
        ({"sets": "common"}, ("local",), ("local",)), ({"sets": "validation", "val_fraction": 0.1}, ("val",), ("val",)),
        ({"sets": "both", "val_fraction": 0.1, "once": True}, ("val",), ("local", "global", "val")),
    ],
)  # fmt: skip
def test_sets_that_are_scored_before_the_last_round_and_after(
    options: dict[str, Any], before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    chosen = setup(FedAvg(), rounds=3, test=TestConfig(**options))
    assert [states.scored_sets(chosen, completed) for completed in (0, 2)] == [before] * 2
    assert states.scored_sets(chosen, 3) == states.scored_sets(chosen) == after


def test_scores_after_training_are_asked_for_in_rounds_that_are_scored_alone() -> None:
    for score, sets in (("trained", ("local",)), ("received", ())):
        chosen, asked = setup(FedAvg(), rounds=3, eval_every=2, score=score), list[Any]()

        class Asked(LoopedTrainer):
            def train(self, *given: Any, asked: list[Any] = asked) -> Any:
                asked.append(given[4])
                return super().train(*given)

        simulate(chosen, Asked(chosen))
        assert asked == [(), sets, sets]


@pytest.mark.parametrize(
    ("clients", "size", "expected"), [(2, 99, [2, 2, 1]), (9, 3, [3, 2]), (9, 0, [1] * 5), (9, 9, [5])]
)
def test_clients_are_scored_so_many_at_once(
    clients: int, size: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "EVALUATION_CLIENTS", clients)
    monkeypatch.setattr(states, "EVALUATION_BYTES", size)
    for leaf in ({"kept": torch.zeros(5, 1, dtype=torch.uint8)}, {}):
        chosen, asked = setup(FedAvg()), list[int]()

        class Asked(LoopedTrainer):
            def evaluate(self, ids: torch.Tensor, *given: Any, asked: list[int] = asked) -> Any:
                asked.append(len(ids))
                return super().evaluate(ids, *given)

        played = Simulation(chosen, Asked(chosen))
        state = State(states.initial(chosen)[0], played._memory(leaf), played._memory({}))
        total = played.score(state)["local"].total
        assert (asked, total.tolist()) == (expected, [6.0] * 5)


def test_counts_of_clients_become_tallies_by_hand() -> None:
    chosen = setup(FedAvg(), federation((3, 4)))
    counts = torch.tensor([[1.0, 2, 0, 0], [0, 4, 0, 0]]), torch.tensor([[2.0, 2, 0, 0], [1, 4, 0, 0]])
    plain = states.tallies(chosen, {"local": counts}, torch.arange(2))["local"]
    assert (plain.correct.tolist(), plain.total.tolist(), plain.outputs) == ([3, 4], [4, 5], None)
    scores = np.array([[[1.0, 2]], [[3, 4]], [[5, 6]]])
    known = {"a": Tally(np.array([1.0, 2, 3]), np.array([4.0, 4, 4]), scores)}
    fresh = {"a": Tally(np.array([0.0]), np.array([6.0]), np.array([[[7.0, 8]]]))}
    found = states.latest(known, fresh, torch.tensor([1]), 3)["a"]
    assert (found.correct.tolist(), found.total.tolist()) == ([1, 0, 3], [4, 6, 4])
    assert found.outputs is not None
    assert found.outputs.tolist() == [[[1, 2]], [[7, 8]], [[5, 6]]]
    first = states.latest({}, {"b": plain}, torch.tensor([2, 0]), 3)["b"]
    assert (first.correct.tolist(), first.total.tolist(), first.outputs) == ([4, 0, 3], [5, 0, 4], None)
    both = states.competing({"b": first}, {"b": Tally(np.array([9.0, 8, 7]), np.array([9.0, 9, 9]))})
    assert {name: each.correct.tolist() for name, each in both.items()} == {"trained_b": [4, 8, 3]}


def test_a_state_comes_out_of_a_checkpoint_as_it_went_in(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    memory, optimizers = ({"m": torch.arange(3.0)}, {"o": torch.ones(1, 2).expand(3, 2)})
    state = State(
        {"w": torch.ones(2)}, ClientMemory(memory, 3, cpu), ClientMemory(optimizers, 3, cpu), 4, 5, 6, (2, 1),
        {"train": 0.5, "prepare": 7.0}, {"local": Tally(np.array([1.0]), np.array([2.0]), np.array([[[3.0, 4.0]]]))},
        {"W": np.eye(2)},
    )  # fmt: skip
    measures = {"local": {"auroc": Measured(np.array([0.75]), 0.5)}}
    counted = {"local": Tally(np.array([1.0]), np.array([2.0]))}
    state.history.add(Record(4, counted, 5, 6, {"train": 0.5}, 0.25, measures))
    states.save_state(tmp_path / "state", state, "key")
    found = states.load_state(tmp_path / "state", "key", cpu)
    for name in ("round", "bytes_up", "bytes_down", "prepared", "seconds"):
        assert getattr(found, name) == getattr(state, name), name
    assert {name: leaf.tolist() for name, leaf in states.models(found).items()} == {
        "server/w": [1, 1],
        "memory/m": [0, 1, 2],
    }
    assert found.optimizers["o"].tolist() == [[1, 1]] * 3
    for part in ("correct", "total", "outputs"):
        assert getattr(found.scores["local"], part).tolist() == getattr(state.scores["local"], part).tolist()
    assert found.arrays["W"].tolist() == [[1, 0], [0, 1]]
    assert found.history.rows() == state.history.rows()
    with pytest.raises(CheckpointError, match="belongs to another configuration"):
        states.load_state(tmp_path / "state", "other", cpu)
    tree, meta = states.pack(state)
    for lost in ("clients", "prepared", "leaves"):
        states.checkpoint.write_checkpoint(
            tmp_path / "old", tree, {k: v for k, v in meta.items() if k != lost}, key="key"
        )
        with pytest.raises(CheckpointError, match="from an earlier version; delete it to start again"):
            states.load_state(tmp_path / "old", "key", cpu)
    empty = State({}, ClientMemory({}, 3, cpu), ClientMemory({}, 3, cpu))
    assert states.unpack(*states.pack(empty), cpu).optimizers.clients == 3


@dataclass(frozen=True)
class Touches(Remembers):
    """Changes one of two leaves after the first round."""

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        server, memory = super().init(task, population, generator)
        return server, {**memory, "other": torch.ones(population.clients)}


def test_one_leaf_that_a_preparation_changes_is_kept_beside_another() -> None:
    memory = after(simulation(Touches(after=1)), 1).memory
    assert (memory["seen"].flatten().tolist(), memory["other"].tolist()) == ([7] * 4, [1] * 4)


def test_a_key_of_shared_work_is_of_values_and_not_of_gradients() -> None:
    leaf = torch.ones(2, 3)
    key = preparation.shared_key(setup, (leaf.t(), "a"))
    assert (
        key
        == preparation.shared_key(setup, (leaf.t().contiguous().requires_grad_(), "a"))
        != preparation.shared_key(setup, (leaf,))
    )
