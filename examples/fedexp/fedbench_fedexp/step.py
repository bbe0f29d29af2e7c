"""The server's step size, beside the method: a helper module of the same package counts in a result's code."""

from __future__ import annotations

import torch
from torch import Tensor


def extrapolated(updates: Tensor, shares: Tensor, epsilon: float) -> Tensor:
    """Return max(1, sum_i p_i ||Delta_i||^2 / (2 (||sum_i p_i Delta_i||^2 + epsilon))) of `updates` [C, P], a scalar.

    `shares` p [C] sum to one.
    """
    lengths, mean = shares @ updates.square().sum(1), (shares @ updates).square().sum()
    return (lengths / (2 * (mean + epsilon))).clamp(min=torch.ones_like(mean))
