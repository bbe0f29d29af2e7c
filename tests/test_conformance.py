"""What every method promises, checked on every YAML under conf/method: a new method is covered by being there.

Two toys: an MLP scored as received, and LeNet5 with batch normalisation scored after training. Clients have 1 to 21
samples, four of five take part in a round.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from fedbench.config import compose
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.engine.request import serve
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.state import State, pack, unpack
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.shared_tree import spec_of
from fedbench.engine.train.stacked import StackedTrainer
from fedbench.engine.train.trainer import Outcome
from fedbench.engine.train.workers import WorkersTrainer
from fedbench.methods import METHODS
from fedbench.models.base import Model
from fedbench.models.lenet5 import LeNet5
from fedbench.models.mlp import MLP
from fedbench.results import checkpoint
from tests.methods.toys import SIZES, federation, gap, models, setup, simulate

FOLDER = compose.conf_dir() / "method"
PRESETS = sorted(file.stem for file in FOLDER.glob("*.yaml"))
CHUNKS = {"mlp": (2, 99), "batch_norm": (3,)}
ROUNDS = 3

# Settings that a toy needs. Nothing else is special about any method.
SETTINGS: dict[str, list[str]] = {
    "fedbn": ["method.private=[@norm,@head]"],  # an MLP has no batch normalisation, and FedBN refuses it
    "fedcollab": [
        *("method.discriminator.rounds=20", "method.discriminator.hidden=5", "method.restarts=3"),
        "method.C=0.1",  # several coalitions of five clients with 1 to 21 samples
    ],
}
# Smallest client a method accepts, where that is not one sample, and why.
SMALLEST = {"fedcollab": (2, "a discriminator trains on one sample and validates on another")}
# Methods whose server draws at random by position, so that relabelled clients meet other draws, and how.
DRAWS_BY_POSITION = {
    "fedcollab": "discriminators are keyed by pair, the solver visits clients in random order",
    "fesem": "the first assignment is drawn in order",
    "fedrema_code": "a probe is drawn for each place in the cohort, and classifiers are shuffled",
    "pfedhn": "clients' embeddings are drawn in order",
}
# Methods whose message to a client depends on who else is in the cohort, and how.
SENDS_BY_COHORT = {
    "fedfomo": "who explores is drawn for each place in the cohort; what is scored lies in the client's memory",
}


@functools.cache
def algorithm(preset: str) -> str:
    return str(OmegaConf.to_container(OmegaConf.load(FOLDER / f"{preset}.yaml"))["name"])  # type: ignore[call-overload,index]


@functools.cache
def method(preset: str) -> Method:
    overrides = SETTINGS.get(preset, SETTINGS.get(algorithm(preset), []))
    plain: Any = OmegaConf.to_container(
        compose.compose([f"method={preset}", *overrides]).method, resolve=True
    )
    return METHODS.build(plain)


def declared(table: dict[str, str]) -> list[Any]:
    """All presets; those in `table` fail, for the reason given."""
    reasons = {preset: table.get(preset, table.get(algorithm(preset))) for preset in PRESETS}
    return [
        pytest.param(preset, marks=[pytest.mark.xfail(reason=reason, strict=True)] if reason else [])
        for preset, reason in reasons.items()
    ]


def sizes(preset: str) -> tuple[int, ...]:
    smallest = SMALLEST.get(algorithm(preset), (1, ""))[0]
    return tuple(max(smallest, size) for size in SIZES)


def toy(
    preset: str,
    kind: str,
    ids: Sequence[int] | None = None,
    clients: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> Setup:
    shape: tuple[int, int, int] = (1, 4, 4) if kind == "mlp" else (1, 16, 16)
    model: Model = MLP(hidden=(6,)) if kind == "mlp" else LeNet5(batch_norm=True)
    score = "received" if kind == "mlp" else "trained"
    options = {"cohort": 0.8, "rounds": ROUNDS, "epochs": 1, "score": score, **options}
    data = federation(clients or sizes(preset), shape, ids=ids, dtype=dtype)
    return setup(method(preset), data, model, **options)


class Meter(LoopedTrainer):
    """Counts the bytes that cross the network, leaf by leaf and client by client; keeps the last trees."""

    up = down = 0

    def train(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        outcome = super().train(ids, message, memory, clock, score)
        for client in range(len(ids)):
            self.down += sum(len(leaf[client].numpy().tobytes()) for leaf in message.values())
            self.up += sum(len(leaf[client].numpy().tobytes()) for leaf in outcome.uploads.values())
        self.message, self.memory, self.outcome = message, memory, outcome
        return outcome


@dataclass
class Run:
    """A finished run, what it began with, and what crossed the network."""

    start: State
    state: State
    meter: Meter


@functools.cache
@torch.enable_grad()
def looped(preset: str, kind: str) -> Run:
    """The run that all checks share."""
    chosen = toy(preset, kind)
    meter = Meter(chosen)
    simulation = Simulation(chosen, meter)
    state = simulation.begin()
    start = unpack(*pack(state), torch.device("cpu"))
    start.server, start.memory = trees.clone(start.server), trees.clone(start.memory)
    meter.up = meter.down = 0  # whatever a preparation did is no round
    while not simulation.done(state):
        simulation.step(state)
    return Run(start, state, meter)


def everything(state: State) -> Tree:
    """All of a state but its timings."""
    return {k: v for k, v in pack(state)[0].items() if "seconds" not in k}


def equal(a: Tree, b: Tree) -> bool:
    return set(a) == set(b) and all(torch.equal(a[k].nan_to_num(), b[k].nan_to_num()) for k in a)


def layout(tree: Tree, axes: int = 0) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape behind the first `axes`, and type, of every leaf."""
    return {name: (tuple(leaf.shape[axes:]), leaf.dtype) for name, leaf in tree.items()}


