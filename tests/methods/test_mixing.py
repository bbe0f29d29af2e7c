"""Projections, mixtures, simplices and clusters against solvers; attention of FedAMP, peers of FedFomo."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import cvxpy
import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.errors import FedbenchError
from fedbench.core.trees import Tree
from fedbench.data.federation import Federation, Ragged
from fedbench.engine.contract import Clock, Cohort
from fedbench.engine.hooks import HookError
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.fedamp import FedAMP
from fedbench.methods.fedfomo import FedFomo
from fedbench.methods.local import Local
from fedbench.methods.parts import mixing, simplex
from fedbench.methods.parts.mixing import Mixing, cosines
from tests.helpers.tiers import sampled
from tests.methods.toys import (
    FOUR,
    close,
    federation,
    final,
    gap,
    models,
    setup,
    simulate,
)


@pytest.mark.parametrize("count", sampled([1, 2, 5, 30], every=2))
def test_the_closed_form_is_the_solvers(count: int) -> None:
    """FedSaC's and pFedGraph's row problem for random p, S and C, with and without a choice of collaborators."""
    generator = torch.Generator().manual_seed(count)
    p = torch.rand(count, generator=generator, dtype=torch.float64).softmax(0)
    S, C = (torch.rand(2, count, count, generator=generator, dtype=torch.float64) * 2 - 1).clamp(-1, 1)
    allowed = torch.eye(count, dtype=torch.bool) | (torch.rand(count, generator=generator) < 0.5)
    for cost in (0.9 * C - 1.4 * S, -S / 0.8, 1.2 * C, torch.zeros_like(C)):
        for mask in (None, allowed):
            closed, solved = (mixing.closest(p, cost, mask, solver) for solver in mixing.SOLVERS)
            assert close(solved, closed, 1e-6)
            assert mask is None or not solved[~mask].any()
            assert float(solved.sum(1).sub(1).abs().max()) < 1e-12
            few = slice(count // 2 + 1)  # rows, of clients that take part
            part = mixing.closest(p, cost[few], None if mask is None else mask[few], "cvxpy")
            assert close(part, closed[few], 1e-6)


def test_no_solution_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cvxpy.Problem, "status", "infeasible")
    with pytest.raises(FedbenchError, match=r"infeasible.*; try method\.solver=closed"):
        mixing.closest(torch.ones(2) / 2, torch.zeros(1, 2), solver="cvxpy")


def test_projection_by_hand_and_its_symmetries() -> None:
    assert mixing.project(torch.tensor([[0.5, 0.3, -1.0]]))[0].tolist() == pytest.approx([0.6, 0.4, 0.0])
    rows = torch.from_numpy(np.random.default_rng(0).normal(0, 1, (20, 7)))
    found, order = mixing.project(rows), torch.tensor([3, 1, 6, 0, 2, 5, 4])
    assert close(mixing.project(rows + 17.5), found)
    assert close(mixing.project(found), found)
    assert close(mixing.project(rows[:, order]), found[:, order])
    assert close(mixing.project(1e6 * rows), torch.nn.functional.one_hot(rows.argmax(1), 7).double())
    assert float((found > 0).sum(1).double().std()) > 0


def test_cosines() -> None:
    found = cosines(torch.tensor([[3.0, 4.0], [-6.0, -8.0], [4.0, -3.0], [0.0, 0.0]]))
    expected = [[1.0, -1.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    assert close(found, torch.tensor(expected, dtype=torch.float64))


@dataclass(frozen=True)
class Inflated(Mixing):
    """Every row of W sums to 1.1."""

    def graph(self, server: Tree, uploads: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        return {"*": 1.1 * cohort.weights.expand(len(cohort.ids), -1)}


def test_a_matrix_that_is_not_row_stochastic_is_refused() -> None:
    with pytest.raises(HookError, match="not row-stochastic"):
        final(Inflated())


METRICS = sorted(simplex.METRICS)


def points(count: int, corners: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(corners), count)


@pytest.mark.parametrize("name", METRICS)
def test_distances_are_metrics(name: str) -> None:
    distance = simplex.METRICS[name].distance
    p = points(40, 4)
    table = distance(p[:, None], p[None])
    np.testing.assert_allclose(table, table.T, atol=1e-12)
    np.testing.assert_allclose(np.diag(table), 0, atol=1e-12)
    assert (table + np.eye(40) > 1e-6).all()
    assert (table[:, None, :] <= table[:, :, None] + table[None] + 1e-12).all()


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_walks_are_geodesic(name: str, share: float) -> None:
    metric = simplex.METRICS[name]
    for p, q in zip(points(10, 3), points(10, 3, seed=1), strict=True):
        x = metric.walk(p, q, share)
        whole = metric.distance(p, q)
        assert metric.distance(p, x) == pytest.approx(share * whole, abs=1e-9)
        assert metric.distance(x, q) == pytest.approx((1 - share) * whole, abs=1e-9)
        assert x.sum() == pytest.approx(1)


@pytest.mark.parametrize("name", METRICS)
def test_centre_of_the_smallest_ball(name: str) -> None:
    """Against a linear program; Hilbert's distance is max - min of the difference of logarithms."""
    p = points(9, 3, seed=3)
    found = simplex.METRICS[name].distance(p, simplex.enclosing_centre(p, simplex.METRICS[name])).max()
    centre, radius = cp.Variable(3), cp.Variable()
    if name == "l1":
        limits = [cp.norm1(x - centre) <= radius for x in p] + [cp.sum(centre) == 1, centre >= 0]
    else:
        limits = [cp.max(np.log(x) - centre) - cp.min(np.log(x) - centre) <= radius for x in p]
    least = cp.Problem(cp.Minimize(radius), limits).solve(solver=cp.CLARABEL)
    assert least - 1e-6 <= found <= 1.03 * least


