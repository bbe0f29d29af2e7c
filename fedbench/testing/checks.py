"""The checks of the conformance suite: of a method's hooks, each by itself, and of whole runs."""

from __future__ import annotations

import dataclasses
import pickle
import random
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine import checkpoint
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.newcomers import Newcomers
from fedbench.engine.simulation import Simulation, State, pack, unpack
from fedbench.engine.stacked import Program, StackedTrainer
from fedbench.engine.workers import WorkersTrainer, spec_of
from fedbench.testing.dead import dead_leaves, same
from fedbench.testing.toys import KINDS, ROUNDS, SIZES, Subject, ToyMeter, gap, models, simulate

EVERYONE = torch.arange(len(SIZES))
FAMILIES = ("global", "personalised", "clustered", "mixture")


def layout(tree: Mapping[str, Tensor], axes: int = 0) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape after the first `axes`, and the type, of every leaf."""
    return {name: (tuple(leaf.shape[axes:]), leaf.dtype) for name, leaf in tree.items()}


def check_is_a_documented_value(subject: Subject) -> None:
    """A frozen dataclass with a docstring, a paper and a family; pickled, it is the same."""
    method, anything = subject.method, "anything"
    text = type(method).__doc__ or ""
    generated = f"{type(method).__name__}("  # how a dataclass without a docstring describes itself
    assert not (text + generated).startswith(generated), "the class has no docstring"
    assert method.paper, "`paper` is empty: authors, venue, year"
    assert method.family in FAMILIES, f"`family` is {method.family!r}, not one of {FAMILIES}"
    try:
        setattr(method, anything, None)
    except dataclasses.FrozenInstanceError:
        pass
    else:
        raise AssertionError("the class is not declared @dataclass(frozen=True)")
    assert pickle.loads(pickle.dumps(method)) == method, "a pickled copy is not equal"


def check_server_hooks_leave_their_arguments_alone(subject: Subject) -> None:
    """`send`, `aggregate`, `common` and `collaboration` return new trees; so does local training."""
    chosen, hooks, state = subject.toy("batch_norm", cohort=1.0), subject.method, subject.run("batch_norm").state
    clock = Clock(1, ROUNDS)
    given: dict[str, Tree] = {"server": state.server, "memory": state.memory.take(EVERYONE)}
    with torch.no_grad():
        given["message"] = hooks.send(state.server, chosen.cohort(EVERYONE, clock))
    kept = {name: trees.clone(tree) for name, tree in given.items()}
    outcome = LoopedTrainer(chosen).train(EVERYONE, given["message"], given["memory"], clock)
    given["uploads"], kept["uploads"] = outcome.uploads, trees.clone(outcome.uploads)
    with torch.no_grad():
        hooks.aggregate(state.server, outcome.uploads, chosen.cohort(EVERYONE, clock))
        hooks.common(state.server, chosen.task)
        hooks.collaboration(state.server, chosen.population)
    for name, tree in given.items():
        assert gap(tree, kept[name]) == 0, f"a hook wrote into the {name}"


@torch.no_grad()
def check_client_hooks_leave_their_arguments_alone(subject: Subject) -> None:
    """`start`, `personal`, `model`, `finish` and `predict` write into nothing that they are given."""
    chosen, hooks, meter = subject.toy("batch_norm"), subject.method, subject.run("batch_norm").meter
    message, memory = (trees.clone(trees.row(tree, 2)) for tree in (meter.message, meter.memory))
    view = chosen.client(3, trees.clone(message), trees.clone(memory), Clock(1, ROUNDS))
    work = trees.clone(hooks.start(view))
    kept = trees.clone(work)
    personal = hooks.personal(view)
    hooks.model(work, view)
    upload, _ = hooks.finish(work, view)
    finished = trees.clone(upload)
    x, _ = chosen.federation.gather(chosen.federation.indices("local", 3))
    scored = trees.clone(personal)
    hooks.predict(personal, x, chosen.task)
    for name, tree, before in (
        ("message", view.message, message),
        ("memory", view.memory, memory),
        ("work tree", work, kept),
        ("upload", upload, finished),
        ("personal model", personal, scored),
    ):
        assert gap(tree, before) == 0, f"a hook wrote into the {name}"


def check_scoring_changes_nothing_and_scores_classes(subject: Subject) -> None:
    """A second scoring of a state gives the same counts and does not change it; scores are finite, [B, K]."""
    chosen, state = subject.toy("mlp"), subject.run("mlp").state
    before = trees.clone(pack(state)[0])
    clock = Clock(ROUNDS, ROUNDS)
    with torch.no_grad():
        message = chosen.method.send(state.server, chosen.cohort(EVERYONE, clock, "evaluate"))
        memory = state.memory.take(EVERYONE)
    correct, total = LoopedTrainer(chosen).evaluate(EVERYONE, message, memory, clock, ("local",))["local"]
    assert total.sum(1).tolist() == [6.0] * len(SIZES), "not every test sample was scored once"
    recorded = state.history.last.tallies["local"].correct.tolist()
    assert correct.sum(1).tolist() == recorded, f"{correct.sum(1).tolist()} right, at first {recorded}"
    after = pack(state)[0]
    assert equal(after, before), "scoring changes the state"
    x, _ = chosen.federation.gather(chosen.federation.indices("local", 3))
    with torch.no_grad():
        scores = chosen.method.predict(trees.row(models(chosen, state), 3), x, chosen.task)
    assert scores.shape == (6, 4), f"scores of 6 samples and 4 classes have the shape {tuple(scores.shape)}"
    assert bool(torch.isfinite(scores).all()), "scores are not finite"


@torch.no_grad()
def check_a_client_is_sent_the_same_in_whatever_company(subject: Subject) -> None:
    """A client's message does not depend on the cohort, so clients can be scored a few at a time."""
    chosen, state = subject.toy("mlp"), subject.run("mlp").state
    clock = Clock(ROUNDS, ROUNDS)
    whole = chosen.method.send(state.server, chosen.cohort(EVERYONE, clock, "evaluate"))
    for ids in ([3], [1, 4], [0, 2, 3]):
        part = chosen.method.send(state.server, chosen.cohort(torch.tensor(ids), clock, "evaluate"))
        assert layout(part, 1) == layout(whole, 1), f"clients {ids} are sent other leaves than among all"
        apart = gap(part, {name: leaf[ids] for name, leaf in whole.items()})
        assert apart < 1e-9, f"clients {ids} are sent what differs by {apart:.1g} from what they get among all"


