"""SosicFL's positions of clients in the simplex and the regions around them."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.decomposition import PCA, LatentDirichletAllocation

from fedbench.methods.parts import simplex
from tests.methods.toys import close

# ---- positions


def planted_counts(shares: np.ndarray, seed: int = 0) -> np.ndarray:
    """Label counts of clients that mix two topics, labels 0-4 and 5-9."""
    rng = np.random.default_rng(seed)
    topics = np.array([[0.2] * 5 + [0.0] * 5, [0.0] * 5 + [0.2] * 5])
    return np.stack([rng.multinomial(500, share @ topics) for share in shares]).astype(float)


def test_topics_are_the_planted_mixtures() -> None:
    shares = np.array([[1 - s, s] for s in np.linspace(0, 1, 21)])
    counts = planted_counts(shares)
    found = simplex.topics(counts, 2, seed=5)
    oracle = LatentDirichletAllocation(2, learning_method="batch", max_iter=300, random_state=1).fit_transform(counts)
    for other, tolerance in ((shares, 0.06), (oracle, 0.01)):
        assert min(np.abs(found - other).max(), np.abs(found - other[:, ::-1]).max()) < tolerance
    order = np.random.default_rng(1).permutation(21)
    np.testing.assert_array_equal(simplex.topics(counts[order], 2, seed=5), found[order])


def test_clients_of_a_fold_lie_together() -> None:
    counts = planted_counts(np.array([[0.8, 0.2]] * 5 + [[0.2, 0.8]] * 5))
    labels, _ = simplex.cluster(simplex.topics(counts, 2, seed=0), 2, simplex.METRICS["hilbert"])
    assert labels.tolist() in ([0] * 5 + [1] * 5, [1] * 5 + [0] * 5)


def test_projection_is_the_nearest_point_of_the_simplex() -> None:
    free = np.random.default_rng(0).normal(0, 1, (6, 4))
    found = simplex.project(free)
    for row, point in zip(free, found, strict=True):
        x = cp.Variable(4)
        cp.Problem(cp.Minimize(cp.sum_squares(x - row)), [x >= 0, cp.sum(x) == 1]).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(point, x.value, atol=1e-5)


def test_heads_positions_are_the_projected_components_of_least_energy() -> None:
    """As the authors' code writes it: sizes of the simplex one by one, the logarithm of the energy of all pairs."""
    heads = np.random.default_rng(0).normal(size=(8, 30))
    scores = PCA(3, svd_solver="full").fit_transform(heads)
    best, least = scores, np.inf
    for size in np.linspace(1e-4, 1, 1000):
        points = simplex.project(scores / size) * size
        points /= points.sum(1, keepdims=True)
        apart = np.sqrt(((points[:, None] - points[None]) ** 2).sum(2))[np.triu_indices(8, 1)]
        energy = np.log((1 / np.maximum(apart, 1e-4) ** 2).sum()) - np.log(28)
        if energy < least:
            best, least = points, energy
    np.testing.assert_allclose(simplex.spread_scores(heads, 3), best, atol=1e-8)
    np.testing.assert_allclose(simplex.spread_scores(heads[:1], 3), 1 / 3)
    near = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
    assert simplex.riesz_energy(near) == pytest.approx((1e8 + 2 + 2) / 3)


# ---- regions


def test_mean_distance_by_integrals() -> None:
    for corners in (2, 3, 5):  # E ||e_1 - alpha||_1 = 2 (1 - E alpha_1)
        assert simplex.mean_distance(np.eye(corners)) == pytest.approx(2 * (1 - 1 / corners), rel=1e-6)
    assert simplex.mean_distance(np.array([[0.5, 0.5]])) == pytest.approx(0.5, rel=1e-3)
    assert simplex.mean_distance(np.full((1, 3), 1 / 3)) == pytest.approx(16 / 27, rel=5e-3)
    both = np.array([[1.0, 0.0], [0.5, 0.5]])
    assert simplex.mean_distance(both) == pytest.approx(0.75, rel=1e-3)


def test_grid_covers_the_simplex() -> None:
    for corners in (1, 2, 3, 4):
        grid = simplex.grid(corners, 2000)
        assert len(grid) <= 2000
        np.testing.assert_allclose(grid.sum(1), 1)
        assert (grid > 0).all()
        np.testing.assert_allclose(grid.mean(0), 1 / corners)
        if corners > 1:  # Var alpha_1 under the uniform distribution
            assert grid[:, 0].var() == pytest.approx((corners - 1) / corners**2 / (corners + 1), rel=0.2)


REGIONS = [
    ([0.5, 0.5], 0.3),
    ([1.0, 0.0], 0.8),
    ([1 / 3] * 3, 0.3),  # drawn from the ball
    ([0.9, 0.1, 0.0], 0.7),  # drawn from the corner
    ([0.5, 0.5, 0.0], 0.9),
    ([0.25] * 4, 0.8),
    ([0.7, 0.1, 0.1, 0.1], 2.0),  # all of the simplex
]


@pytest.mark.parametrize(("center", "radius"), REGIONS)
def test_draws_are_uniform_in_the_region(center: list[float], radius: float) -> None:
    """Against rejection from the whole simplex: each coordinate, the distance from the centre, second moments."""
    middle = np.array(center)
    drawn = simplex.uniform(4000, torch.tensor(center), radius, torch.Generator().manual_seed(1)).numpy()
    assert drawn.shape == (4000, len(center))
    np.testing.assert_allclose(drawn.sum(1), 1)
    assert drawn.min() >= 0
    assert np.abs(drawn - middle).sum(1).max() <= radius + 1e-6
    pool = np.random.default_rng(2).dirichlet(np.ones(len(center)), 300_000)
    pool = pool[np.abs(pool - middle).sum(1) <= radius]
    assert len(pool) > 3000
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(pool.T), atol=0.06 * np.cov(pool.T).max())
    for value in (*(lambda x, i=i: x[:, i] for i in range(len(center))), lambda x: np.abs(x - middle).sum(1)):
        assert stats.ks_2samp(value(drawn), value(pool)).pvalue > 1e-3


def test_draws_stay_cheap_and_inside_where_regions_are_small() -> None:
    for center in (torch.eye(10)[0], torch.full((10,), 0.1), torch.tensor([0.5, 0.5] + [0.0] * 8)):
        drawn = simplex.uniform(50, center, 0.2, torch.Generator().manual_seed(0))
        assert drawn.shape == (50, 10)
        assert float(drawn.min()) >= 0
        assert float((drawn - center).abs().sum(1).max()) <= 0.2 + 1e-6
    assert close(simplex.uniform(3, torch.tensor([0.3, 0.7]), 0.0, torch.Generator())[2], torch.tensor([0.3, 0.7]))


def test_the_code_s_draws_leave_the_simplex() -> None:
    center = torch.tensor([0.9, 0.1, 0.0], dtype=torch.float64)
    drawn = simplex.unprojected(2000, center, 0.4, torch.Generator().manual_seed(0))
    lengths = (drawn - center).abs().sum(1)
    assert float(lengths.max()) <= 0.4
    assert stats.kstest(lengths / 0.4, "uniform").pvalue > 1e-3
    assert float(drawn.min()) < 0
    assert float((drawn.sum(1) - 1).abs().max()) > 0.1