@pytest.mark.parametrize("name", METRICS)
def test_points_that_differ_by_rounding_are_one(name: str) -> None:
    near = np.array([[0.2, 0.3, 0.5]]).repeat(5, 0) + 1e-16 * np.random.default_rng(0).normal(size=(5, 3))
    labels, centres = simplex.cluster(near, 3, simplex.METRICS[name])
    assert labels.tolist() == [0] * 5
    np.testing.assert_allclose(centres, near[:1], atol=1e-12)


def test_no_more_clusters_than_distinct_points() -> None:
    p = np.array([[0.5, 0.5], [0.9, 0.1], [0.5, 0.5], [1.0, 0.0]])
    labels, centres = simplex.cluster(p, 10, simplex.METRICS["hilbert"])
    assert len(centres) == 3
    assert labels[0] == labels[2]
    np.testing.assert_allclose(centres[labels], p, atol=1e-8)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("seed", range(2))
def test_clusters_by_loops(name: str, seed: int) -> None:
    """Seeds by farthest-first traversal from the middle, then centres of what is nearest, until nothing moves."""
    metric, p = simplex.METRICS[name], points(13, 3, seed)
    p[:2] = [[1.0, 0.0, 0.0], [0.0, 0.4, 0.6]]

    def apart(x: np.ndarray, y: np.ndarray) -> float:
        logs = [math.log(a / b) for a, b in zip(x, y, strict=True)]
        return max(logs) - min(logs) if name == "hilbert" else sum(abs(a - b) for a, b in zip(x, y, strict=True))

    inside = [np.array([max(value, 1e-9) for value in x]) for x in p]
    inside = [x / sum(x) for x in inside]
    ranked = sorted(range(13), key=lambda k: tuple(reversed(inside[k])))  # ties and sums do not depend on the order
    middle = simplex.enclosing_centre(np.stack([inside[k] for k in ranked]), metric)
    seeds = [min(ranked, key=lambda k: apart(inside[k], middle))]
    while len(seeds) < 4:
        seeds.append(max(ranked, key=lambda k: min(apart(inside[k], inside[s]) for s in seeds)))
    centres, labels = [inside[k] for k in seeds], [-1] * 13
    for _ in range(50):
        nearest = [min(range(len(centres)), key=lambda c: apart(x, centres[c])) for x in inside]
        if nearest == labels:
            break
        labels = nearest
        members = [[inside[k] for k in ranked if labels[k] == c] for c in range(len(centres))]
        centres = [simplex.enclosing_centre(np.stack(own), metric) for own in members if own]
    found, ends = simplex.cluster(p, 4, metric)
    assert found.tolist() == labels
    np.testing.assert_allclose(ends, np.stack(centres), atol=1e-12)
    assert len(simplex.cluster(p, 13, metric)[1]) == 13


def test_attention_by_hand() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 2.0], [4.0, -3.0]], dtype=torch.float64)
    e = [np.exp(2 * c) for c in (0.8, 0.0, -0.6)]  # pairs 01, 02, 12
    expected = [
        [0.3, 0.7 * e[0] / (e[0] + e[1]), 0.7 * e[1] / (e[0] + e[1])],
        [0.7 * e[0] / (e[0] + e[2]), 0.3, 0.7 * e[2] / (e[0] + e[2])],
        [0.7 * e[1] / (e[1] + e[2]), 0.7 * e[2] / (e[1] + e[2]), 0.3],
    ]
    assert close(FedAMP(sigma=2.0).attend(rows), torch.tensor(expected, dtype=torch.float64))
    sigma, alpha = 20.0, 5.0
    found = FedAMP(attention="distance", sigma=sigma, alpha=alpha).attend(rows)
    others = {(0, 1): 13.0, (0, 2): 50.0, (1, 2): 41.0}
    for (i, j), squared in others.items():
        xi = alpha / sigma * np.exp(-squared / sigma)
        assert [float(found[i, j]), float(found[j, i])] == pytest.approx([xi, xi])
    assert found.sum(1).tolist() == pytest.approx([1.0] * 3)
    greedy = FedAMP(attention="distance", sigma=sigma, alpha=1e4).attend(rows)
    assert greedy.diagonal().tolist() == [0.0] * 3
    assert greedy.sum(1).tolist() == pytest.approx([1.0] * 3)