def test_there_are_presets_for_every_registered_method() -> None:
    assert {algorithm(preset) for preset in PRESETS} == set(METHODS)


def test_declarations_are_of_presets_that_exist() -> None:
    known = {*PRESETS, *METHODS}
    assert {*SETTINGS, *SMALLEST, *DRAWS_BY_POSITION, *SENDS_BY_COHORT} <= known


@pytest.mark.parametrize("preset", PRESETS)
def test_is_a_documented_value(preset: str) -> None:
    chosen = method(preset)
    assert type(chosen).__doc__
    assert chosen.paper
    assert chosen.family in ("global", "personalised", "clustered")
    name = next((field.name for field in dataclasses.fields(chosen)), "anything")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(chosen, name, None)
    assert pickle.loads(pickle.dumps(chosen)) == chosen


@pytest.mark.parametrize("kind", CHUNKS)
@pytest.mark.parametrize("preset", PRESETS)
def test_stacked_equals_looped(preset: str, kind: str) -> None:
    """Models, scores, traffic and losses, with as many clients in a chunk as one likes."""
    run = looped(preset, kind)
    for chunk in CHUNKS[kind]:
        chosen = toy(preset, kind)
        state = simulate(chosen, StackedTrainer(chosen, chunk))
        assert gap(everything(state), everything(run.state)) < 1e-6, f"chunk {chunk}"
        assert gap(state.server, run.state.server) < 1e-9, f"chunk {chunk}"
        assert gap(state.memory, run.state.memory) < 1e-9, f"chunk {chunk}"


def global_randomness() -> tuple[Any, ...]:
    numpy_state = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), [str(part) for part in numpy_state], random.getstate()


@pytest.mark.parametrize("preset", PRESETS)
def test_is_deterministic_whatever_else_is_random(preset: str) -> None:
    expected = everything(looped(preset, "mlp").state)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    before = global_randomness()
    assert equal(everything(simulate(toy(preset, "mlp"))), expected)
    assert global_randomness() == before


@pytest.mark.parametrize("preset", PRESETS)
def test_resumed_equals_uninterrupted(preset: str, tmp_path: Path) -> None:
    """To the bit, through a file before every round."""
    chosen = toy(preset, "batch_norm")
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    while not simulation.done(state):
        checkpoint.save(tmp_path / "state", *pack(state))
        state = unpack(*checkpoint.load(tmp_path / "state"), torch.device("cpu"))
        simulation = Simulation(chosen, LoopedTrainer(chosen))
        simulation.step(state)
    assert equal(everything(state), everything(looped(preset, "batch_norm").state))


@pytest.mark.parametrize("preset", declared(DRAWS_BY_POSITION))
def test_relabelled_clients_get_relabelled_models(preset: str) -> None:
    order = [3, 0, 4, 2, 1]
    here, there = (toy(preset, "mlp", ids=ids, cohort=1.0, eval_every=9) for ids in (None, order))
    expected, found = models(here, simulate(here)), models(there, simulate(there))
    assert gap(found, {name: leaf[order] for name, leaf in expected.items()}) < 1e-7


