"""FedPAC: weights against CVXPY, limits, rounds computed by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.engine.contract import Clock
from fedbench.methods import fedpac
from fedbench.methods.fedpac import FedPAC, minimise_on_simplex
from fedbench.methods.fedrep import FedRep
from tests.methods.toys import (
    BODY,
    HEAD,
    ONE_STEP,
    close,
    cross_entropy,
    descend,
    features,
    federation,
    gap,
    initial,
    logits,
    models,
    samples,
    setup,
    simulate,
)


def by_cvxpy(Q: np.ndarray) -> np.ndarray:
    x = cvxpy.Variable(len(Q))
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.quad_form(x, cvxpy.psd_wrap(Q))), [cvxpy.sum(x) == 1, x >= 0])
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return np.asarray(x.value)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("count", [1, 2, 7, 20])
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


def test_alone_and_unaligned_fedpac_is_fedrep() -> None:
    data = federation((6, 13, 4))
    options: dict[str, Any] = {"rounds": 3, "epochs": 2, "cohort": 2}
    method = FedPAC(lam=0.0, classifier_lr=0.1, collaborate=False)
    fedpac_run = setup(method, data, **options)
    fedrep_run = setup(FedRep(head_epochs=1, body_epochs=2), data, **options)
    one, other = simulate(fedpac_run), simulate(fedrep_run)
    found = models(fedpac_run, one)
    assert close(found, models(fedrep_run, other))
    together = setup(FedPAC(lam=0.0), data, **options)
    assert gap(models(together, simulate(together)), found) > 1e-3


def aligned(x: Tensor, y: Tensor, lam: float, centroids: dict[int, Tensor], w: trees.Tree) -> Tensor:
    pulls = [
        (features(w, x[i : i + 1])[0] - centroids[int(label)]).square().mean()
        for i, label in enumerate(y)
        if int(label) in centroids
    ]
    return cross_entropy(logits(w, x), y) + lam * sum(pulls, torch.zeros(())) / len(y)


def test_two_rounds_of_fedpac_by_hand() -> None:
    lr, fast, lam = 0.2, 0.4, 3.0
    options = {**ONE_STEP, "rounds": 2}
    method = FedPAC(lam=lam, classifier_lr=fast)
    chosen = setup(method, federation((5, 9), labels=[[0, 1], [1, 2]]), **options)
    w = initial(chosen)
    body, heads = {k: w[k] for k in BODY}, [{k: w[k] for k in HEAD}] * 2
    centroids: dict[int, Tensor] = {}
    data = [samples(chosen, k) for k in (0, 1)]
    for _ in range(2):
        trained, h, V = [], [], []
        for (x, y), head in zip(data, heads, strict=True):
            w = {**body, **head}
            z = features(w, x)
            rows = [z[y == c].mean(0) * (y == c).double().mean() for c in range(4) if bool((y == c).any())]
            means = torch.zeros(4, 7, dtype=torch.float64)
            means[torch.unique(y)] = torch.stack(rows)
            h.append(means.numpy())
            V.append((float(z.square().sum(1).mean()) - float(means.square().sum())) / len(y))
            w = descend(lambda v, x=x, y=y: cross_entropy(logits(v, x), y), w, fast, ["head"])
            trained.append(descend(partial(aligned, x, y, lam, dict(centroids)), w, lr, ["fc"]))
        for c in range(3):
            of_class = [features(w, x)[y == c] for w, (x, y) in zip(trained, data, strict=True)]
            centroids = {**centroids, c: torch.cat(of_class).mean(0)}
        W = []
        for i in (0, 1):
            G = np.array([[((h[i] - h[j]) * (h[i] - h[m])).sum() for m in (0, 1)] for j in (0, 1)])
            W.append(by_cvxpy(G + np.diag(V)))
        heads = [{k: W[i][0] * trained[0][k] + W[i][1] * trained[1][k] for k in HEAD} for i in (0, 1)]
        body = {k: (5 * trained[0][k] + 9 * trained[1][k]) / 14 for k in BODY}
    state = simulate(chosen)
    assert close(trees.part(state.server, "body"), body, 1e-6)
    assert close(trees.part(state.server, "heads"), trees.stack(heads), 1e-5)
    assert close(state.server["W"], torch.from_numpy(np.stack(W)), 1e-5)
    assert 0.01 < float(state.server["W"][0, 1]) < 0.99
    assert state.server["seen"].tolist() == [True, True, True, False]
    assert close(state.server["centroids"][:3], torch.stack([centroids[c] for c in range(3)]), 1e-6)


def test_absent_clients_keep_their_classifier_and_their_row_of_w() -> None:
    chosen = setup(FedPAC(), rounds=1, cohort=0.6)
    state = simulate(chosen)
    ids = chosen.draw_cohort(Clock(0, 1)).tolist()
    absent = [k for k in range(5) if k not in ids]
    start = initial(chosen)
    for k in absent:
        assert close(trees.row(trees.part(state.server, "heads"), k), {n: start[n] for n in HEAD}, 0)
        assert state.server["W"][k].tolist() == [float(j == k) for j in range(5)]
    assert float(state.server["W"][ids][:, absent].abs().sum()) == 0
