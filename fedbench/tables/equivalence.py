"""Do two means agree for practical purposes? An equivalence test with a margin, on Welch's t.

With d = ours - published, n seeds of ours with sample standard deviation s and k published seeds with s_p:

    se^2 = s^2 / n + s_p^2 / k,   df = se^4 / ((s^2 / n)^2 / (n - 1) + (s_p^2 / k)^2 / (k - 1))   (Welch-Satterthwaite)

and the interval of confidence 1 - a is d +- (t(1 - a / 2, df) se + r), r being half a unit of the last printed digit.

- `equivalent`: the 90 % interval lies inside (-margin, margin). This is two one-sided tests at 5 % (TOST; Schuirmann,
  J. Pharmacokinet. Biopharm. 1987).
- `different`: the 95 % interval lies wholly outside [-margin, margin].
- `inconclusive`: neither.

No published spread: the paper's seeds are taken to vary as ours, se^2 = s^2 (1 / n + 1 / k) with n - 1 degrees of
freedom. That is wider than a known spread of the same size would give, as nothing is learnt about it from the paper.

A share of N clients (IPR) moves in steps of one client and ends at 0 and 100 %, where seeds may all agree by chance. So
its s is at least that of N independent clients, 100 sqrt(q (1 - q) / N), q = (hits + 1/2) / (n N + 1) (Jeffreys). With
the bare s, five seeds and 20 clients the test would call 11 % of the values at the margin equivalent, not 5 %. Clients
that are unlike, some sure to gain and others not, vary less than that: the floor is cautious.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

_Count = np.ndarray[Any, np.dtype[np.float64]]
LEVEL = 0.05  # of each one-sided test, and of the two-sided interval
LEAST_SEEDS = 2  # of ours, so that there is a spread
POWER = 0.8
MOST_SEEDS = 1000  # that a power calculation looks at

EQUIVALENT, DIFFERENT, INCONCLUSIVE = "equivalent", "different", "inconclusive"


@dataclass(frozen=True)
class Sample:
    """What is known of some seeds, in the metric's unit."""

    mean: float
    std: float | None  # sample standard deviation; None: not known
    n: int
    rounding: float = 0.0  # half a unit of the last digit that the mean is known to


def share_of(clients: int, sample: Sample) -> Sample:
    """Return `sample`, of a share in percent of `clients`, with a spread of at least the binomial one."""
    if sample.std is None:
        return sample
    trials = sample.n * clients
    q = (sample.mean / 100 * trials + 0.5) / (trials + 1)
    return replace(sample, std=max(sample.std, 100 * math.sqrt(q * (1 - q) / clients)))


@dataclass(frozen=True)
class Comparison:
    """Ours minus theirs, in the metric's unit."""

    difference: float
    low: float  # 95 % confidence interval
    high: float
    p: float  # two-sided, that there is no difference at all
    effect: float  # Hedges' g; nan where neither side varies or a spread rests on one degree of freedom
    margin: float = math.inf
    outcome: str = INCONCLUSIVE


def compare(ours: Sample, theirs: Sample, margin: float, *, bound: bool = False) -> Comparison:
    """Return the test of the module on two samples; `ours` has a spread.

    With `bound` the paper prints only that its value is above `theirs.mean`, so any larger value of ours agrees:
    `equivalent` if the lower end of the 90 % interval is above -margin, `different` if the upper end of the 95 %
    interval is below it.
    """
    from scipy import stats

    difference = ours.mean - theirs.mean
    error, df = map(float, _error(ours, theirs))
    inner = float(stats.t.ppf(1 - LEVEL, df)) * error + theirs.rounding
    outer = float(stats.t.ppf(1 - LEVEL / 2, df)) * error + theirs.rounding
    low, high = difference - outer, difference + outer
    p = 2 * float(stats.t.sf(abs(difference) / error, df)) if error else float(abs(difference) <= theirs.rounding)
    inside = difference - inner > -margin and (bound or difference + inner < margin)
    outside = high < -margin or (low > margin and not bound)
    outcome = EQUIVALENT if inside else DIFFERENT if outside else INCONCLUSIVE
    return Comparison(difference, low, high, p, hedges_g(ours, theirs), margin, outcome)


def seeds_needed(ours: Sample, theirs: Sample, margin: float, *, both: bool = False) -> float:
    """Return seeds of ours after which the verdict would be `equivalent`, or `different`, with a probability of 80 %.

    The true difference is taken to be the one observed, and the spreads those observed. The paper's seeds stay as they
    are; with `both` the paper has as many as we. With n seeds the difference is normal with the standard error se(n),
    so, with the quantiles of the test,

        |d| < margin:  P(equivalent) = P(|D| < margin - r - t(0.95, df) se),   D ~ N(d, se^2)
        |d| >= margin: P(different)  = P(|D| > margin + r + t(0.975, df) se).

    Returns:
        The smallest n <= 1000 with that probability; inf if there is none: the difference lies too near to the margin,
        or, without `both`, the published mean is itself too uncertain.
    """
    from scipy import stats

    n = np.arange(LEAST_SEEDS, MOST_SEEDS + 1, dtype=float)
    error, df = _error(ours, theirs, n, n if both else None)
    if not error.all():
        return math.inf  # nothing varies: more seeds tell nothing new
    gap = abs(ours.mean - theirs.mean)
    if gap < margin:
        reach = margin - theirs.rounding - stats.t.ppf(1 - LEVEL, df) * error
        power = stats.norm.cdf((reach - gap) / error) - stats.norm.cdf((-reach - gap) / error)
    else:
        reach = margin + theirs.rounding + stats.t.ppf(1 - LEVEL / 2, df) * error
        power = stats.norm.cdf((gap - reach) / error) + stats.norm.cdf((-gap - reach) / error)
    enough = np.flatnonzero(power >= POWER)
    return float(n[enough[0]]) if len(enough) else math.inf


def hedges_g(ours: Sample, theirs: Sample) -> float:
    """Return the difference in pooled standard deviations, corrected for few seeds by Hedges (J. Educ. Stat. 1981)."""
    spread, df = ours.std or 0.0, ours.n - 1
    if theirs.std is not None and theirs.n >= LEAST_SEEDS:
        both = df + theirs.n - 1
        spread, df = math.sqrt((df * spread**2 + (theirs.n - 1) * theirs.std**2) / both), both
    if not spread or df < 2:
        return math.nan
    return (ours.mean - theirs.mean) / spread * (1 - 3 / (4 * df - 1))


def _error(ours: Sample, theirs: Sample, n: _Count | None = None, k: _Count | None = None) -> tuple[_Count, _Count]:
    """Return (standard error of the difference, degrees of freedom), with `n` and `k` for the samples' own seeds."""
    n, k = (np.asarray(own if other is None else other, float) for own, other in ((ours.n, n), (theirs.n, k)))
    if ours.std is None or ours.n < LEAST_SEEDS:
        raise ValueError(f"a test needs at least {LEAST_SEEDS} seeds")
    square = ours.std**2
    if theirs.std is None or theirs.n < LEAST_SEEDS:
        return np.sqrt(square * (1 / n + 1 / k)), n - 1
    a, b = square / n, theirs.std**2 / k
    if not (a + b).all():
        return np.zeros_like(a + b), n - 1
    return np.sqrt(a + b), (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (k - 1))
