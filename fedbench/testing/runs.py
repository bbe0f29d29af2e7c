"""Checks of whole runs: the same by every engine, from every checkpoint, in every order; traffic as sent."""

from __future__ import annotations

import pickle
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.simulation import Simulation
from fedbench.engine.state import State, pack, unpack
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.shared_tree import spec_of
from fedbench.engine.train.stacked import StackedTrainer
from fedbench.engine.train.workers import WorkersTrainer
from fedbench.results import checkpoint
from fedbench.testing.captures import rerun
from fedbench.testing.subject import KINDS, ROUNDS, Subject
from fedbench.testing.toys import SIZES, gap, models, simulate

CHUNKS = {"mlp": (2, 99), "batch_norm": (3,)}  # clients trained at once by the stacked engine


def everything(state: State) -> Tree:
    """All of a state but its timings."""
    return {name: leaf for name, leaf in pack(state)[0].items() if "seconds" not in name}


def equal(a: Tree, b: Tree) -> bool:
    """To the bit."""
    return set(a) == set(b) and all(torch.equal(a[k].nan_to_num(), b[k].nan_to_num()) for k in a)


def check_stacked_equals_looped(subject: Subject) -> None:
    """Models, scores, traffic and losses, with as many clients in a chunk as one likes."""
    for kind, chunks in CHUNKS.items():
        expected = subject.run(kind).state
        for chunk in chunks:
            chosen = subject.toy(kind)
            # The larger chunk as it is captured: on tensors that stay put, in few sizes.
            state = simulate(chosen, StackedTrainer(chosen, chunk, rerun if chunk > len(SIZES) else None))
            apart = max(gap(state.server, expected.server), gap(state.memory, expected.memory))
            assert apart < 1e-9, f"{kind}, {chunk} clients a chunk: the state differs by {apart:.1g}"
            apart = gap(everything(state), everything(expected))
            assert apart < 1e-6, f"{kind}, {chunk} clients a chunk: scores or losses differ by {apart:.1g}"


def check_traffic_is_what_was_sent(subject: Subject) -> None:
    """Recorded bytes are those of the leaves that crossed the network, client by client."""
    for kind in KINDS:
        run = subject.run(kind)
        state = run.state
        up, down = state.bytes_up - state.prepared[0], state.bytes_down - state.prepared[1]
        sent = (run.meter.up, run.meter.down)
        assert (up, down) == sent, f"{kind}: (up, down) are {sent} bytes, recorded {(up, down)}"
        last = state.history.last
        assert (last.bytes_up, last.bytes_down) == (state.bytes_up, state.bytes_down), kind


