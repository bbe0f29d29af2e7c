"""Averages, metrics and verdicts on any values, against their definitions."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fedbench.core import trees
from fedbench.metrics import Tally, fairness, improvement, report, time_to_accuracy, weighted
from fedbench.papers.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE, Sample, compare, seeds_needed
from tests.helpers.examples import tried

Counts = list[tuple[int, int]]
pairs = st.integers(0, 30).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total)))
counts = st.lists(pairs, min_size=1, max_size=8)


def tally(counted: Counts) -> Tally:
    return Tally(np.array([c for c, _ in counted]), np.array([t for _, t in counted]))


def exact(counted: Counts) -> list[Fraction]:
    return [Fraction(c, t) for c, t in counted if t]


def same(found: float, wanted: Fraction | None) -> bool:
    return math.isnan(found) if wanted is None else math.isclose(found, float(wanted), abs_tol=1e-12)


@given(counts)
@tried(5)
def test_accuracies_are_the_ratios_of_their_counts(counted: Counts) -> None:
    known, tested = exact(counted), sum(t for _, t in counted)
    assert same(tally(counted).mean(), sum(known, Fraction()) / len(known) if known else None)
    assert same(tally(counted).pooled(), Fraction(sum(c for c, _ in counted), tested) if tested else None)


@given(st.lists(st.tuples(pairs, pairs), min_size=1, max_size=8))
@example([((1, 3), (10, 30)), ((2, 30), (1, 15))])
@tried(5)
def test_ipr_and_rsd_are_those_of_exact_ratios(both: list[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    ours, local = (tally([each[i] for each in both]) for i in (0, 1))
    found = fairness(ours.accuracy(), local.accuracy())
    gains = [Fraction(*a) - Fraction(*b) for a, b in both if a[1] and b[1]]
    assert same(found.ipr, Fraction(100 * sum(g > 0 for g in gains), len(gains)) if gains else None)
    assert (
        math.isnan(found.rsd)
        if not gains
        else math.isclose(found.rsd, 100 * math.sqrt(statistics.pvariance(gains)), abs_tol=1e-9)
    )


@given(st.data(), st.integers(1, 5), st.integers(1, 7), st.sampled_from(["client", "pooled"]), st.booleans())
@tried(5)
def test_report_rules_read_the_rounds_that_they_say(
    data: st.DataObject, clients: int, evaluations: int, average: str, per_client: bool
) -> None:
    totals = data.draw(st.lists(st.integers(0, 9), min_size=clients, max_size=clients))
    scored = [[(data.draw(st.integers(0, t)), t) for t in totals] for _ in range(2 * evaluations)]
    test, val = scored[:evaluations], scored[evaluations:]
    rounds = list(range(0, 5 * evaluations, 5))

    def score(counted: Counts) -> Fraction:
        known = exact(counted)
        if average == "client":
            return sum(known, Fraction()) / len(known) if known else Fraction()
        return Fraction(sum(c for c, _ in counted), max(1, sum(totals)))

    def best(scores: list[Fraction]) -> int:
        return scores.index(max(scores)) if any(totals) else evaluations - 1

    shared = best(list(map(score, val)))
    own = [best([Fraction(v[i][0], t) for v in val]) if t else shared for i, t in enumerate(totals)]
    chosen = {
        "last": [[evaluations - 1] * clients],
        "best_test": [[best(list(map(score, test)))] * clients],
        "best_val": [own if per_client else [shared] * clients],
        "mean_last_5": [[i] * clients for i in (list(range(1, evaluations))[-5:] or [0])],
    }
    for rule, picked in chosen.items():
        found = report(rule, rounds, list(map(tally, test)), list(map(tally, val)), average, per_client)
        assert found.rounds.tolist() == [[rounds[i] for i in row] for row in picked]
        assert found.tally.correct.tolist() == [sum(test[row[c]][c][0] for row in picked) for c in range(clients)]


accuracies = st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), min_size=1, max_size=8)


@given(accuracies, accuracies, st.floats(0, 1))
@tried(5)
def test_time_to_accuracy_is_the_first_round_that_reaches_it(
    slow: list[float], fast: list[float], reference: float
) -> None:
    times = []
    for accuracy in (slow, fast):
        rounds = [3 * i for i in range(len(accuracy))]
        found = time_to_accuracy(rounds, accuracy, reference, [1.5 * n for n in rounds], [7 * n for n in rounds])
        first = next((i for i, value in enumerate(accuracy) if value >= reference - 1e-9), None)
        wanted = (None, None, None) if first is None else (3 * first, 4.5 * first, 21 * first)
        assert (found.rounds, found.seconds, found.bytes) == wanted
        times.append(found)
    ratio = improvement(*times)
    assert (ratio is None) == (not all(each.rounds is not None for each in times))
    assert ratio is None or ratio >= 0


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=6), st.data())
@tried(5)
def test_an_average_is_the_weighted_sum(rows: list[list[float]], data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 1000), min_size=len(rows), max_size=len(rows)))
    weights = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    leaf = torch.tensor(rows, dtype=torch.float64)
    found = trees.mean({"w": leaf, "n": leaf.round().long()}, weights)
    wanted = [math.fsum(n * row[i] for n, row in zip(sizes, rows, strict=True)) / sum(sizes) for i in range(3)]
    assert found["w"].tolist() == pytest.approx(wanted, abs=1e-9)
    assert found["n"].dtype == torch.int64
    assert bool((found["w"] <= leaf.amax(0) + 1e-9).all() & (found["w"] >= leaf.amin(0) - 1e-9).all())
    with pytest.raises(ValueError, match="row-stochastic"):
        trees.mean({"w": leaf}, weights * 1.01)


@given(counts, st.data())
@tried(3)
def test_label_shares_weigh_the_global_set(counted: Counts, data: st.DataObject) -> None:
    shares = data.draw(st.lists(st.integers(0, 5), min_size=len(counted), max_size=len(counted)))
    correct, total = np.array([[c for c, _ in counted]]), np.array([t for _, t in counted])
    found = weighted(correct, total, np.array([shares])).accuracy()[0]
    below = sum(q * t for q, (_, t) in zip(shares, counted, strict=True))
    above = sum(q * c for q, (c, _) in zip(shares, counted, strict=True))
    assert same(float(found), Fraction(above, below) if below else None)


spreads = st.one_of(st.just(0.0), st.floats(1e-6, 50))
samples = st.builds(Sample, st.floats(-100, 100), spreads, st.integers(2, 30))
papers = st.builds(
    Sample,
    st.floats(-100, 100),
    st.one_of(st.none(), spreads),
    st.integers(1, 10),
    st.sampled_from([0.0, 0.005, 0.5]),
)


@given(samples, papers, st.floats(0, 20), st.floats(0, 20), st.booleans())
@tried(5)
def test_a_verdict_is_one_of_three_and_a_wider_margin_agrees_with_more(
    ours: Sample, theirs: Sample, margin: float, more: float, bound: bool
) -> None:
    narrow, wide = (compare(ours, theirs, each, bound=bound) for each in (margin, margin + more))
    assert narrow.outcome in (EQUIVALENT, DIFFERENT, INCONCLUSIVE)
    assert narrow.low <= narrow.difference <= narrow.high
    assert 0 <= narrow.p <= 1
    order = [DIFFERENT, INCONCLUSIVE, EQUIVALENT]
    assert order.index(narrow.outcome) <= order.index(wide.outcome)
    if not bound:
        if narrow.outcome == EQUIVALENT:
            assert abs(narrow.difference) < margin
        if narrow.outcome == DIFFERENT:
            assert abs(narrow.difference) > margin
        mirrored = compare(
            Sample(-ours.mean, ours.std, ours.n),
            Sample(-theirs.mean, theirs.std, theirs.n, theirs.rounding),
            margin,
        )
        assert mirrored.outcome == narrow.outcome
        assert math.isclose(mirrored.low, -narrow.high, abs_tol=1e-9)
    needed = seeds_needed(ours, theirs, margin)
    assert needed >= 2
