"""The equivalence test against scipy's Welch test and against numbers worked out by hand."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import numpy as np
import pytest
from scipy import stats

from fedbench.papers.equivalence import (
    DIFFERENT,
    EQUIVALENT,
    INCONCLUSIVE,
    Sample,
    attainable,
    compare,
    hedges_g,
    seeds_needed,
    seeds_to_attain,
    share_of,
)
from tests.helpers.tiers import sampled

A, B = np.array([90.0, 91.5, 89.0, 92.0, 90.5]), np.array([88.0, 90.0, 88.5])


def of(values: np.ndarray) -> Sample:
    return Sample(float(values.mean()), float(values.std(ddof=1)), len(values))


def test_interval_and_p_are_scipys_welch() -> None:
    found, test = compare(of(A), of(B), 1.0), stats.ttest_ind(A, B, equal_var=False)
    interval = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(test.pvalue)
    assert found.difference == pytest.approx(A.mean() - B.mean())


@pytest.mark.parametrize("margin", [1.0, 2.0, 3.0, 4.0, 5.0])
def test_equivalent_is_two_one_sided_tests_at_five_per_cent(margin: float) -> None:
    """Scipy's one-sided Welch tests of the means moved by the margin must both reject."""
    above = stats.ttest_ind(A + margin, B, equal_var=False, alternative="greater").pvalue
    below = stats.ttest_ind(A - margin, B, equal_var=False, alternative="less").pvalue
    assert (compare(of(A), of(B), margin).outcome == EQUIVALENT) == (max(above, below) < 0.05)


def test_the_three_outcomes_by_hand() -> None:
    # s = s_p = 1, n = k = 5: se = sqrt(2 / 5) = 0.632456, df = 8, t(.95) = 1.859548, t(.975) = 2.306004:
    # 1.176081 on either side of the difference at 90 %, 1.458446 at 95 %.
    theirs = Sample(50.0, 1.0, 5)
    for difference, outcome in (
        (0.82, EQUIVALENT),  # 0.82 + 1.1761 < 2
        (0.83, INCONCLUSIVE),
        (3.45, INCONCLUSIVE),
        (3.46, DIFFERENT),  # 3.46 - 1.4584 > 2
        (-3.46, DIFFERENT),
        (-0.82, EQUIVALENT),
    ):
        assert compare(Sample(50 + difference, 1.0, 5), theirs, 2.0).outcome == outcome, difference


def test_without_a_published_spread_theirs_is_taken_to_be_ours() -> None:
    # s = 1, n = 5, k = 1: se = sqrt(1 / 5 + 1) = 1.095445, df = 4, t(.975) = 2.776445.
    found = compare(Sample(51.0, 1.0, 5), Sample(50.0, None, 1), 1.0)
    assert found.high - found.difference == pytest.approx(2.776445 * 1.095445, abs=1e-5)
    known = compare(Sample(51.0, 1.0, 5), Sample(50.0, 1.0, 5), 1.0)
    unknown = compare(Sample(51.0, 1.0, 5), Sample(50.0, None, 5), 1.0)
    assert unknown.high > known.high  # fewer degrees of freedom
    # The spread of a single published seed is none.
    assert compare(Sample(51.0, 1.0, 5), Sample(50.0, 0.1, 1), 1.0) == found


def test_printed_digits_widen_the_interval() -> None:
    exact, rounded = (compare(of(A), Sample(90.0, 1.0, 5, r), 1.0) for r in (0.0, 0.5))
    assert (rounded.low, rounded.high) == pytest.approx((exact.low - 0.5, exact.high + 0.5))
    same = Sample(90.0, 0.0, 5)
    found = compare(same, Sample(90.2, 0.0, 5, 0.5), 1.0)
    assert (found.outcome, found.p, found.effect) == (EQUIVALENT, 1.0, pytest.approx(math.nan, nan_ok=True))
    assert compare(same, Sample(90.9, 0.0, 5, 0.05), 1.0).outcome == EQUIVALENT
    assert compare(same, Sample(90.9, 0.0, 5, 0.2), 1.0).outcome == INCONCLUSIVE, "it may be 91.1"
    assert compare(same, Sample(92.0, 0.0, 5), 1.0).outcome == DIFFERENT
    assert compare(same, Sample(92.0, 0.0, 5), 1.0).p == 0


