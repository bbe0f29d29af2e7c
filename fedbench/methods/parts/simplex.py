"""Clients on a simplex: where they lie on it, their clusters, and the subregions around these.

Positions come from LDA on label counts, or from PCA of trained heads projected onto the simplex.
Clusters: Nielsen & Sun, Clustering in Hilbert's Projective Geometry, 2017/2019. Hilbert's metric on the open simplex is
d(p, q) = log max_i (p_i / q_i) - log min_i (p_i / q_i), and straight lines are its geodesics. k-centre clustering takes
seeds by farthest-first traversal. Then each centre is that of its members' smallest enclosing ball (Badoiu & Clarkson's
walk towards the farthest member), until no point changes its cluster.
Subregions are L1 balls around the centres. This file computes their radius and draws uniformly from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

INSIDE = 1e-9  # smallest coordinate: Hilbert's metric is infinite on the boundary
SAME = 1e-9  # points closer than this are one
PASSES = 50  # largest number of reassignments
STEPS = 300  # steps of the walk to a centre, whose error falls as 1 / steps
SIZES = np.linspace(1e-4, 1, 1000)  # sizes of the simplices that scores are projected onto
NEAREST = 1e-4  # smaller distances of two points count as this one
GRID = 20_000  # largest number of points of an integration grid
WHOLE = 2.0  # L1 diameter of a simplex: a ball of this radius around any point is all of it


# ---- positions


def topics(counts: Array, count: int, seed: int, iterations: int = 100) -> Array:
    """Return mixing weights [N, count] by latent Dirichlet allocation: documents are clients, words are labels.

    Variational Bayes (Hoffman et al., NIPS 2010) as scikit-learn implements it, with its default priors, on all clients
    at once: its online steps need thousands of passes over so few documents. The clients are fed in an order that
    depends on their counts alone, so relabelling them permutes the result.

    Args:
        counts: samples of each class, [N, K].
        count: topics, M + 1.
        seed: of the topics' random start.
        iterations: passes over the clients.
    """
    from sklearn.decomposition import LatentDirichletAllocation

    model = LatentDirichletAllocation(count, max_iter=iterations, random_state=seed % 2**32)
    model.fit(counts[np.lexsort(counts.T)])
    return np.asarray(model.transform(counts), dtype=np.float64)


def spread_scores(heads: Array, count: int) -> Array:
    """Return trained heads' [N, P] principal component scores as points of the simplex that keep apart, [N, count].

    As in the authors' code (Floco), scores are projected onto the simplices of size z, for z of SIZES, and scaled to
    sum 1. The z with the least Riesz energy of the points is taken. With fewer clients than components the missing
    scores are zero.
    """
    centred = heads - heads.mean(0)
    left, values, right = np.linalg.svd(centred, full_matrices=False)
    left = left * np.sign(right[np.arange(len(values)), np.abs(right).argmax(1)])  # as scikit-learn fixes signs
    scores = np.zeros((len(heads), count))
    components = min(count, len(values))
    scores[:, :components] = (left * values)[:, :components]
    projections = (project(scores, size) / size for size in SIZES)
    return min(projections, key=riesz_energy)


def riesz_energy(points: Array) -> float:
    """Return the mean over pairs of `points` [N, n] of one over their squared distance, at least that of NEAREST."""
    first, second = np.triu_indices(len(points), 1)
    squares = ((points[first] - points[second]) ** 2).sum(1)
    return float((1 / np.maximum(squares, NEAREST**2)).mean()) if len(squares) else 0.0


def project(points: Array, size: float = 1.0) -> Array:
    """Return the projection of each row of `points` [N, n] onto {x >= 0: sum x = size} (Held, Wolfe, Crowder 1974)."""
    ordered = -np.sort(-points, axis=1)
    excess = (ordered.cumsum(1) - size) / np.arange(1, points.shape[1] + 1)
    last = (ordered > excess).sum(1) - 1
    return np.asarray(np.maximum(points - excess[np.arange(len(points)), last][:, None], 0))


# ---- clusters


def interior(points: Array) -> Array:
    """Return `points` [..., n] moved off the simplex's boundary by no more than INSIDE."""
    raised = np.maximum(points, INSIDE)
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def hilbert(p: Array, q: Array) -> Array:
    """Return Hilbert's distance between points of the open simplex, [..., n] -> [...]."""
    ratio = np.log(p) - np.log(q)
    return np.asarray(ratio.max(-1) - ratio.min(-1))


def hilbert_walk(p: Array, q: Array, share: float) -> Array:
    """Return the point on the line from `p` to `q` [n] at `share` of their Hilbert distance from `p`.

    With the line's coordinate 0 at p, 1 at q, it leaves the simplex at -a and 1 + b, and the distance from p to x is
    log((x + a) (1 + b) / (a (1 + b - x))).
    """
    step = q - p
    if np.abs(step).max() < SAME:
        return p
    back, forward = step > 0, step < 0
    a = (p[back] / step[back]).min()
    end = (p[forward] / -step[forward]).min()  # 1 + b
    grown = np.exp(share * hilbert(p, q))
    return np.asarray(p + a * end * (grown - 1) / (end + grown * a) * step)


def manhattan(p: Array, q: Array) -> Array:
    """Return the L1 distance, [..., n] -> [...]."""
    return np.asarray(np.abs(p - q).sum(-1))


def straight_walk(p: Array, q: Array, share: float) -> Array:
    """Return the point at `share` of the way from `p` to `q`."""
    return p + share * (q - p)


