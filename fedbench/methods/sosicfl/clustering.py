"""Clustering in a simplex: Nielsen & Sun, Clustering in Hilbert's Projective Geometry, 2017/2019.

Hilbert's metric on the open simplex is d(p, q) = log max_i (p_i / q_i) - log min_i (p_i / q_i); straight lines are its
geodesics. k-centre clustering: seeds by farthest-first traversal, then centres are smallest enclosing balls'
(Badoiu & Clarkson's walk towards the farthest member), until no point changes its cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

INSIDE = 1e-9  # smallest coordinate: Hilbert's metric is infinite on the boundary
SAME = 1e-9  # points closer than this are one
PASSES = 50  # most reassignments
STEPS = 300  # of the walk to a centre; its error falls as 1 / steps


def interior(points: Array) -> Array:
    """`points` [..., n] moved off the simplex's boundary by no more than INSIDE."""
    raised = np.maximum(points, INSIDE)
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def hilbert(p: Array, q: Array) -> Array:
    """Hilbert's distance between points of the open simplex, [..., n] -> [...]."""
    ratio = np.log(p) - np.log(q)
    return np.asarray(ratio.max(-1) - ratio.min(-1))


def hilbert_walk(p: Array, q: Array, share: float) -> Array:
    """The point on the line from `p` to `q` [n] at `share` of their Hilbert distance from `p`.

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
    """L1 distance, [..., n] -> [...]."""
    return np.asarray(np.abs(p - q).sum(-1))


def straight_walk(p: Array, q: Array, share: float) -> Array:
    """The point at `share` of the way from `p` to `q`."""
    return p + share * (q - p)


@dataclass(frozen=True)
class Metric:
    """A distance whose geodesics are straight lines, and the way along them."""

    distance: Callable[[Array, Array], Array]
    walk: Callable[[Array, Array, float], Array]


METRICS = {"hilbert": Metric(hilbert, hilbert_walk), "l1": Metric(manhattan, straight_walk)}


def cluster(points: Array, count: int, metric: Metric) -> tuple[Labels, Array]:
    """(cluster of each point [N], centres [C, n]) of `points` [N, n] in the simplex.

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
        kept = [k for k in range(len(centres)) if (labels == k).any()]
        centres = np.stack([enclosing_centre(points[labels == k], metric) for k in kept])
        found = _nearest(points, centres, metric)
        if (found == labels).all():
            break
        labels = found
    return labels, centres


def _farthest_first(points: Array, count: int, metric: Metric) -> Array:
    """Seeds: the point nearest the centre of all, then each time the one farthest from all before."""
    first = int(metric.distance(points, enclosing_centre(points, metric)).argmin())
    chosen = [first]
    gaps = metric.distance(points, points[first])
    while len(chosen) < count and gaps.max() > SAME:
        chosen.append(int(gaps.argmax()))
        gaps = np.minimum(gaps, metric.distance(points, points[chosen[-1]]))
    return points[chosen]


def _nearest(points: Array, centres: Array, metric: Metric) -> Labels:
    return np.asarray(metric.distance(points[:, None], centres[None]).argmin(1))


def enclosing_centre(points: Array, metric: Metric, steps: int = STEPS) -> Array:
    """Centre [n] of (nearly) the smallest ball around `points` [N, n]."""
    centre: Array = points.mean(0)
    for step in range(1, steps + 1):
        gaps = metric.distance(points, centre)
        centre = metric.walk(centre, points[gaps.argmax()], 1 / (step + 1))
    return centre
