"""min 1/2 x^T Q x over the probability simplex, for a batch of positive semidefinite Q, by an interior-point method."""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 60  # Newton steps; each shrinks the gap about tenfold, so most are no-ops at float64's limit
CENTRING = 0.1  # sigma, how much of the gap a step leaves
TO_BOUNDARY = 0.99  # share of the way to the nearest bound that a step may go
SMALLEST_GAP = 1e-13  # duality gap at which a problem is solved, Q scaled to 1


def minimise(Q: Tensor) -> Tensor:
    """Solutions [R, C], rows on the simplex, for symmetric positive semidefinite Q [R, C, C].

    Primal-dual path following (Nocedal & Wright, Numerical Optimization, Section 16.6) on the optimality conditions
    Q x - lambda 1 - s = 0, sum(x) = 1, x s = 0, x and s >= 0. Where the minimiser is not unique, its centre is found,
    so that the result does not depend on the order of the variables.
    """
    Q = Q.double()
    rows, count, _ = Q.shape
    Q = Q / Q.abs().amax((1, 2), keepdim=True).clamp(min=torch.finfo(Q.dtype).tiny)
    x = torch.full((rows, count), 1 / count, dtype=Q.dtype, device=Q.device)
    s = torch.ones_like(x)
    level = torch.zeros(rows, 1, dtype=Q.dtype, device=Q.device)  # lambda
    for _ in range(STEPS):
        gap = (x * s).mean(1, keepdim=True)
        open_ = gap > SMALLEST_GAP
        if not bool(open_.any()):
            break
        dx, ds, dlevel = _newton(Q, x, s, level, CENTRING * gap)
        step = torch.minimum(_room(x, dx), _room(s, ds)) * open_
        x, s, level = x + step * dx, s + step * ds, level + step * dlevel
    return x / x.sum(1, keepdim=True)


def _newton(Q: Tensor, x: Tensor, s: Tensor, level: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The step towards x s = target."""
    dual = (Q @ x.unsqueeze(2)).squeeze(2) - level - s
    complement = x * s - target
    matrix = Q + torch.diag_embed(s / x)
    right = torch.stack([-dual - complement / x, torch.ones_like(x)], dim=2)
    free, per_level = torch.linalg.solve(matrix, right).unbind(2)
    dlevel = (1 - x.sum(1, keepdim=True) - free.sum(1, keepdim=True)) / per_level.sum(1, keepdim=True)
    dx = free + dlevel * per_level
    return dx, -(complement + s * dx) / x, dlevel


def _room(value: Tensor, step: Tensor) -> Tensor:
    """Largest share of `step`, at most one, that keeps `value` positive, [R, 1]."""
    limits = torch.where(step < 0, -TO_BOUNDARY * value / step, torch.ones_like(value))
    return limits.amin(1, keepdim=True).clamp(max=1.0)
