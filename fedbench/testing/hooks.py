"""Checks of a method's hooks: a documented value, pure functions, trees that keep their names and shapes."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.state import pack
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.testing.subject import KINDS, ROUNDS, Meter, Subject
from fedbench.testing.toys import SIZES, gap, models, simulate

EVERYONE = torch.arange(len(SIZES))
FAMILIES = ("global", "personalised", "clustered")


def layout(tree: Mapping[str, Tensor], axes: int = 0) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape behind the first `axes`, and type, of every leaf."""
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
    chosen, hooks, state = (
        subject.toy("batch_norm", cohort=1.0),
        subject.method,
        subject.run("batch_norm").state,
    )
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
    """`start`, `personal`, `model`, `finish`, `compress` and `predict` write into nothing that they are given."""
    chosen, hooks, meter = subject.toy("batch_norm"), subject.method, subject.run("batch_norm").meter
    message, memory = (trees.clone(trees.row(tree, 2)) for tree in (meter.message, meter.memory))
    view = chosen.client(3, trees.clone(message), trees.clone(memory), Clock(1, ROUNDS))
    work = trees.clone(hooks.start(view))
    kept = trees.clone(work)
    personal = hooks.personal(view)
    hooks.model(work, view)
    upload, _ = hooks.finish(work, view)
    finished = trees.clone(upload)
    hooks.compress(upload)
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
    """Scored again, a state gives the same counts and stays as it is; scores are finite, [B, K]."""
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
    assert all(torch.equal(leaf.nan_to_num(), before[name].nan_to_num()) for name, leaf in after.items())
    x, _ = chosen.federation.gather(chosen.federation.indices("local", 3))
    with torch.no_grad():
        scores = chosen.method.predict(trees.row(models(chosen, state), 3), x, chosen.task)
    assert scores.shape == (6, 4), f"scores of 6 samples and 4 classes have the shape {tuple(scores.shape)}"
    assert bool(torch.isfinite(scores).all()), "scores are not finite"


@torch.no_grad()
def check_a_client_is_sent_the_same_in_whatever_company(subject: Subject) -> None:
    """So scoring many clients a few at a time scores what scoring all at once would."""
    chosen, state = subject.toy("mlp"), subject.run("mlp").state
    clock = Clock(ROUNDS, ROUNDS)
    whole = chosen.method.send(state.server, chosen.cohort(EVERYONE, clock, "evaluate"))
    for ids in ([3], [1, 4], [0, 2, 3]):
        part = chosen.method.send(state.server, chosen.cohort(torch.tensor(ids), clock, "evaluate"))
        assert layout(part, 1) == layout(whole, 1), f"clients {ids} are sent other leaves than among all"
        apart = gap(part, {name: leaf[ids] for name, leaf in whole.items()})
        assert apart < 1e-9, (
            f"clients {ids} are sent what differs by {apart:.1g} from what they get among all"
        )


def check_trees_keep_their_names_shapes_and_precision(subject: Subject) -> None:
    """Server and memory after three rounds have the leaves of before; messages and uploads a row a client."""
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


def check_single_precision_stays_single(subject: Subject) -> None:
    """A double that slipped in would be trained slowly and sent at twice the price (single numbers may be)."""
    chosen = subject.toy("mlp", dtype=torch.float32, rounds=1)
    meter = Meter(chosen)
    state = simulate(chosen, meter)
    for tree in (meter.message, meter.outcome.uploads, state.memory.take(EVERYONE)):
        doubles = [name for name, leaf in tree.items() if leaf.dtype == torch.float64 and leaf[0].numel() > 1]
        assert not doubles, f"float64 in a float32 run: {doubles}"


def check_collaboration_is_row_stochastic(subject: Subject) -> None:
    """Where there is a collaboration matrix, it is [N, N], not negative, and its rows sum to one."""
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
    """Where more than one training sample is needed, a client with fewer is named in an error."""
    smallest = subject.declared.smallest
    if smallest == 1:
        return
    expected, said = f"client 1 has {smallest - 1} training sample", "nothing"
    try:
        simulate(subject.toy("mlp", clients=(9, smallest - 1, 9)))
    except ConfigError as error:
        said = str(error)
    assert expected in said, f"no ConfigError says '{expected}', but: {said}"