@pytest.mark.parametrize(("difference", "spread"), sampled([(0.3, 1.0), (-0.5, 1.2), (2.5, 1.5), (-3.0, 2.0)], every=4))
def test_the_seeds_that_are_said_to_decide_do_so_in_four_of_five_trials(difference: float, spread: float) -> None:
    ours, theirs = Sample(50 + difference, spread, 5), Sample(50.0, 0.3, 20)
    n = int(seeds_needed(ours, theirs, 1.0))
    wanted = EQUIVALENT if abs(difference) < 1 else DIFFERENT
    gen = np.random.default_rng(0)

    def share(n: int) -> float:
        decided = 0
        for _ in range(400):
            a, b = gen.normal(50 + difference, spread, n), gen.normal(50.0, 0.3, 20)
            decided += compare(of(a), of(b), 1.0).outcome == wanted
        return decided / 400

    assert share(n) == pytest.approx(0.8, abs=0.09)
    assert share(max(2, n // 3)) < 0.7


def test_when_no_number_of_our_seeds_decides() -> None:
    ours, theirs = Sample(50.5, 1.0, 5), Sample(50.0, 3.0, 5)  # their mean is known to 1.3 only
    assert math.isinf(seeds_needed(ours, theirs, 1.0))
    both = seeds_needed(ours, theirs, 1.0, both=True)
    assert 100 < both < 1000
    assert math.isinf(seeds_needed(Sample(51.0, 1.0, 5), theirs, 1.0, both=True))  # on the margin
    assert math.isinf(seeds_needed(Sample(50.5, 0.0, 5), Sample(50.0, 0.0, 5), 0.4))


# Whether any outcome of ours could be equivalent.


def some_outcome(n: int, clients: int, theirs: Sample) -> bool:
    """By trying every outcome: `clients` + 1 shares for each of `n` seeds, in any order."""
    margin = 100 / clients
    tried = set()
    for run in combinations_with_replacement(range(clients + 1), n):
        known = (sum(run), sum(count * count for count in run))
        if known in tried or abs(100 * sum(run) / (n * clients) - theirs.mean) >= margin:
            continue  # the same mean and spread, or a difference of the margin
        tried.add(known)
        shares = 100 * np.array(run) / clients
        ours = share_of(clients, Sample(float(shares.mean()), float(shares.std(ddof=1)), n))
        if compare(ours, theirs, margin).outcome == EQUIVALENT:
            return True
    return False


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("clients", sampled([4, 20], every=2))
def test_a_share_is_attainable_exactly_when_some_outcome_is_equivalent(n: int, k: int, clients: int) -> None:
    for hits in (0, 1, 2, k * clients // 4, k * clients // 2, k * clients - 1, k * clients):
        for bare in (0.0, 3.0):
            theirs = share_of(clients, Sample(round(100 * hits / (k * clients), 2), bare, k, 0.005))
            found = attainable(n, theirs, 100 / clients, clients)
            assert found == some_outcome(n, clients, theirs), (hits, bare)


def test_five_seeds_a_side_and_twenty_clients_decide_only_near_the_ends() -> None:
    """The published IPRs of five seeds without any spread: equivalent is impossible from 4 to 96 %."""
    possible = [mean for mean in range(101) if attainable(5, share_of(20, Sample(mean, 0.0, 5, 0.005)), 5.0, 20)]
    assert possible == [0, 1, 2, 3, 97, 98, 99, 100]


def test_without_spread_of_theirs_only_the_margin_and_the_digits_bound_what_is_attainable() -> None:
    assert attainable(2, Sample(50.0, None, 1, 0.005), 1.0)
    assert not attainable(1, Sample(50.0, None, 1, 0.005), 1.0), "one seed"
    assert not attainable(9, Sample(50.0, None, 1, 0.5), 0.5), "the printed digits are as coarse as the margin"
    assert math.isinf(seeds_to_attain(Sample(50.0, None, 1, 0.5), 0.5))
    assert attainable(2, Sample(50.0, 9.0, 5), 1.0, bound=True)
    assert not attainable(1, Sample(50.0, 9.0, 5), 1.0, bound=True)


@pytest.mark.parametrize(("n", "k"), sampled([(5, 5), (5, 2), (2, 5), (20, 3)], every=2))
def test_the_spread_of_theirs_that_just_leaves_room(n: int, k: int) -> None:
    """Bisect for the largest spread that is attainable; a finer search over ours finds nothing beyond it."""
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if attainable(n, Sample(50.0, middle, k), 1.0) else (low, middle)
    ours = [Sample(50.0, float(std), n) for std in np.linspace(0, 5 * low, 1000)]
    assert any(compare(each, Sample(50.0, 0.999 * low, k), 1.0).outcome == EQUIVALENT for each in ours)
    assert not any(compare(each, Sample(50.0, 1.002 * low, k), 1.0).outcome == EQUIVALENT for each in ours)


def test_the_narrowest_interval_is_not_always_that_of_the_least_spread() -> None:
    """Two published seeds have one degree of freedom; t(.95) is 6.31 with 1 and 2.92 with 2, at s = s_p."""
    theirs, narrow, wide = Sample(50.0, 1.0, 2), Sample(50.0, 0.0, 2), Sample(50.0, 1.0, 2)
    outcomes = [compare(each, theirs, 3.0).outcome for each in (narrow, wide)]
    assert outcomes == [INCONCLUSIVE, EQUIVALENT]
    assert attainable(2, theirs, 3.0)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("theirs", [(95.0, 3.5, 20), (46.0, 2.24, 20), (50.0, 1.14, None), (96.0, 2.24, 20)])
def test_the_seeds_that_could_decide_are_the_first(theirs: tuple[float, float, int | None], both: bool) -> None:
    mean, std, clients = theirs
    sample, margin = Sample(mean, std, 5, 0.005), 1.0
    if clients:
        sample, margin = share_of(clients, sample), 100 / clients
    found = seeds_to_attain(sample, margin, clients, both=both)
    if math.isinf(found):
        assert not any(attainable(n, sample, margin, clients) for n in (2, 5, 50, 1000))
        assert not both, "with enough seeds on both sides everything can be decided"
        return
    ours = [
        attainable(n, Sample(*[sample.mean, sample.std, n if both else 5, 0.005]), margin, clients)
        for n in range(2, int(found) + 1)
    ]
    assert ours == [False] * (len(ours) - 1) + [True]


# Numbers of seeds, effects and outcomes on either side of where they change.


def needed(ours: Sample, theirs: Sample, margin: float, both: bool) -> float:
    """The first number of seeds up to 2000 with which the outcome has a probability of 80 %."""
    n, d, s = np.arange(2.0, 2001), abs(ours.mean - theirs.mean), ours.std or 0.0
    k = n if both else np.full_like(n, theirs.n)
    if theirs.std is None or theirs.n < 2:
        se, df = s * np.sqrt(1 / n + 1 / k), n - 1
    else:
        a, b = s * s / n, theirs.std**2 / k
        se, df = np.sqrt(a + b), (a + b) ** 2 / (a * a / (n - 1) + b * b / (k - 1))
    if d < margin:
        end = margin - theirs.rounding - stats.t.ppf(0.95, df) * se
        power = stats.norm.cdf(end, d, se) - stats.norm.cdf(-end, d, se)
    else:
        end = margin + theirs.rounding + stats.t.ppf(0.975, df) * se
        power = stats.norm.sf(end, d, se) + stats.norm.cdf(-end, d, se)
    return next((float(each) for each, chance in zip(n, power, strict=True) if chance >= 0.8), math.inf)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_seeds_that_would_decide_are_the_first(seed: int, both: bool) -> None:
    draw = np.random.default_rng(seed)
    gap = [0.0, 0.02, 0.6, -0.7, 1.6, -3.0][seed % 6]
    std = [None, 0.3, 0.9][seed % 3]
    ours, theirs = Sample(50 + gap, 0.2 + draw.random(), 5), Sample(50.0, std, [1, 5, 20, 3][seed % 4], 0.05)
    expected = needed(ours, theirs, 1.0, both)
    assert seeds_needed(ours, theirs, 1.0, both=both) == (expected if expected <= 1000 else math.inf)


@pytest.mark.parametrize("seeds", [999, 1000, 1001])
def test_a_thousand_seeds_are_the_most_that_are_told_of(seeds: int) -> None:
    """Bisect for the largest spread of ours with which so many seeds would decide."""
    theirs, low, high = Sample(50.0, None, 10**9), 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if needed(Sample(50.5, middle, 5), theirs, 1.0, False) <= seeds else (low, middle)
    found = seeds_needed(Sample(50.5, low, 5), theirs, 1.0)
    assert found == (seeds if seeds <= 1000 else math.inf)


@pytest.mark.parametrize("seeds", [3, 4, 5, 512, 513, 1000, 1001, 1024])
def test_the_first_seeds_that_could_decide_at_the_spread_that_just_leaves_room(seeds: int) -> None:
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if attainable(seeds, Sample(50.0, middle, seeds), 1.0) else (low, middle)
    found = seeds_to_attain(Sample(50.0, low, 5), 1.0, both=True)
    assert found == (seeds if seeds <= 1000 else math.inf)


@pytest.mark.parametrize("seed", range(10))
def test_the_effect_by_hand_on_drawn_samples(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n, k = (int(each) for each in draw.integers(2, 5, 2))
    a, b, s, t = (float(each) for each in draw.random(4) + 0.1)
    df = n - 1 + k - 1
    pooled = math.sqrt(((n - 1) * s * s + (k - 1) * t * t) / df)
    both = (a - b) / pooled * (1 - 3 / (4 * df - 1))
    assert hedges_g(Sample(a, s, n), Sample(b, t, k)) == pytest.approx(both)
    alone = (a - b) / s * (1 - 3 / (4 * n - 5)) if n > 2 else math.nan
    for theirs in (Sample(b, None, k), Sample(b, t, 1)):
        assert hedges_g(Sample(a, s, n), theirs) == pytest.approx(alone, nan_ok=True)
    assert math.isnan(hedges_g(Sample(a, 0.0, n), Sample(b, None, k)))
    assert math.isnan(hedges_g(Sample(a, s, 2), Sample(b, None, k)))


@pytest.mark.parametrize("side", [1, -1])
def test_a_difference_of_just_the_margin_is_neither(side: int) -> None:
    """Without any spread the interval is the difference, give or take what the printed digits leave out."""
    theirs = Sample(50.0, 0.0, 5)
    outcomes = [compare(Sample(50.0 + side * d, 0.0, 5), theirs, 1.0).outcome for d in (0.75, 1.0, 1.25)]
    assert outcomes == [EQUIVALENT, INCONCLUSIVE, DIFFERENT]
    rounded = Sample(50.0, 0.0, 5, 0.25)
    outcomes = [compare(Sample(50.0 + side * d, 0.0, 5), rounded, 1.0).outcome for d in (0.5, 0.75, 1.25, 1.5)]
    assert outcomes == [EQUIVALENT, INCONCLUSIVE, INCONCLUSIVE, DIFFERENT]
    assert [compare(Sample(50.0 + side * d, 0.0, 5), rounded, 1.0).p for d in (0.25, 0.5)] == [1.0, 0.0]
    found = compare(Sample(50.0 + side * 0.5, 0.0, 5), rounded, 1.0)
    assert (found.low, found.high, found.margin) == (side * 0.5 - 0.25, side * 0.5 + 0.25, 1.0)


def test_a_bound_has_one_end() -> None:
    theirs = Sample(50.0, 0.0, 5)
    outcomes = [compare(Sample(50.0 + d, 0.0, 5), theirs, 1.0, bound=True).outcome for d in (5, 1, -0.75, -1, -1.25)]
    assert outcomes == [EQUIVALENT, EQUIVALENT, EQUIVALENT, INCONCLUSIVE, DIFFERENT]
    assert compare(Sample(49.5, 1.0, 5), Sample(50.0, None, 5), 1.0, bound=True).outcome == INCONCLUSIVE


@pytest.mark.parametrize("ours", [Sample(50.0, None, 5), Sample(50.0, math.nan, 1)])
def test_a_sample_without_a_spread_is_none_of_ours(ours: Sample) -> None:
    with pytest.raises(ValueError, match="at least 2 seeds"):
        compare(ours, Sample(50.0, 1.0, 5), 1.0)
