"""What the coalition solver sees in Table 3 of FedCollab (Bao et al., ICML 2023), where it lacks a part."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def ignore_quantities(sizes: npt.ArrayLike) -> Floats:
    """Ablation "without quantities": every client counts as the mean size. [N] -> [N]."""
    n = np.asarray(sizes, np.float64)
    return np.full_like(n, n.mean())


def ignore_distances(distances: npt.ArrayLike) -> Floats:
    """Ablation "without distances": every pair is at the mean off-diagonal distance. [N, N] -> [N, N]."""
    D = np.asarray(distances, np.float64)
    apart = ~np.eye(len(D), dtype=bool)
    return np.where(apart, D[apart].mean() if len(D) > 1 else 0.0, 0.0)
