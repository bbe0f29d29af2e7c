"""FedCollab's coalitions: those that the solver makes, those that differ, and those who come late."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.methods.fedcollab import solver
from fedbench.methods.fedcollab.distances import DiscriminatorConfig
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.local import Local
from tests.methods.toys import FOUR, close, federation, gap, models, run, setup, simulate

QUICK = DiscriminatorConfig(hidden=5, rounds=20)


def test_without_capacity_term_clients_that_differ_stay_alone() -> None:
    data = federation((40, 40, 40), labels=[[0], [1], [2, 3]])
    sharp = DiscriminatorConfig(hidden=20, lr=0.1)
    chosen = setup(FedCollab(C=0.0, discriminator=sharp), data, rounds=2)
    state, local = simulate(chosen), setup(Local(), data, rounds=2)
    assert sorted(state.server["coalition"].tolist()) == [0, 1, 2]
    assert close(models(chosen, state), models(local, simulate(local)))


def test_a_newcomer_is_alone_until_it_joins() -> None:
    method = FedCollab(newcomers=(2,), join_round=2, discriminator=QUICK, C=1e6)
    for rounds in (1, 2, 3):
        chosen = setup(method, federation(FOUR), rounds=rounds)
        state = simulate(chosen)
        local = setup(Local(), federation(FOUR), rounds=rounds)
        alone = close(trees.row(models(chosen, state), 2), trees.row(models(local, simulate(local)), 2))
        coalition = state.server["coalition"].tolist()
        assert alone is (rounds < 2)
        assert coalition == ([0, 0, 1, 0] if rounds < 2 else [0, 0, 0, 0])


def test_newcomers_join_those_who_are_like_them() -> None:
    """Clients 2 and 4 come late; before they do the others train as if there were no others, after it they share."""
    labels = [[0, 1], [2, 3], [0, 1], [2, 3], [2, 3], [0, 1]]
    data = federation((40,) * 6, labels=labels)
    sharp = DiscriminatorConfig(hidden=20, lr=0.1)
    method = FedCollab(C=5.0, newcomers=(2, 4), join_round=2, discriminator=sharp)
    early, late = (setup(method, data, rounds=rounds) for rounds in (1, 3))
    before, after = simulate(early), simulate(late)
    assert before.server["coalition"].tolist() == [0, 1, 2, 1, 3, 0]
    assert after.server["coalition"].tolist() == [0, 1, 0, 1, 1, 0]
    sizes, distances = np.full(6, 40), after.arrays["distances"]
    joined = itertools.product(range(4), repeat=2)
    best = min(joined, key=lambda c: solver.objective([0, 1, c[0], 1, c[1], 0], sizes, distances, 5.0))
    assert best == (0, 1), "of all ways to take them in, the best by Eq. 10"
    older = [0, 1, 3, 5]
    alone = setup(
        replace(method, newcomers=(), join_round=0), federation((40,) * 6, labels=labels, ids=older), rounds=1
    )
    expected = models(alone, simulate(alone))
    assert close({k: v[older] for k, v in models(early, before).items()}, expected)
    shared = models(late, after)
    for a, b in ((0, 2), (0, 5), (1, 3), (1, 4)):
        assert gap(trees.row(shared, a), trees.row(shared, b)) == 0
    assert gap(trees.row(shared, 0), trees.row(shared, 1)) > 1e-2


@pytest.mark.parametrize("newcomers", [(-1,), (1, 1), (4,), (0, 1, 2, 3)])
def test_newcomers_that_cannot_be_are_refused(newcomers: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"method\.newcomers"):
        run(FedCollab(newcomers=newcomers, join_round=1, discriminator=QUICK))


def test_newcomers_who_never_join_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for join, told in ((2, []), (3, ["newcomers join after 3 rounds; of 2 they never do"])):
        simulate(setup(FedCollab(newcomers=(2,), join_round=join, discriminator=QUICK), federation(FOUR), rounds=2))
        assert [record.getMessage() for record in caplog.records] == told


def test_coalitions_are_what_the_solver_makes_of_the_distances() -> None:
    labels = [[0, 1], [0, 1], [2, 3], [2, 3], [2, 3]]
    data = federation((40, 40, 40, 40, 40), labels=labels)
    chosen = setup(FedCollab(C=5.0, discriminator=DiscriminatorConfig(hidden=20, lr=0.1)), data, rounds=1)
    state = simulate(chosen)
    assert state.server["coalition"].tolist() == [0, 0, 1, 1, 1]
    weights = chosen.method.collaboration(state.server, chosen.population)
    assert weights is not None
    assert weights[0].tolist() == [0.5, 0.5, 0, 0, 0]
    assert state.bytes_up > sum(v[0].numel() for v in state.server.values())  # the discriminators' traffic counts
    distances = state.arrays["distances"]
    again = solver.solve(np.full(5, 40), distances, 5.0, 10, np.random.default_rng(0))
    assert again.assignment.tolist() == state.arrays["coalition"].tolist()