@dataclass(frozen=True)
class Metric:
    """A distance whose geodesics are straight lines, and the way along them."""

    distance: Callable[[Array, Array], Array]
    walk: Callable[[Array, Array, float], Array]


METRICS = {"hilbert": Metric(hilbert, hilbert_walk), "l1": Metric(manhattan, straight_walk)}


def cluster(points: Array, count: int, metric: Metric) -> tuple[Labels, Array]:
    """Return (cluster of each point [N], centres [C, n]) of `points` [N, n] in the simplex.

    C is `count`, or less where there are fewer distinct points. A function of the set of points: their order permutes
    the first result only.
    """
    points = interior(points)
    order = np.lexsort(points.T)
    labels, centres = _k_centre(points[order], count, metric)
    return labels[np.argsort(order)], centres


def _k_centre(points: Array, count: int, metric: Metric) -> tuple[Labels, Array]:
    centres = _farthest_first(points, count, metric)
    labels = _nearest(points, centres, metric)
    for _ in range(PASSES):
        # A centre can lose its last member; the others keep theirs.
        filled = [k for k in range(len(centres)) if (labels == k).any()]
        centres = np.stack([enclosing_centre(points[labels == k], metric) for k in filled])
        nearest = _nearest(points, centres, metric)
        if (nearest == labels).all():
            break
        labels = nearest
    return labels, centres


def _farthest_first(points: Array, count: int, metric: Metric) -> Array:
    """Return the seeds: the point nearest the centre of all, then each time the one farthest from all before."""
    first = int(metric.distance(points, enclosing_centre(points, metric)).argmin())
    seeds = [first]
    gaps = metric.distance(points, points[first])
    while len(seeds) < count and gaps.max() > SAME:
        seeds.append(int(gaps.argmax()))
        gaps = np.minimum(gaps, metric.distance(points, points[seeds[-1]]))
    return points[seeds]


def _nearest(points: Array, centres: Array, metric: Metric) -> Labels:
    return np.asarray(metric.distance(points[:, None], centres[None]).argmin(1))


def enclosing_centre(points: Array, metric: Metric, steps: int = STEPS) -> Array:
    """Return the centre [n] of (nearly) the smallest ball around `points` [N, n]."""
    centre: Array = points.mean(0)
    for step in range(1, steps + 1):
        gaps = metric.distance(points, centre)
        centre = metric.walk(centre, points[gaps.argmax()], 1 / (step + 1))
    return centre


# ---- subregions


def grid(corners: int, points: int = GRID) -> Array:
    """Return at most `points` evenly spaced points inside the simplex with `corners` corners, [G, n].

    The compositions of an integer R into n parts, each at the middle of its cell: (c_i + 1/n) / (R + 1).
    """
    total = 0
    while corners > 1 and math.comb(total + corners, corners - 1) <= points:
        total += 1
    parts = _compositions(total, corners)
    return (parts + 1 / corners) / (total + 1)


def _compositions(total: int, parts: int) -> Array:
    """Return all vectors of `parts` non-negative integers with sum `total`."""
    if parts == 1:
        return np.array([[total]], dtype=np.float64)
    blocks = []
    for first in range(total + 1):
        rest = _compositions(total - first, parts - 1)
        blocks.append(np.column_stack([np.full(len(rest), float(first)), rest]))
    return np.concatenate(blocks)


def mean_distance(centres: Array) -> float:
    """Return the mean L1 distance between `centres` [C, n] and all points of the simplex (delta-bar of Section 3.3)."""
    points = grid(centres.shape[1])
    return float(np.mean([np.abs(points - centre).sum(1).mean() for centre in centres]))


def uniform(count: int, centre: Tensor, radius: float, generator: torch.Generator) -> Tensor:
    """Return `count` points drawn uniformly from {x in the simplex: ||x - centre||_1 <= radius}, float64 [count, n].

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
    have = 0
    while have < count:
        more = 2 * (count - have) + 16
        if simplex <= ball:
            points = floor + (1 - floor.sum()) * dirichlet(more, corners, generator)
            points = points[(points - centre).abs().sum(1) <= radius]
        else:
            points = centre + plane_ball(more, corners, generator) * radius
            points = points[(points >= 0).all(1)]
        accepted.append(points)
        have += len(points)
    return torch.cat(accepted)[:count]


def dirichlet(count: int, corners: int, generator: torch.Generator) -> Tensor:
    """Return `count` points drawn uniformly from a simplex, float64 [count, corners]."""
    heights = -torch.log1p(-torch.rand(count, corners, dtype=torch.float64, generator=generator))
    return heights / heights.sum(1, keepdim=True)


def plane_ball(count: int, corners: int, generator: torch.Generator) -> Tensor:
    """Return `count` points drawn uniformly from {x: sum x = 0, ||x||_1 <= 1}, float64 [count, n].

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
    """Draw as the authors' code does: centre + U(0, radius) u, ||u||_1 = 1, float64 [count, n].

    u is a point of the cube [-1, 1]^n over its L1 norm. The result may leave the simplex and its plane, and is
    densest at the centre.
    """
    u = 2 * torch.rand(count, len(centre), dtype=torch.float64, generator=generator) - 1
    length = radius * torch.rand(count, 1, dtype=torch.float64, generator=generator)
    return centre.to("cpu", torch.float64) + length * u / u.abs().sum(1, keepdim=True)
