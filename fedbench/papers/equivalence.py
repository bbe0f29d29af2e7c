"""Do two means agree for practical purposes? An equivalence test with a margin, on Welch's t.

With d = ours - published, n seeds of ours with sample standard deviation s and k published seeds with s_p:

    se^2 = s^2 / n + s_p^2 / k,   df = se^4 / ((s^2 / n)^2 / (n - 1) + (s_p^2 / k)^2 / (k - 1))   (Welch-Satterthwaite)

and the interval of confidence 1 - a is d +- (t(1 - a / 2, df) se + r), r being half a unit of the last printed digit.

- `equivalent`: the 90 % interval lies inside (-margin, margin). This is two one-sided tests at 5 % (TOST; Schuirmann,
  J. Pharmacokinet. Biopharm. 1987).
- `different`: the 95 % interval lies wholly outside [-margin, margin].
- `inconclusive`: neither.
- `undecidable`: neither, and no outcome of our seeds could be `equivalent`.

No published spread: the paper's seeds are assumed to vary as ours do, se^2 = s^2 (1 / n + 1 / k) with n - 1 degrees of
freedom. The interval is wider than with a printed spread of the same size.

A share of N clients (IPR) moves in steps of one client and ends at 0 and 100 %, where seeds may all agree by chance. So
its s is at least that of N independent clients, 100 sqrt(q (1 - q) / N), q = (hits + 1/2) / (n N + 1) (Jeffreys). With
the bare s, five seeds and 20 clients the test would call up to 11 % of the values at the margin equivalent, not 5 %.
Clients that are unlike, some sure to gain and others not, vary less than that: the floor is cautious. It leaves five
seeds a side and 20 clients no `equivalent` from 4 to 96 %.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

_Count = np.ndarray[Any, np.dtype[np.float64]]
LEVEL = 0.05  # of each one-sided test, and of the two-sided interval
LEAST_SEEDS = 2  # of ours, so that there is a spread
POWER = 0.8
MOST_SEEDS = 1000  # that a power calculation looks at
# Squared standard error of our mean, in units of the published mean's, at which the interval may be narrowest.
RATIOS = np.linspace(0, 2, 41)

EQUIVALENT, DIFFERENT, INCONCLUSIVE = "equivalent", "different", "inconclusive"
UNDECIDABLE = "undecidable"


@dataclass(frozen=True)
class Sample:
    """Mean, spread and number of seeds, in the metric's unit."""

    mean: float
    std: float | None  # sample standard deviation; None: not known
    n: int
    rounding: float = 0.0  # half a unit of the last digit that the mean is known to


def share_of(clients: int | None, sample: Sample) -> Sample:
    """Return `sample`, of a share in percent of `clients` (None: no share), with at least the binomial spread."""
    if sample.std is None or not clients:
        return sample
    least = _binomial(np.asarray(sample.mean), sample.n, clients)
    return replace(sample, std=max(sample.std, float(least)))


def _binomial(mean: _Count, n: int, clients: int) -> _Count:
    """Return the spread of a share of `clients` independent clients with these means over `n` seeds."""
    q = (mean / 100 * n * clients + 0.5) / (n * clients + 1)
    return np.asarray(100 * np.sqrt(q * (1 - q) / clients))


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
    if ours.std is None or ours.n < LEAST_SEEDS:
        raise ValueError(f"a test needs at least {LEAST_SEEDS} seeds")
    error, df = map(float, _error(np.asarray(ours.std), np.asarray(ours.n), theirs))
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
    error, df = _error(np.asarray(ours.std), n, theirs, n if both else None)
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


@functools.cache
def attainable(n: int, theirs: Sample, margin: float, clients: int | None = None, *, bound: bool = False) -> bool:
    """Return whether some outcome of `n` seeds of ours would be `equivalent` to `theirs`, as `compare` has it.

    Ours may have any mean and any spread; a share of `clients` has a mean of whole clients, within the margin, and at
    least the spread of `share_of`. The least spread need not give the narrowest interval, as Welch's degrees of freedom
    grow with it where the paper has few seeds: so wider ones are tried as well.
    """
    from scipy import special, stats

    if n < LEAST_SEEDS or bound:  # any value far enough above a bound would
        return n >= LEAST_SEEDS
    mean, least = np.array([theirs.mean]), np.zeros(1)
    if clients:
        mean = 100 * np.arange(n * clients + 1) / (n * clients)
        mean = mean[np.abs(mean - theirs.mean) < margin]
        least = _binomial(mean, n, clients)
    known = theirs.std if theirs.std is not None and theirs.n >= LEAST_SEEDS else 0.0
    spreads = np.maximum(least[:, None], known * np.sqrt(n / theirs.n * RATIOS))  # [means, spreads]
    room = margin - theirs.rounding - np.abs(mean - theirs.mean)[:, None]
    error, df, room = np.broadcast_arrays(*_error(spreads, np.asarray(n), theirs), room)
    near = stats.norm.ppf(1 - LEVEL) * error < room  # t is larger than that and takes long
    return bool((special.stdtrit(df[near], 1 - LEVEL) * error[near] < room[near]).any())


def seeds_to_attain(
    theirs: Sample, margin: float, clients: int | None = None, *, bound: bool = False, both: bool = False
) -> float:
    """Return seeds of ours, or with `both` of either side, with which some outcome would be `equivalent`.

    With one seed less none would. For a share more seeds need not do, as means of whole clients then lie elsewhere.

    Returns:
        At most 1000; inf if so many would not do.
    """

    def enough(n: int) -> bool:
        return attainable(n, replace(theirs, n=n) if both else theirs, margin, clients, bound=bound)

    doubled = (LEAST_SEEDS * 2**power for power in range(9))
    most = next(filter(enough, (*doubled, MOST_SEEDS)), 0)
    numbers = range(LEAST_SEEDS, most + 1)
    return numbers[bisect_left(numbers, True, key=enough)] if most else math.inf


def hedges_g(ours: Sample, theirs: Sample) -> float:
    """Return the difference in pooled standard deviations, corrected for few seeds by Hedges (J. Educ. Stat. 1981)."""
    spread, df = ours.std or 0.0, ours.n - 1
    if theirs.std is not None and theirs.n >= LEAST_SEEDS:
        both = df + theirs.n - 1
        spread, df = math.sqrt((df * spread**2 + (theirs.n - 1) * theirs.std**2) / both), both
    if not spread or df < 2:
        return math.nan
    return (ours.mean - theirs.mean) / spread * (1 - 3 / (4 * df - 1))


def _error(std: _Count, n: _Count, theirs: Sample, k: _Count | None = None) -> tuple[_Count, _Count]:
    """Return (standard error of the difference, degrees of freedom); `k` stands in for the seeds of `theirs`."""
    k, square = np.asarray(theirs.n if k is None else k, float), std**2
    if theirs.std is None or theirs.n < LEAST_SEEDS:
        return np.sqrt(square * (1 / n + 1 / k)), n - 1
    a, b = square / n, theirs.std**2 / k
    alike = a + b == 0  # nothing varies on either side
    with np.errstate(invalid="ignore"):
        df = (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (k - 1))
    return np.sqrt(a + b), np.where(alike, n - 1, df)