def validated(sizes: tuple[int, ...] = FOUR, empty: tuple[int, ...] = ()) -> Federation:
    """Clients with three validation samples, but for those in `empty`."""
    data = federation(sizes)
    held = [data.sets["val"][k].numpy()[: 0 if k in empty else 3] for k in range(len(sizes))]
    data.sets["val"] = Ragged.of(held, data.device)
    return data


@pytest.mark.parametrize("baseline", ["trained", "before"])
def test_stacked_fedfomo_reads_the_same_validation_samples(baseline: str) -> None:
    method = FedFomo(M=2, baseline=baseline)
    chosen = setup(method, validated(empty=(1, 3)), rounds=3, cohort=0.75)
    data = chosen.federation
    assert torch.equal(data.validation_indices(1), data.indices("train", 1)), "it has no others"
    looped, stacked = simulate(chosen), simulate(chosen, StackedTrainer(chosen, 3))
    assert close(looped.server, stacked.server)
    assert close(looped.memory, stacked.memory)
    full = setup(method, validated(), rounds=3, cohort=0.75)
    assert gap(simulate(full).server, looped.server) > 1e-6


@pytest.mark.parametrize("baseline", ["trained", "before"])
def test_a_lone_client_is_local_and_a_client_takes_nothing_from_worse_models(baseline: str) -> None:
    method = FedFomo(baseline=baseline)
    assert close(final(method, (9,)), final(Local(), (9,)))
    labels = [[0], [1], [2], [3]]  # nobody's model helps on another's only class
    chosen, local = (setup(each, federation(FOUR, labels=labels), rounds=3, epochs=8) for each in (method, Local()))
    state = simulate(chosen)
    assert close(models(chosen, state), models(local, simulate(local)))
    assert float(state.server["P"].max()) <= 0


def test_what_fedfomo_takes_from_others_with_private_leaves_and_from_its_own_copies() -> None:
    """Others' models have the head that the client trained last, a copy of its own counts once; none better: theta_i.

    Candidates are another's body, a copy of the client's own, and its own.
    """
    method = FedFomo(M=2, private=("@head",), baseline="before")
    chosen = setup(method, federation(FOUR))
    task, (x, y) = chosen.task, chosen.federation.gather(chosen.federation.validation_indices(1))
    drawn = [task.init(torch.Generator().manual_seed(seed)) for seed in range(3)]
    head = task.select(drawn[0], ["@head"])

    def loss(model: Tree) -> float:
        return float(torch.nn.functional.cross_entropy(task.apply(model, x), y))

    def begun(before: Tree, own: Tree, body: Tree) -> Tree:
        peers = {n: torch.stack([body[n], own[n]]) for n in body if n not in head}
        message = {**trees.join(peer=peers), "reported/peers": torch.tensor([0, 1])}
        memory = {**own, **trees.join(before=before)}
        return method.start(chosen.client(1, message, memory, Clock(1, 3)))

    ranked = sorted(({n: v.double() for n, v in each.items()} for each in drawn), key=loss, reverse=True)
    for before, own, body in ((ranked[0], ranked[1], ranked[2]), (ranked[2], ranked[0], ranked[1])):
        mixed = {**body, **{n: own[n] for n in head}}
        weights = []
        for each in (mixed, own):
            apart = math.sqrt(sum(float((each[n] - before[n]).square().sum()) for n in before))
            weights.append((loss(before) - loss(each)) / apart)
        positive = [max(0.0, each) for each in weights]
        first, second = (each / (sum(positive) or 1.0) for each in positive)
        expected = {n: v + first * (mixed[n] - v) + second * (own[n] - v) for n, v in before.items()}
        found = begun(before, own, body)
        assert close(trees.plain(found), expected)
        assert close(trees.part(found, "before"), expected)
        assert found["reported/weights"].tolist() == pytest.approx([weights[0], 0.0])
        assert (positive[1] > 0) is (before is ranked[0])


def test_fedfomos_graph_by_loops() -> None:
    """A row of P without what is negative, its sum one; the identity's where nothing is positive."""
    P = torch.tensor([[0.2, -1.0, 0.6, 0.0], [-1, -1, 0, -3], [5, 0, 0, 15], [0, 1e-3, -2, 0]], dtype=torch.float64)
    chosen = setup(FedFomo(M=2), federation(FOUR))
    found = chosen.method.collaboration({"P": P}, chosen.population)
    assert found is not None
    expected = [[0.25, 0, 0.75, 0], [0, 1, 0, 0], [0.25, 0, 0, 0.75], [0, 1, 0, 0]]
    assert close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(("corners", "points"), [(1, 5), (2, 7), (3, 6), (3, 9), (3, 10), (4, 20)])
def test_a_grid_has_as_many_points_as_are_allowed(corners: int, points: int) -> None:
    """The compositions of the largest whole number that gives no more, in the middle of their cells."""
    R = max(r for r in range(points + 1) if math.comb(r + corners - 1, corners - 1) <= points) if corners > 1 else 0
    every = itertools.product(range(R + 1), repeat=corners)
    expected = sorted([(c + 1 / corners) / (R + 1) for c in each] for each in every if sum(each) == R)
    assert sorted(simplex.grid(corners, points).tolist()) == [pytest.approx(each) for each in expected]