def global_randomness() -> tuple[Any, ...]:
    """The states of the generators that no method may touch."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), [str(part) for part in numpy_state], random.getstate()


def check_is_deterministic_whatever_else_is_random(subject: Subject) -> None:
    """Global generators neither change a run nor are changed by it."""
    expected = everything(subject.run("mlp").state)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    before = global_randomness()
    again = everything(simulate(subject.toy("mlp")))
    assert global_randomness() == before, "the run drew from a global generator"
    assert equal(again, expected), "the same run again gives other numbers"


def check_resumed_equals_uninterrupted(subject: Subject) -> None:
    """To the bit, through a file before every round."""
    chosen = subject.toy("batch_norm")
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state"
        while not simulation.done(state):
            checkpoint.save(file, *pack(state))
            state = unpack(*checkpoint.load(file), torch.device("cpu"))
            simulation = Simulation(chosen, LoopedTrainer(chosen))
            simulation.step(state)
    expected = subject.run("batch_norm").state
    assert equal(everything(state), everything(expected)), "a resumed run gives other numbers"


def check_relabelled_clients_get_relabelled_models(subject: Subject) -> None:
    """Clients in another order, each with its data and randomness, end with the same models."""
    order = [3, 0, 4, 2, 1]
    here, there = (subject.toy("mlp", ids=ids, cohort=1.0, eval_every=9) for ids in (None, order))
    expected, found = models(here, simulate(here)), models(there, simulate(there))
    apart = gap(found, {name: leaf[order] for name, leaf in expected.items()})
    assert apart < 1e-7, f"models of clients in another order differ by {apart:.1g}"


def check_worker_processes_can_run_it(subject: Subject) -> None:
    """A pickled copy trains alike, and an untrained client's results have the layout of a trained one's."""
    run, chosen = subject.run("mlp"), subject.toy("mlp")
    clock = Clock(ROUNDS - 1, ROUNDS)
    ids = chosen.draw_cohort(clock)
    copy = pickle.loads(pickle.dumps(chosen))
    given = ids, run.meter.message, run.meter.memory, clock
    again = LoopedTrainer(copy).train(*given)
    assert equal(again.uploads, run.meter.outcome.uploads), "a pickled copy uploads other numbers"
    assert equal(again.memory, run.meter.outcome.memory), "a pickled copy remembers other numbers"
    workers = object.__new__(WorkersTrainer)  # no processes are needed to ask
    workers.setup = chosen
    upload, kept = workers._specimen(*given)
    trained = LoopedTrainer(copy).launch(*given)
    assert spec_of(upload, 4) == spec_of(trained.uploads, 4), "uploads change their layout by training"
    assert spec_of(kept, 4) == spec_of(trained.memory, 4), "memory changes its layout by training"


@torch.no_grad()
def check_what_a_client_sends_is_its_own(subject: Subject) -> None:
    """`compress` of one client's upload is that client's row of what the cohort sends, whoever else is in it."""
    run, chosen = subject.run("mlp"), subject.toy("mlp")
    clock = Clock(ROUNDS - 1, ROUNDS)
    ids = chosen.draw_cohort(clock)
    trained = LoopedTrainer(chosen).launch(ids, run.meter.message, run.meter.memory, clock).uploads
    for place, client in enumerate(ids.tolist()):
        alone = chosen.method.compress(trees.row(trained, place))
        sent = trees.row(run.meter.outcome.uploads, place)
        assert set(alone) == set(sent), f"client {client} alone sends {sorted(alone)}, here {sorted(sent)}"
        apart = gap(alone, sent)
        assert apart < 1e-9, f"what client {client} sends depends on the others: it differs by {apart:.1g}"


def check_stays_finite_and_moves(subject: Subject) -> None:
    """All leaves are finite, and every client that took part has another model than before."""
    for kind in KINDS:
        run = subject.run(kind)
        for name, leaf in {**run.state.server, **run.state.memory}.items():
            assert bool(torch.isfinite(leaf).all()), f"{kind}: leaf '{name}' is not finite"
        chosen = subject.toy(kind)
        before, after = (models(chosen, state) for state in (run.start, run.state))
        moved = {k for k in range(5) if gap(trees.row(before, k), trees.row(after, k)) > 0}
        trained = {int(k) for t in range(ROUNDS) for k in chosen.draw_cohort(Clock(t, ROUNDS))}
        assert moved >= trained, f"{kind}: models of clients {sorted(trained - moved)} did not move"


def check_only_clients_that_trained_are_scored_as_trained(subject: Subject) -> None:
    """After a first round that leaves one client out, that client has no score."""
    chosen = subject.toy("batch_norm")
    tally = subject.run("batch_norm").state.history.records[0].tallies["local"]
    scored = [k for k in range(5) if tally.total[k] > 0]
    trained = chosen.draw_cohort(Clock(0, ROUNDS)).tolist()
    assert scored == trained, f"clients {trained} trained, {scored} are scored"


def check_one_client_is_a_federation_and_a_cohort(subject: Subject) -> None:
    """A federation of one, and a cohort of one among five, by both engines."""
    for options in ({"clients": (9,), "cohort": 1.0}, {"cohort": 0.2}):
        chosen = subject.toy("mlp", rounds=2, eval_every=9, **options)
        state, stacked = simulate(chosen), simulate(chosen, StackedTrainer(chosen, 2))
        apart = gap(everything(stacked), everything(state))
        assert apart < 1e-6, f"{options}: the stacked engine differs by {apart:.1g}"
        matrix = chosen.method.collaboration(state.server, chosen.population)
        if matrix is not None:
            sums = matrix.sum(1).double()
            assert torch.allclose(sums, torch.ones_like(sums)), f"{options}: rows of W sum to {sums.tolist()}"
