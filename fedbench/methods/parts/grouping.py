"""Groups of clients by their models or updates: k-means, bipartition by cosine similarity, shares within a group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

STARTS = 32  # most seedings of k-means
PASSES = 100  # most reassignments
SAME = 1e-12  # least gain in inertia that makes a solution better, relative


def coordinates(points: Array) -> Array:
    """`points` [N, P] as isometric points [N, N]: distances between a few large vectors need few dimensions."""
    centred = points - points.mean(0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    return np.asarray(vectors * np.sqrt(np.clip(values, 0, None)))


def distances(points: Array) -> Array:
    """Euclidean distance of each pair of `points` [N, d], [N, N]."""
    from scipy.spatial.distance import pdist, squareform

    return np.asarray(squareform(pdist(points)))


def kmeans(points: Array, count: int) -> Labels:
    """Group of each of `points` [N, d] by Lloyd's algorithm, the best of several seedings; at most `count` groups.

    Nothing is drawn: seedings are farthest-first traversals from points near to and far from the mean, so that
    the points' order permutes the result only.
    """
    depth = np.argsort(((points - points.mean(0)) ** 2).sum(1), kind="stable")
    firsts = depth[np.unique(np.linspace(0, len(points) - 1, min(STARTS, len(points))).round().astype(int))]
    best, least = np.zeros(len(points), dtype=np.int64), np.inf
    for first in firsts:
        labels, inertia = _lloyd(points, _farthest_first(points, count, int(first)))
        if inertia < least * (1 - SAME):
            best, least = labels, inertia
    return np.asarray(np.unique(best, return_inverse=True)[1], dtype=np.int64)


def shares(groups: npt.ArrayLike, sizes: npt.ArrayLike) -> Array:
    """The row-stochastic W [N, N]: W_ij = n_j / n of their group where i and j share one, else 0.

    `groups` [N] are the clients' groups, `sizes` [N] their samples.
    """
    p = np.asarray(groups)
    shared = (p[:, None] == p[None, :]) * np.asarray(sizes, np.float64)
    return np.asarray(shared / shared.sum(1, keepdims=True))


def _squared(points: Array, centres: Array) -> Array:
    return np.asarray(((points[:, None] - centres[None]) ** 2).sum(2))


def _farthest_first(points: Array, count: int, first: int) -> Array:
    chosen = [first]
    gaps = _squared(points, points[[first]])[:, 0]
    while len(chosen) < min(count, len(points)):
        chosen.append(int(gaps.argmax()))
        gaps = np.minimum(gaps, _squared(points, points[chosen[-1:]])[:, 0])
    return points[chosen]


def _lloyd(points: Array, centres: Array) -> tuple[Labels, float]:
    """(labels [N], sum of squared distances from the centres)."""
    labels = np.full(len(points), -1)
    for _ in range(PASSES):
        found = _squared(points, centres).argmin(1)
        if (found == labels).all():
            break
        labels = found
        centres = np.stack(
            [
                points[labels == k].mean(0) if (labels == k).any() else centre
                for k, centre in enumerate(centres)
            ]
        )
    return labels, float(_squared(points, centres).min(1).sum())


def cosines(vectors: Array) -> Array:
    """Cosine similarity of each pair of `vectors` [N, P], [N, N]; zero vectors are orthogonal to all."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(norms > 0, norms, 1)
    return np.asarray(np.clip(units @ units.T, -1, 1))


def bipartition(similarity: Array, linkage: str) -> tuple[npt.NDArray[np.bool_], float]:
    """(side of each of N >= 2 points, largest similarity across): two groups by agglomeration of `similarity` [N, N].

    Single linkage makes the largest similarity across as small as any bipartition can (Sattler et al., Algorithm 1).
    """
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    gaps = squareform(1 - similarity, checks=False)
    root = hierarchy.to_tree(hierarchy.linkage(gaps, linkage))
    side = np.isin(np.arange(len(similarity)), root.get_left().pre_order())
    return side, float(similarity[np.ix_(side, ~side)].max())