@pytest.mark.parametrize("preset", PRESETS)
def test_server_hooks_leave_their_arguments_alone(preset: str) -> None:
    chosen, hooks = toy(preset, "batch_norm", cohort=1.0), method(preset)
    state = looped(preset, "batch_norm").state
    clock, ids = Clock(1, ROUNDS), torch.arange(5)
    given = {"server": state.server, "memory": state.memory}
    with torch.no_grad():
        given["message"] = hooks.send(state.server, chosen.cohort(ids, clock))
    kept = {name: trees.clone(tree) for name, tree in given.items()}
    outcome = LoopedTrainer(chosen).train(ids, given["message"], state.memory, clock)
    given["uploads"], kept["uploads"] = outcome.uploads, trees.clone(outcome.uploads)
    with torch.no_grad():
        hooks.aggregate(state.server, outcome.uploads, chosen.cohort(ids, clock))
        hooks.common(state.server, chosen.task)
        hooks.collaboration(state.server, chosen.population)
    for name, tree in given.items():
        assert gap(tree, kept[name]) == 0, name


@pytest.mark.parametrize("preset", PRESETS)
@torch.no_grad()
def test_client_hooks_leave_their_arguments_alone(preset: str) -> None:
    chosen, hooks = toy(preset, "batch_norm"), method(preset)
    meter = looped(preset, "batch_norm").meter
    message, memory = (trees.clone(trees.row(tree, 2)) for tree in (meter.message, meter.memory))
    view = chosen.client(3, trees.clone(message), trees.clone(memory), Clock(1, ROUNDS))
    work = trees.clone(hooks.start(view))
    kept = trees.clone(work)
    personal = hooks.personal(view)
    hooks.model(work, view)
    hooks.finish(work, view)
    x, _ = chosen.federation.gather(chosen.federation.indices("local", 3))
    scored = trees.clone(personal)
    hooks.predict(personal, x, chosen.task)
    assert gap(view.message, message) == gap(view.memory, memory) == 0
    assert gap(work, kept) == gap(personal, scored) == 0


@pytest.mark.parametrize("preset", PRESETS)
def test_scoring_changes_nothing_and_scores_classes(preset: str) -> None:
    chosen, state = toy(preset, "mlp"), looped(preset, "mlp").state
    before = trees.clone(everything(state))
    trainer = LoopedTrainer(chosen)
    tallies = serve(Simulation(chosen, trainer)._score(state), lambda: trainer)
    assert tallies["local"].total.tolist() == [6.0] * 5
    assert tallies["local"].correct.tolist() == state.history.last.tallies["local"].correct.tolist()
    assert equal(everything(state), before)
    x, _ = chosen.federation.gather(chosen.federation.indices("local", 3))
    with torch.no_grad():
        scores = chosen.method.predict(trees.row(models(chosen, state), 3), x, chosen.task)
    assert scores.shape == (6, 4)
    assert bool(torch.isfinite(scores).all())


@pytest.mark.parametrize("preset", declared(SENDS_BY_COHORT))
@torch.no_grad()
def test_a_client_is_sent_the_same_in_whatever_company(preset: str) -> None:
    """So scoring many clients a few at a time scores what scoring all at once would."""
    chosen, state = toy(preset, "mlp"), looped(preset, "mlp").state
    clock = Clock(ROUNDS, ROUNDS)
    whole = chosen.method.send(state.server, chosen.cohort(torch.arange(5), clock, "evaluate"))
    for ids in ([3], [1, 4], [0, 2, 3]):
        part = chosen.method.send(state.server, chosen.cohort(torch.tensor(ids), clock, "evaluate"))
        assert layout(part, 1) == layout(whole, 1)
        assert gap(part, {name: leaf[ids] for name, leaf in whole.items()}) < 1e-9


@pytest.mark.parametrize("kind", CHUNKS)
@pytest.mark.parametrize("preset", PRESETS)
def test_trees_keep_their_names_shapes_and_precision(preset: str, kind: str) -> None:
    run = looped(preset, kind)
    assert layout(run.state.server) == layout(run.start.server)
    assert layout(run.state.memory) == layout(run.start.memory)
    assert layout(run.meter.outcome.memory, 1) == layout(run.start.memory, 1)
    first = [
        leaf.shape[0] for tree in (run.meter.message, run.meter.outcome.uploads) for leaf in tree.values()
    ]
    assert set(first) <= {4}, "a row for each client of the cohort"
    assert {leaf.shape[0] for leaf in run.state.memory.values()} <= {5}
    for tree in (run.meter.message, run.meter.outcome.uploads, run.state.memory):
        assert not [name for name, leaf in tree.items() if leaf.dtype == torch.float32]