def check_trees_keep_their_names_shapes_and_precision(subject: Subject) -> None:
    """Server and memory after three rounds have the initial leaves; messages and uploads have a row for each client."""
    for kind in KINDS:
        run = subject.run(kind)
        meter, start = run.meter, run.start
        assert layout(run.state.server) == layout(start.server), f"{kind}: the server's leaves changed"
        assert layout(run.state.memory) == layout(start.memory), f"{kind}: the memory's leaves changed"
        assert layout(meter.outcome.memory, 1) == layout(start.memory, 1), f"{kind}: `finish` changed them"
        for tree in (meter.message, meter.outcome.uploads):
            assert {leaf.shape[0] for leaf in tree.values()} <= {4}, f"{kind}: no row for each of 4 clients"
        assert {leaf.shape[0] for leaf in run.state.memory.values()} <= {5}, f"{kind}: no row for each client"
        for tree in (meter.message, meter.outcome.uploads, meter.outcome.memory):
            singles = [name for name, leaf in tree.items() if leaf.dtype == torch.float32]
            assert not singles, f"{kind}: float32 in a float64 run: {singles}"


def check_no_leaf_is_dead(subject: Subject) -> None:
    """Memory moves, and a score, an upload or other such memory depends on it; `aggregate` reads all of an upload."""
    wrong, excused = list[str](), set[str]()
    for kind in KINDS:
        task = subject.toy(kind).task
        for leaf, said in dead_leaves(subject, kind):
            reasons = {selector for selector in subject.declared.inert if task.select([leaf], [selector])}
            excused |= reasons
            wrong += [] if reasons else [f"{kind}: {said}"]
    assert not wrong, "; ".join(wrong)
    alive = sorted(subject.declared.inert.keys() - excused)
    assert not alive, f"declared inert and of use: {', '.join(alive)}"


