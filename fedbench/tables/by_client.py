"""One published run beside several of ours, client by client, on one partition with the same test samples.

Two questions, each with a p a client, adjusted by Holm over the clients:

- Is the published value what one more seed of ours would give? t = (published - mean) / (s sqrt(1 + 1/S)), with s
  pooled over the clients of a group, as S seeds of one client say little: df = (S - 1) |group|. That takes the clients
  of a seed as independent, which those that share a model are not; the interval on a mean over clients (`Further`) is
  over seeds alone. s is at least that of rounding to whole samples, a sample / sqrt(12): seeds that all give the same
  share are not known to vary less.
- Do the two shares of right answers differ, the n test samples of either side taken as independent? Fisher's exact
  test, with our mean rounded to a whole sample. Both sides are scored on the same samples, so this is cautious.

McNemar's test would need to know which samples each side gets right. Over clients the two sides are paired (`paired`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbench.core.errors import ConfigError
from fedbench.metrics.fairness import fairness
from fedbench.tables.significance import LEVEL, holm

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Clients:
    """The comparison of N clients."""

    mean: Floats  # [N] ours over seeds, percent
    std: Floats  # [N] sample standard deviation over seeds
    published: Floats  # [N]
    of_seeds: Floats  # [N] p, adjusted; nan for one seed
    of_samples: Floats  # [N] p, adjusted


@dataclass(frozen=True)
class Further:
    """The mean over some clients of a published run, beside what one more seed of ours would give."""

    mean: float  # ours over seeds, percent
    std: float
    published: float
    low: float  # 95 % prediction interval of one more seed
    high: float

    @property
    def inside(self) -> bool:
        """Whether the published value lies in the interval."""
        return self.low <= self.published <= self.high


def compare(ours: Floats, published: Floats, samples: int, groups: NDArray[np.int64]) -> Clients:
    """Percent right of S seeds `ours` [S, N] and `published` [N], of `samples` test samples; `groups` [N].

    Raises:
        ConfigError: the clients are not the same.
    """
    from scipy import stats

    if ours.ndim != 2 or ours.shape[1:] != published.shape:
        raise ConfigError(f"{published.shape} published clients cannot stand beside {ours.shape} of ours")
    seeds, mean = len(ours), ours.mean(0)
    of_seeds = np.full(len(published), math.nan)
    if seeds > 1:
        for group in np.unique(groups):
            chosen = groups == group
            spread = max(math.sqrt(float(ours[:, chosen].var(0, ddof=1).mean())), _rounding(samples))
            error = spread * math.sqrt(1 + 1 / seeds)
            of_seeds[chosen] = 2 * stats.t.sf(
                np.abs(published - mean)[chosen] / error, (seeds - 1) * int(chosen.sum())
            )
        of_seeds = np.array(holm(list(of_seeds)))
    right = [np.round(share * samples / 100).astype(int) for share in (mean, published)]
    exact = [
        float(stats.fisher_exact([[a, samples - a], [b, samples - b]]).pvalue)
        for a, b in zip(*right, strict=True)
    ]
    std = ours.std(0, ddof=1) if seeds > 1 else np.full(len(published), math.nan)
    return Clients(mean, std, published, of_seeds, np.array(holm(exact)))


def further(ours: Floats, published: float, samples: int) -> Further:
    """One published mean over clients beside those of S seeds `ours` [S], at least two; of `samples` test samples."""
    from scipy import stats

    mean, std = float(ours.mean()), float(ours.std(ddof=1))
    spread = max(std, _rounding(samples)) * math.sqrt(1 + 1 / len(ours))
    half = float(stats.t.ppf(1 - LEVEL / 2, len(ours) - 1)) * spread
    return Further(mean, std, published, mean - half, mean + half)


@dataclass(frozen=True)
class Gap:
    """The mean over N clients of ours - published, the clients taken as a sample of such clients."""

    mean: float  # percentage points
    low: float  # 95 % confidence interval
    high: float
    p: float  # two-sided, paired t


def paired(gaps: Floats) -> Gap:
    """Student's t of `gaps` [N], ours over seeds - published, client by client.

    Clients that share a model are not independent, and the published side is one run: the interval is of this pair.
    """
    from scipy import stats

    test = stats.ttest_1samp(gaps, 0.0)
    interval = test.confidence_interval(1 - LEVEL)
    return Gap(float(gaps.mean()), float(interval.low), float(interval.high), float(test.pvalue))


def _rounding(samples: int) -> float:
    """The standard deviation, in percent, of rounding a share of `samples` to a whole sample."""
    return 100 / samples / math.sqrt(12)


def shares_gaining(
    ours: Mapping[int, Floats], local: Mapping[int, Floats]
) -> tuple[list[float], list[float]]:
    """IPR in percent of runs against Locals of the same partition, seed -> [N] percent: (own seed's Local, all others).

    The others are all pairs of seeds s != s', so that no one Local decides.
    """
    same: list[float] = []
    other: list[float] = []
    for seed, own in ours.items():
        for reference, alone in local.items():
            (same if seed == reference else other).append(fairness(own / 100, alone / 100).ipr)
    return same, other
