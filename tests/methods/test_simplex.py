"""Hilbert's geometry of the simplex, and clusters in it, against oracles."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from fedbench.methods.parts import simplex

METRICS = sorted(simplex.METRICS)


def points(count: int, corners: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(corners), count)


def test_hilbert_distance_by_hand() -> None:
    p, q = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    assert simplex.hilbert(p, q) == pytest.approx(np.log(2 / (2 / 3)))


@pytest.mark.parametrize("name", METRICS)
def test_distances_are_metrics(name: str) -> None:
    distance = simplex.METRICS[name].distance
    p = points(40, 4)
    table = distance(p[:, None], p[None])
    np.testing.assert_allclose(table, table.T, atol=1e-12)
    np.testing.assert_allclose(np.diag(table), 0, atol=1e-12)
    assert (table + np.eye(40) > 1e-6).all()
    assert (table[:, None, :] <= table[:, :, None] + table[None] + 1e-12).all()


def test_hilbert_distance_is_projective() -> None:
    """Scaling coordinates by positive numbers is an isometry of the simplex."""
    p, q = points(20, 5), points(20, 5, seed=1)
    w = np.array([0.1, 3.0, 1.0, 0.5, 7.0])
    moved = [(x * w) / (x * w).sum(1, keepdims=True) for x in (p, q)]
    np.testing.assert_allclose(simplex.hilbert(*moved), simplex.hilbert(p, q))


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
def test_planted_clusters_are_found_in_any_order(name: str) -> None:
    rng = np.random.default_rng(0)
    planted = np.repeat([0, 1, 2], 7)
    tops = np.array([[8, 1, 1], [1, 8, 1], [2, 1, 7]])
    p = np.stack([rng.dirichlet(30 * tops[g]) for g in planted])
    labels, centres = simplex.cluster(p, 3, simplex.METRICS[name])
    assert len({(a, b) for a, b in zip(planted, labels, strict=True)}) == 3
    assert centres[labels].argmax(1).tolist() == tops[planted].argmax(1).tolist()
    order = rng.permutation(21)
    permuted, same = simplex.cluster(p[order], 3, simplex.METRICS[name])
    assert permuted.tolist() == labels[order].tolist()
    np.testing.assert_array_equal(same, centres)


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
