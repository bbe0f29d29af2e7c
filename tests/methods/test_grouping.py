"""Points in groups: k-means and single linkage against oracles."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sklearn.cluster import KMeans as ScikitKMeans

from fedbench.methods import cfl
from fedbench.methods.parts import clustered
from tests.methods.toys import same_groups


def test_coordinates_keep_distances() -> None:
    points = np.random.default_rng(0).normal(size=(7, 300))
    found = clustered.isometric_coordinates(points)
    assert found.shape == (7, 7)
    for x in (0, 3):
        expected = np.linalg.norm(points - points[x], axis=1)
        np.testing.assert_allclose(np.linalg.norm(found - found[x], axis=1), expected, atol=1e-9)


def inertia(points: np.ndarray, labels: np.ndarray) -> float:
    return sum(float(((own := points[labels == k]) - own.mean(0)).__pow__(2).sum()) for k in set(labels))


@pytest.mark.parametrize("seed", range(5))
def test_kmeans_is_as_good_as_scikit_learn(seed: int) -> None:
    generator = np.random.default_rng(seed)
    points = generator.normal(size=(40, 3)) + 2 * generator.integers(0, 3, (40, 1))
    labels = clustered.kmeans(points, 4)
    assert inertia(points, labels) <= ScikitKMeans(4, n_init=50, random_state=0).fit(points).inertia_ * 1.02
    order = generator.permutation(40)
    assert same_groups(clustered.kmeans(points[order], 4), labels[order])


def test_kmeans_of_fewer_points_than_groups() -> None:
    assert sorted(clustered.kmeans(np.array([[0.0], [5.0]]), 4).tolist()) == [0, 1]
    assert clustered.kmeans(np.ones((3, 2)), 2).tolist() == [0, 0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_single_linkage_is_the_optimal_bipartition(seed: int) -> None:
    """No bipartition has a smaller largest similarity across; complete linkage can be worse."""
    vectors = np.random.default_rng(seed).normal(size=(6, 3))
    similarity = cfl.cosines(vectors)
    np.testing.assert_allclose(similarity[0, 1], vectors[0] @ vectors[1] / np.prod(np.linalg.norm(vectors[:2], axis=1)))
    best = min(
        similarity[np.ix_(side, ~side)].max()
        for bits in itertools.product([False, True], repeat=5)
        if any(side := np.array([False, *bits]))
    )
    side, across = cfl.bipartition(similarity, "single")
    assert across == pytest.approx(best)
    assert across == pytest.approx(similarity[np.ix_(side, ~side)].max())
    assert cfl.bipartition(similarity, "complete")[1] >= best - 1e-12


def test_ties_are_cut_too() -> None:
    side, across = cfl.bipartition(np.ones((4, 4)), "single")
    assert 0 < side.sum() < 4
    assert across == 1
