"""Points of the probability simplex that minimise a quadratic, for many rows: in closed form, or by a solver.

The rows of pFedGraph's and FedSaC's W minimise |w - p|^2 + c^T w over the simplex. That is the projection of p - c / 2
on it, so no solver is needed; `solver` "cvxpy" states the problem as the papers print it and solves it row by row.

Held, Wolfe & Crowder (1974); Duchi et al., ICML 2008: with v sorted in descending order and
rho = max {j : v_(j) - (sum_{i <= j} v_(i) - 1) / j > 0}, the projection is max(v - tau, 0),
tau = (sum_{i <= rho} v_(i) - 1) / rho.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedbench.core.errors import FedbenchError
from fedbench.core.transfer import sent

SOLVERS = ("closed", "cvxpy")
PRECISE = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}  # W is then right to 1e-6


def closest(p: Tensor, cost: Tensor, allowed: Tensor | None = None, solver: str = "closed") -> Tensor:
    """The points w of the simplex that minimise |w - p|^2 + cost^T w, rows [R, n] in float64.

    Args:
        p: [n], or one a row [R, n].
        cost: [R, n].
        allowed: bool [R, n], at least one a row: the other entries of the result are zero.
        solver: "closed" or "cvxpy"; they agree to 1e-6.

    Raises:
        FedbenchError: cvxpy finds no solution.
    """
    if solver == "closed":
        return project(p - cost / 2, allowed)
    return _by_cvxpy(p.expand_as(cost), cost, torch.ones_like(cost) if allowed is None else allowed)


def _by_cvxpy(p: Tensor, cost: Tensor, most: Tensor) -> Tensor:
    """Row by row, entries at most those of `most`."""
    import cvxpy

    count = cost.shape[1]
    w, (centre, linear, bound) = cvxpy.Variable(count), (cvxpy.Parameter(count) for _ in range(3))
    objective = cvxpy.Minimize(cvxpy.sum_squares(w - centre) + linear @ w)
    problem = cvxpy.Problem(objective, [w >= 0, w <= bound, cvxpy.sum(w) == 1])
    rows = []
    for row in torch.stack([p, cost, most.to(cost)], 1).double().cpu().numpy():
        centre.value, linear.value, bound.value = row
        problem.solve(solver=cvxpy.CLARABEL, **PRECISE)
        if problem.status != cvxpy.OPTIMAL:
            raise FedbenchError(f"cvxpy finds no row of W ({problem.status}); try method.solver=closed")
        rows.append(torch.from_numpy(w.value))
    found = sent(torch.stack(rows), cost.device).clamp(min=0) * most
    return found / found.sum(-1, keepdim=True)


def project(rows: Tensor, allowed: Tensor | None = None) -> Tensor:
    """The nearest points of the simplex to `rows` [R, n], in float64.

    `allowed` (bool [R, n], at least one a row): the other entries of the result are zero.
    """
    v = rows.to(torch.float64)
    if allowed is not None:
        v = v.masked_fill(~allowed, -torch.inf)
    ordered = v.sort(dim=-1, descending=True).values
    real = ordered.isfinite()
    above = ordered.masked_fill(~real, 0).cumsum(-1) - 1
    rank = torch.arange(1, v.shape[-1] + 1, dtype=torch.float64, device=v.device)
    support = (real & (ordered * rank > above)).sum(-1, keepdim=True)
    tau = above.gather(-1, support - 1) / support
    found = (v - tau).clamp(min=0)
    return found / found.sum(-1, keepdim=True)
