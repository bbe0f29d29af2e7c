"""FedPAC: weights against CVXPY."""

from __future__ import annotations

import cvxpy
import numpy as np
import pytest
import torch

from fedbench.methods import fedpac
from fedbench.methods.fedpac import minimise_on_simplex
from tests.helpers.tiers import sampled
from tests.methods.toys import (
    close,
)


def by_cvxpy(Q: np.ndarray) -> np.ndarray:
    x = cvxpy.Variable(len(Q))
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.quad_form(x, cvxpy.psd_wrap(Q))), [cvxpy.sum(x) == 1, x >= 0])
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return np.asarray(x.value)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("count", sampled([1, 2, 7, 20], every=2))
def test_the_simplex_qp_is_cvxpys(count: int, scale: float) -> None:
    generator = np.random.default_rng(count)
    problems = []
    for rank in (count, max(1, count // 2)):
        root = generator.normal(size=(count, rank)) + generator.normal(size=rank)
        problems.append(scale * (root @ root.T + np.diag(generator.uniform(0.001, 0.1, count))))
    found = minimise_on_simplex(torch.from_numpy(np.stack(problems)))
    assert float(found.min()) >= 0
    assert close(found.sum(1), torch.ones(2, dtype=torch.float64), 1e-12)
    for row, Q in zip(found.numpy(), problems, strict=True):
        assert row == pytest.approx(by_cvxpy(Q), abs=1e-5)
        slope = Q @ row  # optimality: the objective's slope is least, and equal, where there is weight
        assert np.all(slope >= row @ Q @ row - 1e-9 * np.abs(Q).max())


def test_the_simplex_qp_without_a_unique_solution_treats_all_alike() -> None:
    for Q in (torch.zeros(1, 3, 3), torch.ones(1, 3, 3)):
        assert minimise_on_simplex(Q)[0].tolist() == pytest.approx([1 / 3] * 3, abs=1e-9)


def test_fedpacs_weights_are_cvxpys_on_its_definition() -> None:
    generator = np.random.default_rng(0)
    h, V = generator.normal(size=(6, 3, 5)) / 4, generator.uniform(0.01, 0.5, 6)
    found = fedpac.weights(torch.from_numpy(h), torch.from_numpy(V)).numpy()
    for i in range(6):
        G = np.array([[((h[i] - h[j]) * (h[i] - h[m])).sum() for m in range(6)] for j in range(6)])
        assert found[i] == pytest.approx(by_cvxpy(G + np.diag(V)), abs=1e-5)
    same = fedpac.weights(torch.ones(4, 3, 5), torch.tensor([0.1, 0.1, 0.2, 0.4])).numpy()
    assert same == pytest.approx(np.tile(np.array([4, 4, 2, 1]) / 11, (4, 1)), abs=1e-8)  # inverse variances
    order = [3, 1, 5, 0, 2, 4]
    again = fedpac.weights(torch.from_numpy(h[order]), torch.from_numpy(V[order])).numpy()
    assert again == pytest.approx(found[np.ix_(order, order)], abs=1e-8)