def check_single_precision_stays_single(subject: Subject) -> None:
    """No leaf is float64, which would train slowly and double the traffic; single numbers may be."""
    chosen = subject.toy("mlp", dtype=torch.float32, rounds=1)
    meter = ToyMeter(chosen)
    state = simulate(chosen, meter)
    for tree in (meter.message, meter.outcome.uploads, state.memory.take(EVERYONE)):
        doubles = [name for name, leaf in tree.items() if leaf.dtype == torch.float64 and leaf[0].numel() > 1]
        assert not doubles, f"float64 in a float32 run: {doubles}"


def check_collaboration_is_row_stochastic(subject: Subject) -> None:
    """A collaboration matrix, if there is one, is [N, N], not negative, and its rows sum to one."""
    chosen, run = subject.toy("mlp"), subject.run("mlp")
    for state in (run.start, run.state):
        matrix = chosen.method.collaboration(state.server, chosen.population)
        if matrix is None:
            continue
        assert matrix.shape == (5, 5), f"W of 5 clients has the shape {tuple(matrix.shape)}"
        assert float(matrix.min()) >= 0, f"W has negative entries:\n{matrix}"
        sums = matrix.sum(1).double()
        assert torch.allclose(sums, torch.ones_like(sums), atol=1e-6), f"rows of W sum to {sums.tolist()}"


def check_clients_that_are_too_small_are_refused(subject: Subject) -> None:
    """If a method needs more than one training sample, an error names a client with fewer."""
    smallest = subject.declared.smallest
    if smallest == 1:
        return
    expected, said = f"client 1 has {smallest - 1} training sample", "nothing"
    try:
        simulate(subject.toy("mlp", clients=(9, smallest - 1, 9)))
    except ConfigError as error:
        said = str(error)
    assert expected in said, f"no ConfigError says '{expected}', but: {said}"


def rerun(program: Program, rows: int, full: bool) -> Callable[[], None]:
    """Return the step itself as a stand-in for its CUDA graph: it is run anew each time, on fixed tensors."""
    return partial(program.step, rows, full=full)


# Checks of whole runs: the same by every engine, from every checkpoint, in every order; traffic as sent.

CHUNKS = {"mlp": (2, 99), "batch_norm": (3,)}  # clients trained at once by the stacked engine


def everything(state: State) -> Tree:
    """Return a state without its timings."""
    return {name: leaf for name, leaf in pack(state)[0].items() if "seconds" not in name}


def equal(a: Tree, b: Tree) -> bool:
    """Return whether two trees are equal to the bit."""
    return set(a) == set(b) and all(same(a[k], b[k]) for k in a)


def check_stacked_equals_looped(subject: Subject) -> None:
    """Models, scores, traffic and losses are equal for any number of clients in a chunk."""
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
    """A run that resumes from a file before every round equals an uninterrupted one to the bit."""
    chosen = subject.toy("batch_norm")
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state"
        while not simulation.done(state):
            tree, meta = pack(state)
            checkpoint.write_checkpoint(file, tree, meta)
            state = unpack(*checkpoint.read_checkpoint(file), torch.device("cpu"))
            assert list(pack(state)[0]) == list(tree), "a resumed run has its leaves in another order"
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
    trained = LoopedTrainer(copy).dispatch(*given)
    assert spec_of(upload, 4) == spec_of(trained.uploads, 4), "uploads change their layout by training"
    assert spec_of(kept, 4) == spec_of(trained.memory, 4), "memory changes its layout by training"


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
    """After a first round without one client, that client has no score."""
    chosen = subject.toy("batch_norm")
    tally = subject.run("batch_norm").state.history.records[0].tallies["local"]
    scored = [k for k in range(5) if tally.total[k] > 0]
    trained = chosen.draw_cohort(Clock(0, ROUNDS)).tolist()
    assert scored == trained, f"clients {trained} trained, {scored} are scored"


def check_a_client_it_never_met_is_scored_or_what_lacks_is_said(subject: Subject) -> None:
    """A client that rounds leave out (protocol.unseen) has a place in the state, or a server's IndexError says no."""
    chosen = subject.toy("mlp", unseen=1)
    found = Newcomers(chosen, chosen.seen).score(simulate(chosen.seen))
    assert found.note or set(found.tallies) == {"received", "1", "5"}, f"scored {list(found.tallies)} without a word"


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