@pytest.mark.parametrize("preset", PRESETS)
def test_single_precision_stays_single(preset: str) -> None:
    """A double that slipped in would be trained slowly and sent at twice the price (single numbers may be)."""
    chosen = toy(preset, "mlp", dtype=torch.float32, rounds=1)
    meter = Meter(chosen)
    state = simulate(chosen, meter)
    for tree in (meter.message, meter.outcome.uploads, state.memory):
        doubles = [name for name, leaf in tree.items() if leaf.dtype == torch.float64]
        assert not [name for name in doubles if tree[name][0].numel() > 1]


@pytest.mark.parametrize("preset", PRESETS)
def test_worker_processes_can_run_it(preset: str) -> None:
    """A pickled copy trains alike, and an untrained client's results have the layout of a trained one's."""
    run, chosen = looped(preset, "mlp"), toy(preset, "mlp")
    clock = Clock(ROUNDS - 1, ROUNDS)
    ids = chosen.draw_cohort(clock)
    copy = pickle.loads(pickle.dumps(chosen))
    again = LoopedTrainer(copy).train(ids, run.meter.message, run.meter.memory, clock)
    assert equal(again.uploads, run.meter.outcome.uploads)
    assert equal(again.memory, run.meter.outcome.memory)
    workers = object.__new__(WorkersTrainer)  # no processes are needed to ask
    workers.setup = chosen
    upload, kept = workers._specimen(ids, run.meter.message, run.meter.memory, clock)
    assert spec_of(upload, 4) == spec_of(again.uploads, 4)
    assert spec_of(kept, 4) == spec_of(again.memory, 4)


@pytest.mark.parametrize("kind", CHUNKS)
@pytest.mark.parametrize("preset", PRESETS)
def test_traffic_is_what_was_sent(preset: str, kind: str) -> None:
    run = looped(preset, kind)
    up, down = (getattr(run.state, name) - getattr(run.start, name) for name in ("bytes_up", "bytes_down"))
    assert (up, down) == (run.meter.up, run.meter.down)
    last = run.state.history.last
    assert (last.bytes_up, last.bytes_down) == (run.state.bytes_up, run.state.bytes_down)


@pytest.mark.parametrize("preset", PRESETS)
def test_collaboration_is_row_stochastic(preset: str) -> None:
    chosen, run = toy(preset, "mlp"), looped(preset, "mlp")
    for state in (run.start, run.state):
        matrix = chosen.method.collaboration(state.server, chosen.population)
        if matrix is not None:
            assert matrix.shape == (5, 5)
            assert float(matrix.min()) >= 0
            assert torch.allclose(matrix.sum(1).double(), torch.ones(5, dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize("kind", CHUNKS)
@pytest.mark.parametrize("preset", PRESETS)
def test_stays_finite_and_moves(preset: str, kind: str) -> None:
    run = looped(preset, kind)
    for name, leaf in {**run.state.server, **run.state.memory}.items():
        assert bool(torch.isfinite(leaf).all()), name
    chosen = toy(preset, kind)
    before, after = (models(chosen, state) for state in (run.start, run.state))
    moved = {k for k in range(5) if gap(trees.row(before, k), trees.row(after, k)) > 0}
    assert moved >= {int(k) for t in range(ROUNDS) for k in chosen.draw_cohort(Clock(t, ROUNDS))}


@pytest.mark.parametrize("preset", PRESETS)
def test_only_clients_that_trained_are_scored_as_trained(preset: str) -> None:
    chosen = toy(preset, "batch_norm")
    tally = looped(preset, "batch_norm").state.history.records[0].tallies["local"]
    assert [k for k in range(5) if tally.total[k] > 0] == chosen.draw_cohort(Clock(0, ROUNDS)).tolist()


@pytest.mark.parametrize("preset", PRESETS)
def test_one_client_is_a_federation_and_a_cohort(preset: str) -> None:
    for options in ({"clients": (9,), "cohort": 1.0}, {"cohort": 0.2}):
        chosen = toy(preset, "mlp", rounds=2, eval_every=9, **options)
        state, stacked = simulate(chosen), simulate(chosen, StackedTrainer(chosen, 2))
        assert gap(everything(stacked), everything(state)) < 1e-6
        matrix = chosen.method.collaboration(state.server, chosen.population)
        assert matrix is None or torch.allclose(matrix.sum(1).double(), torch.ones(len(matrix)).double())


@pytest.mark.parametrize("preset", [preset for preset in PRESETS if algorithm(preset) in SMALLEST])
def test_clients_that_are_too_small_are_refused(preset: str) -> None:
    smallest, _ = SMALLEST[algorithm(preset)]
    with pytest.raises(ConfigError, match=f"client 1 has {smallest - 1} training sample"):
        simulate(toy(preset, "mlp", clients=(9, smallest - 1, 9)))
