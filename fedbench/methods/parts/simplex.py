"""Euclidean projection of rows onto the probability simplex, all rows at once and in closed form.

Held, Wolfe & Crowder (1974); Duchi et al., ICML 2008: with v sorted in descending order and
rho = max {j : v_(j) - (sum_{i <= j} v_(i) - 1) / j > 0}, the projection is max(v - tau, 0),
tau = (sum_{i <= rho} v_(i) - 1) / rho. So min_x |x|^2 + q^T x on the simplex is the projection of -q / 2: the row
problems of pFedGraph and FedSaC need no solver.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
