"""Rows compared: their order and the paper's, paired intervals, groups that lean, rows that pass for others."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from fedbench.tables import verdict
from fedbench.tables.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE, Sample, compare
from fedbench.tables.spec import Published
from fedbench.tables.store import Provenance
from fedbench.tables.verdict import Verdict, agreements, verdict_of
from tests.tables.toys import filled, value

PUBLISHED = {"A": value(1.0), "B": value(2.0), "C": value(3.0), "D": value(4.0)}


def test_kendalls_tau_by_hand() -> None:
    # Ours orders A < C < B < D: of six pairs only (B, C) is discordant, tau = (5 - 1) / 6.
    (found,) = agreements(filled({"A": [1], "B": [3], "C": [2], "D": [9]}, PUBLISHED, headline="D"))
    assert found.tau == pytest.approx(4 / 6)
    assert (found.headline, found.headline_published, found.rows) == (True, True, 4)


def test_a_lower_metric_turns_the_best_and_not_the_tau() -> None:
    values = {"A": [1.0], "B": [3.0], "C": [2.0], "D": [9.0]}
    metrics = [{"name": "acc", "better": "lower"}]
    (found,) = agreements(filled(values, PUBLISHED, metrics=metrics, headline="D"))
    assert found.tau == pytest.approx(4 / 6)
    assert (found.best_ours, found.best_published, found.headline) == (("A",), ("A",), False)


def test_what_only_rounding_tells_apart_is_a_tie() -> None:
    third = 0.1 + 0.2  # 0.30000000000000004
    (found,) = agreements(filled({"A": [0.1], "B": [0.3], "C": [third], "D": [9.0]}, PUBLISHED, headline="D"))
    assert found.tau == pytest.approx(5 / 30**0.5)  # tau-b: five of six pairs in order, one tie


def test_only_rows_with_both_values_count() -> None:
    values = {"A": [1.0], "B": [], "C": [math.nan], "D": [2.0], "E": [9.0]}
    (found,) = agreements(filled(values, PUBLISHED, headline="B"))
    assert found.rows == 2
    assert math.isnan(found.tau)
    assert found.headline is None
    assert agreements(filled({"E": [1.0]}, PUBLISHED)) == []


def test_a_table_at_other_settings_has_no_order_to_agree_with() -> None:
    values = {"A": [1], "B": [3], "C": [2]}
    assert agreements(filled(values, PUBLISHED))
    assert agreements(filled(values, PUBLISHED, varies="another")) == []


def test_ties_are_named() -> None:
    (found,) = agreements(filled({"A": [5], "B": [5], "C": [1]}, PUBLISHED, headline="A"))
    assert found.best_ours == ("A", "B")
    assert found.headline is True


def test_a_claim_does_not_hold_because_all_rows_tie() -> None:
    (found,) = agreements(filled({"A": [5], "B": [5], "C": [5]}, PUBLISHED, headline="A"))
    assert found.headline is False


# Paired intervals and Holm's adjustment, against independent computations.

TESTED_METRIC = filled({"A": [1.0]}).spec.metrics[0]


def test_paired_interval_and_p_are_scipys() -> None:
    a, b = [90.0, 91.5, 89.0, 92.0], [88.0, 90.0, 88.5, 89.0]
    (found,) = verdict.paired(filled({"A": a, "B": b}), TESTED_METRIC, "A")
    test = stats.ttest_rel(a, b)
    interval = test.confidence_interval(0.95)
    assert (found.seeds, found.difference) == (4, pytest.approx(1.75))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(test.pvalue)


def test_holm_by_hand() -> None:
    # Sorted .01 .02 .03 .4 are multiplied by 4 3 2 1 and never fall: .04 .06 .06 .4.
    assert verdict.holm([0.03, 0.01, 0.4, 0.02]) == pytest.approx([0.06, 0.04, 0.4, 0.06])
    assert verdict.holm([]) == []


def test_pairs_need_three_common_seeds() -> None:
    assert verdict.paired(filled({"A": [1, 2], "B": [2, 3]}), TESTED_METRIC, "A") == []


def test_constant_differences_are_certain() -> None:
    (found,) = verdict.paired(filled({"A": [3, 4, 5], "B": [1, 2, 3]}), TESTED_METRIC, "A")
    assert (found.low, found.high, found.p) == (2, 2, 0)
    (same,) = verdict.paired(filled({"A": [3, 4, 5], "B": [3, 4, 5]}), TESTED_METRIC, "A")
    assert same.p == 1


# What the verdicts of a table are worth together: groups that lean, rows that pass for others.

A, B, C = [89.0, 90.0, 91.0, 90.5], [88.0, 89.5, 90.0, 90.1], [70.0, 71.0, 70.5, 70.2]
JOINT_PUBLISHED = {"A": value(91.0, 0.5), "B": value(90.5, 0.7), "C": value(60.0, 1.0)}
GROUPS = {"near": ["A", "B*"]}


def test_a_group_is_averaged_by_seed_and_tested_over_seeds() -> None:
    table = filled({"A": A, "B": B, "C": C}, JOINT_PUBLISHED, groups=GROUPS, published_seeds=5)
    every, near = verdict.biases(table)
    assert (every.group, every.rows, near.group, near.rows, near.below, near.seeds) == (
        "all rows",
        3,
        "near",
        2,
        2,
        4,
    )
    rows = np.mean([A, B], axis=0)
    # Published: mean (91 + 90.5) / 2 with the mean of the spreads.
    test = stats.ttest_ind_from_stats(rows.mean(), rows.std(ddof=1), 4, 90.75, 0.6, 5, equal_var=False)
    assert near.difference == pytest.approx(rows.mean() - 90.75)
    assert near.p == pytest.approx(test.pvalue), "the larger of two, which Holm leaves as it is"
    assert near.low < near.difference < near.high < 0 or near.p > 0.05


@pytest.mark.parametrize("seed", range(8))
def test_a_group_s_interval_is_welch_s_of_its_means_by_hand(seed: int) -> None:
    """Rows with other seeds, printed digits and spreads; where theirs is not printed it is taken to be ours."""
    draw = np.random.default_rng(seed)
    count, common, k = int(draw.integers(2, 6)), int(draw.integers(2, 5)), int(draw.integers(2, 9))
    values = {f"R{i}": (80 + 3 * draw.random(common)).tolist() for i in range(count)}
    known = seed % 2 == 0
    digits = draw.integers(0, 3, count).tolist()
    published = {
        row: value(float(np.round(81 + draw.random(), places)), float(draw.random()) if known else None, places)
        for row, places in zip(values, digits, strict=True)
    }
    (found,) = verdict.biases(filled(values, published, published_seeds=k))
    means = [sum(values[row][n] for row in values) / count for n in range(common)]
    d = sum(means) / common - sum(each.mean for each in published.values()) / count
    ours = sum((mean - sum(means) / common) ** 2 for mean in means) / (common - 1)
    theirs = (sum(each.std for each in published.values()) / count) ** 2 if known else ours
    parts = ours / common, theirs / k
    welch = sum(parts) ** 2 / (parts[0] ** 2 / (common - 1) + parts[1] ** 2 / (k - 1))
    df = welch if known else common - 1
    rounding = sum(0.5 * 10.0**-places for places in digits) / count
    half = stats.t.ppf(0.975, df) * sum(parts) ** 0.5 + rounding
    assert (found.low, found.difference, found.high) == pytest.approx((d - half, d, d + half))
    assert found.below == sum(sum(values[row]) / common < published[row].mean for row in values)
    assert (found.rows, found.seeds) == (count, common)


def test_p_is_adjusted_for_the_groups_of_the_table() -> None:
    """Two groups, so the smaller p counts twice (Holm)."""
    table = filled({"A": A, "B": B, "C": C}, JOINT_PUBLISHED, groups=GROUPS, published_seeds=5)
    bare = []
    for rows in ([A, B, C], [A, B]):
        ours = np.mean(rows, axis=0)
        theirs = [JOINT_PUBLISHED[row] for row in "ABC"[: len(rows)]]
        mean, std = np.mean([each.mean for each in theirs]), np.mean([each.std for each in theirs])
        bare.append(stats.ttest_ind_from_stats(ours.mean(), ours.std(ddof=1), 4, mean, std, 5, equal_var=False).pvalue)
    small, large = sorted(bare)
    assert sorted(each.p for each in verdict.biases(table)) == pytest.approx([2 * small, max(2 * small, large)])


def test_rows_that_share_a_draw_are_one_observation_a_seed() -> None:
    """Seven copies of one low row say no more than the row."""
    alone = filled({"A": A, "B": A}, {"A": JOINT_PUBLISHED["A"], "B": JOINT_PUBLISHED["A"]}, published_seeds=5)
    many = filled({f"R{i}": A for i in range(7)}, {f"R{i}": JOINT_PUBLISHED["A"] for i in range(7)}, published_seeds=5)
    assert verdict.biases(alone)[0].p == pytest.approx(verdict.biases(many)[0].p)


def test_what_takes_no_part_in_a_joint_test() -> None:
    rows = [{"label": "A"}, {"label": "B"}, {"label": "C", "exploratory": "chosen afterwards"}]
    (found,) = verdict.biases(filled({"A": A, "B": B, "C": C}, JOINT_PUBLISHED, rows=rows))
    assert found.rows == 2
    marked = [{**row, "exploratory": "chosen afterwards"} for row in rows]
    grouped = filled({"A": A, "B": B, "C": C}, JOINT_PUBLISHED, rows=marked, groups={"both": ["A", "B"]})
    assert [(each.group, each.rows) for each in verdict.biases(grouped)] == [("both", 2)], "it has no others"
    assert verdict.biases(filled({"A": A, "B": [90.0], "C": []}, JOINT_PUBLISHED)) == []
    assert verdict.biases(filled({"A": A, "B": B}, JOINT_PUBLISHED, made=Provenance("quick"))) == []
    (common,) = verdict.biases(filled({"A": A, "B": B[:2]}, JOINT_PUBLISHED))
    assert common.seeds == 2


def test_a_row_may_pass_for_another() -> None:
    close = {"A": value(90.1, 0.1), "B": value(90.2, 0.1), "C": value(60.0, 0.1), "D": value(91.0, 0.1)}
    table = filled({"A": [90.0, 90.1, 90.2], "B": [75.0, 75.1, 75.2], "C": [], "D": [90.0]}, close, published_seeds=5)
    found = verdict.matches(table)
    assert {each.row for each in found} == {"A", "B"}, "no test of one seed, nor of none"
    assert verdict.passes_for(found, "c", "acc", "A") == ("B",)
    assert verdict.passes_for(found, "c", "acc", "B") == ()
    matrix = verdict.matrix(found, "c")
    assert {pair[1]: outcome for pair, outcome in matrix.items() if pair[0] == "A"} == {
        "A": [EQUIVALENT],
        "B": [EQUIVALENT],
        "C": [DIFFERENT],
        "D": [INCONCLUSIVE],
    }
    assert verdict.matches(filled({"A": A}, JOINT_PUBLISHED, made=Provenance("quick"))) == []


def gains(*values: float, published: Published, clients: int = 20) -> Verdict:
    table = filled({"A": values}, {"A": published}, metrics=[{"name": "ipr"}], published_seeds=5)
    table = dataclasses.replace(table, clients={"c": clients})
    return verdict_of(table, table.cells[0])


def test_seeds_that_agree_on_a_share_are_not_known_to_vary_less_than_clients_do() -> None:
    """Two seeds of 100 % beside five: s = 100 sqrt(q (1 - q) / 20), q = 40.5 / 41 and 100.5 / 101."""
    found = gains(100, 100, published=value(100.0, 0.0)).comparison
    assert found is not None
    ours, theirs = (100 * math.sqrt(q * (1 - q) / 20) for q in (40.5 / 41, 100.5 / 101))
    a, b = ours**2 / 2, theirs**2 / 5
    df = (a + b) ** 2 / (a**2 + b**2 / 4)
    assert found.high == pytest.approx(stats.t.ppf(0.975, df) * math.sqrt(a + b) + 0.005)
    assert found.outcome == INCONCLUSIVE
    assert gains(*[100] * 5, published=value(100.0, 0.0)).kind == EQUIVALENT
    assert gains(20, 40, 60, published=value(40.0, 20.0)).comparison == dataclasses.replace(
        compare(Sample(40, 20, 3), Sample(40, 20, 5, 0.005), 5)
    ), "what varies more keeps its own spread"


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_at_most_one_value_in_twenty_at_the_margin_is_called_equivalent(seeds: int) -> None:
    """All of the paper's 20 clients gain, of ours 95 % on average: one client fewer, the margin."""
    rng = np.random.default_rng(0)
    runs = 5 * rng.binomial(20, 0.95, (1000, seeds))
    told = {tuple(sorted(run)): 0 for run in runs.tolist()}
    for run in told:
        told[run] = gains(*run, published=value(100.0, 0.0)).kind == EQUIVALENT
    assert np.mean([told[tuple(sorted(run))] for run in runs.tolist()]) < 0.06


def test_the_bare_spread_of_shares_would_call_one_in_ten_equivalent() -> None:
    """As above with five seeds, each side with the spread that it has."""
    runs = 5.0 * np.random.default_rng(0).binomial(20, 0.95, (1000, 5))
    told = [
        compare(Sample(run.mean(), max(run.std(ddof=1), 1e-9), 5), Sample(100, 0, 5, 0.005), 5).outcome for run in runs
    ]
    assert 0.08 < np.mean([outcome == EQUIVALENT for outcome in told]) < 0.13
