"""Who gains from federating, against training alone: IPR and RSD (FedCollab, Eq. 11 and 12)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.metrics.accuracy import TIE, Floats


@dataclass(frozen=True, eq=False)
class Fairness:
    """Gains over Local."""

    gains: Floats  # [N] percent points; nan where either accuracy is unknown
    ipr: float  # percent of clients
    rsd: float  # percent points


def fairness(accuracy: Floats, local: Floats) -> Fairness:
    """IPR and RSD of `accuracy` [N] against `local` [N], fractions, client by client.

    IPR = (1/N) sum_i 1{a_i - l_i > 0}: a tie is no gain, and a difference below `TIE` is a tie, because the
    same ratio of integers may be rounded differently on either side.
    RSD = sqrt((1/N) sum_i (g_i - mean g)^2), g_i = a_i - l_i: the population standard deviation.

    Clients without test samples (nan) count in neither; both are nan when none is left.
    """
    if accuracy.shape != local.shape or accuracy.ndim != 1:
        raise ValueError(f"fairness compares client by client, got {accuracy.shape} and {local.shape}")
    gains = accuracy - local
    known = gains[~np.isnan(gains)]
    if not len(known):
        return Fairness(100 * gains, float("nan"), float("nan"))
    return Fairness(100 * gains, 100 * float((known > TIE).mean()), 100 * float(known.std(ddof=0)))
