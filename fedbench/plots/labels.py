"""How far clients are apart by their labels alone: between rows of a histogram [N, K]."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def distributions(counts: Any) -> Floats:
    """Label distribution of each client, [N, K]; each client has a sample."""
    counts = np.asarray(counts, dtype=np.float64)
    return np.asarray(counts / counts.sum(1, keepdims=True))


def label_cosine(counts: Any) -> Floats:
    """Cosine of every two label distributions, [N, N]."""
    q = distributions(counts)
    q = q / np.linalg.norm(q, axis=1, keepdims=True)
    return np.asarray(q @ q.T)
