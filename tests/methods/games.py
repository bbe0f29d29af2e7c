"""Instances of FedCollab's Eq. 10, and its objective by loops."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np


def instance(seed: int, N: int, symmetric: bool = True) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    D = rng.random((N, N))
    D = (D + D.T) / 2 if symmetric else D
    np.fill_diagonal(D, 0)
    return rng.integers(5, 2000, N), D


def planted() -> tuple[np.ndarray, np.ndarray]:
    """Label shift: ten large and ten small clients, two near types each; nothing near across sizes."""
    kind = np.arange(20) // 5
    near = np.array([[0, 0.15, 1, 1], [0.15, 0, 1, 1], [1, 1, 0, 0.15], [1, 1, 0.15, 0]])
    return np.where(kind < 2, 2100, 14), near[kind][:, kind]


def by_loops(assignment: list[int], n: np.ndarray, D: np.ndarray, C: float) -> float:
    """Eq. 10, first line, symbol by symbol."""
    N, m, total = len(n), float(sum(n)), 0.0
    for i in range(N):
        pool = sum(float(n[j]) for j in range(N) if assignment[j] == assignment[i])
        a = [float(n[j]) / pool if assignment[j] == assignment[i] else 0.0 for j in range(N)]
        norm = math.sqrt(sum(a[j] ** 2 / (n[j] / m) for j in range(N)))
        total += C / math.sqrt(m) * norm + sum(a[j] * D[i][j] for j in range(N))
    return total


def partitions(N: int) -> Iterator[list[int]]:
    """Every set partition, as restricted growth strings."""

    def grow(prefix: list[int]) -> Iterator[list[int]]:
        if len(prefix) == N:
            yield prefix
            return
        for c in range(max(prefix, default=-1) + 2):
            yield from grow([*prefix, c])

    return grow([])
