"""The graph of FedSaC and pFedGraph: rows of W against a solver."""

from __future__ import annotations

import dataclasses

import cvxpy
import numpy as np
import pytest
import scipy.linalg
import torch

from fedbench.core import rng, trees
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock, Cohort
from fedbench.engine.setup import Setup
from fedbench.methods.fedsac import FedSaC
from fedbench.methods.pfedgraph import PFedGraph
from tests.methods.toys import FOUR, bases, close, federation, gap, initial, setup


def uploaded(chosen: Setup, seed: int = 0) -> Tree:
    """Random models and bases of all clients."""
    generator = rng.torch_rng(seed, "test")
    start = initial(chosen)
    drawn = {k: v + 0.3 * torch.randn(4, *v.shape, generator=generator).double() for k, v in start.items()}
    return {**drawn, "subspace/U": bases(4, 7, 3, seed)}


def started(chosen: Setup) -> Tree:
    """What the server holds for S."""
    return trees.join(initial=initial(chosen))


def cohort(chosen: Setup, at: int = 0) -> Cohort:
    return chosen.cohort(torch.arange(4), Clock(at, 10))


def solved(linear: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Rows minimising |W_i - p|^2 + linear_i^T W_i over the simplex."""
    rows = []
    for cost in linear:
        x = cvxpy.Variable(len(p))
        objective = cvxpy.Minimize(cvxpy.sum_squares(x - p) + cost @ x)
        cvxpy.Problem(objective, [x >= 0, cvxpy.sum(x) == 1]).solve(solver="CLARABEL")
        rows.append(x.value)
    return np.array(rows)


def by_loops(chosen: Setup, uploads: Tree, since: Tree | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(S, C) of uploads, pair by pair."""
    names = [k for k in uploads if "/" not in k]
    rows = [
        np.concatenate([(uploads[k][i] - (0 if since is None else since[k])).flatten().numpy() for k in names])
        for i in range(4)
    ]
    S, C = np.eye(4), np.eye(4)
    for i in range(4):
        for j in range(4):
            if i != j:
                S[i, j] = rows[i] @ rows[j] / np.linalg.norm(rows[i]) / np.linalg.norm(rows[j])
                U, V = uploads["subspace/U"][i].numpy(), uploads["subspace/U"][j].numpy()
                C[i, j] = np.cos(scipy.linalg.subspace_angles(U, V).mean())
    return S, C


@pytest.mark.parametrize(("alpha", "beta"), [(0.9, 1.4), (0.5, 1.6), (0.0, 1.4), (0.9, 0.0)])
def test_rows_of_w_are_the_solvers(alpha: float, beta: float) -> None:
    chosen = setup(FedSaC(alpha=alpha, beta=beta, similarity="parameters", snap=None), federation(FOUR))
    uploads = uploaded(chosen)
    found = chosen.method.graph(started(chosen), uploads, cohort(chosen))["*"].numpy()  # type: ignore[attr-defined]
    S, C = by_loops(chosen, uploads)
    np.testing.assert_allclose(found, solved(alpha * C - beta * S, np.array(FOUR) / sum(FOUR)), atol=1e-5)


def test_pfedgraphs_rows_are_the_solvers() -> None:
    chosen = setup(PFedGraph(alpha=0.8, snap=None), federation(FOUR))
    uploads, start = uploaded(chosen), initial(chosen)
    server = trees.join(initial=start)
    found = chosen.method.graph(server, uploads, cohort(chosen))["*"].numpy()  # type: ignore[attr-defined]
    S, _ = by_loops(chosen, uploads, start)
    np.testing.assert_allclose(found, solved(-S / 0.8, np.array(FOUR) / sum(FOUR)), atol=1e-5)
    snapped = PFedGraph(snap=-0.5).similarities(server, uploads, cohort(chosen))
    assert bool((snapped == 1).all())


@pytest.mark.parametrize("method", [FedSaC(), FedSaC(collaborators=2), PFedGraph()], ids=repr)
def test_the_printed_programme_gives_the_closed_forms_w(method: FedSaC | PFedGraph) -> None:
    chosen = setup(method, federation(FOUR))
    uploads, server = uploaded(chosen), started(chosen)
    closed, solved = (
        dataclasses.replace(method, solver=solver).graph(server, uploads, cohort(chosen))["*"]
        for solver in ("closed", "cvxpy")
    )
    assert close(solved, closed, 1e-6)
    assert not torch.equal(solved, closed), "it was solved otherwise"


def test_complementarity_counts_in_the_first_seven_tenths_of_the_rounds() -> None:
    chosen = setup(FedSaC(), federation(FOUR))
    uploads = uploaded(chosen)
    early, last, after, similarity = (
        method.graph(started(chosen), uploads, cohort(chosen, at))["*"]
        for method, at in ((FedSaC(), 0), (FedSaC(), 6), (FedSaC(), 7), (FedSaC(alpha=0.0), 0))
    )
    assert torch.equal(early, last)
    assert torch.equal(after, similarity)
    assert gap({"": early}, {"": after}) > 1e-2
    assert torch.equal(FedSaC(alpha_share=1.0).graph(started(chosen), uploads, cohort(chosen, 9))["*"], early)


def test_clients_mix_with_the_drawn_and_themselves() -> None:
    chosen = setup(FedSaC(collaborators=2, beta=0.0, alpha=0.0), federation(FOUR))
    weights = chosen.method.graph(started(chosen), uploaded(chosen), cohort(chosen))["*"]  # type: ignore[attr-defined]
    drawn = [j for j in range(4) if bool((weights[:, j] > 0).all())]
    assert len(drawn) == 2
    for i in range(4):
        allowed = sorted({*drawn, i})
        total = sum(FOUR[j] for j in allowed)
        assert weights[i].tolist() == pytest.approx([FOUR[j] / total * (j in allowed) for j in range(4)])
    again = chosen.method.graph(started(chosen), uploaded(chosen), cohort(chosen))["*"]  # type: ignore[attr-defined]
    assert torch.equal(weights, again)
