"""Subregions of the simplex: L1 balls around centres, their radius, and uniform draws from them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]

GRID = 20_000  # most points of an integration grid
WHOLE = 2.0  # L1 diameter of a simplex: a ball of this radius around any point is all of it


def grid(corners: int, points: int = GRID) -> Array:
    """At most `points` evenly spaced points inside the simplex with `corners` corners, [G, n].

    The compositions of an integer R into n parts, each at the middle of its cell: (c_i + 1/n) / (R + 1).
    """
    total = 0
    while corners > 1 and math.comb(total + corners, corners - 1) <= points:
        total += 1
    parts = _compositions(total, corners)
    return (parts + 1 / corners) / (total + 1)


def _compositions(total: int, parts: int) -> Array:
    """All vectors of `parts` non-negative integers with sum `total`."""
    if parts == 1:
        return np.array([[total]], dtype=np.float64)
    blocks = []
    for first in range(total + 1):
        rest = _compositions(total - first, parts - 1)
        blocks.append(np.column_stack([np.full(len(rest), float(first)), rest]))
    return np.concatenate(blocks)


def mean_distance(centres: Array) -> float:
    """Mean L1 distance between `centres` [C, n] and all points of the simplex (delta-bar of Section 3.3)."""
    points = grid(centres.shape[1])
    return float(np.mean([np.abs(points - centre).sum(1).mean() for centre in centres]))


def uniform(count: int, centre: Tensor, radius: float, generator: torch.Generator) -> Tensor:
    """`count` points drawn uniformly from {x in the simplex: ||x - centre||_1 <= radius}, float64 [count, n].

    Exact, by rejection from the smaller of two sets that contain the region and are drawn from directly: the simplex
    {x_i >= centre_i - radius/2}, and the ball within the plane of the simplex. Near a corner the first is the region;
    far from the boundary the second is.
    """
    corners = len(centre)
    if corners == 1 or radius <= 0:
        return centre.to("cpu", torch.float64).expand(count, corners).clone()
    centre = centre.to("cpu", torch.float64)
    floor = (centre - radius / 2).clamp(min=0)
    simplex = float(1 - floor.sum()) ** (corners - 1)  # volumes, in units of the whole simplex's
    ball = math.comb(2 * corners - 2, corners - 1) * (radius / 2) ** (corners - 1)
    accepted: list[Tensor] = []
    found = 0
    while found < count:
        wanted = 2 * (count - found) + 16
        if simplex <= ball:
            points = floor + (1 - floor.sum()) * dirichlet(wanted, corners, generator)
            points = points[(points - centre).abs().sum(1) <= radius]
        else:
            points = centre + plane_ball(wanted, corners, generator) * radius
            points = points[(points >= 0).all(1)]
        accepted.append(points)
        found += len(points)
    return torch.cat(accepted)[:count]


def dirichlet(count: int, corners: int, generator: torch.Generator) -> Tensor:
    """`count` points drawn uniformly from a simplex, float64 [count, corners]."""
    heights = -torch.log1p(-torch.rand(count, corners, dtype=torch.float64, generator=generator))
    return heights / heights.sum(1, keepdim=True)


def plane_ball(count: int, corners: int, generator: torch.Generator) -> Tensor:
    """`count` points drawn uniformly from {x: sum x = 0, ||x||_1 <= 1}, float64 [count, n].

    The ball is a union of cells, one for each non-empty proper subset S of the coordinates: x is (r/2) u on S and
    -(r/2) v off it with u, v in the simplices of |S| and n - |S| corners. A cell's volume goes with
    C(n - 2, |S| - 1), the radius r with density r^(n - 2).
    """
    sizes = torch.arange(1, corners)
    volumes = torch.tensor(
        [math.comb(corners, s) * math.comb(corners - 2, s - 1) for s in sizes.tolist()], dtype=torch.float64
    )
    drawn = sizes[torch.multinomial(volumes, count, replacement=True, generator=generator)]
    ranks = torch.rand(count, corners, generator=generator).argsort(1).argsort(1)
    up = ranks < drawn.unsqueeze(1)
    heights = -torch.log1p(-torch.rand(count, corners, dtype=torch.float64, generator=generator))
    rise, fall = heights * up, heights * ~up
    radius = torch.rand(count, 1, dtype=torch.float64, generator=generator) ** (1 / (corners - 1))
    return radius / 2 * (rise / rise.sum(1, keepdim=True) - fall / fall.sum(1, keepdim=True))


def unprojected(count: int, centre: Tensor, radius: float, generator: torch.Generator) -> Tensor:
    """As the authors' code draws: centre + U(0, radius) u, ||u||_1 = 1, float64 [count, n].

    u is a point of the cube [-1, 1]^n over its L1 norm. The result may leave the simplex and its plane, and is
    densest at the centre.
    """
    u = 2 * torch.rand(count, len(centre), dtype=torch.float64, generator=generator) - 1
    length = radius * torch.rand(count, 1, dtype=torch.float64, generator=generator)
    return centre.to("cpu", torch.float64) + length * u / u.abs().sum(1, keepdim=True)
