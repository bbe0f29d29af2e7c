"""What the verdicts of a table are worth together: groups that lean, rows that pass for others."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedbench.tables import verdict
from fedbench.tables.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE
from fedbench.tables.store import Provenance
from tests.tables.toys import filled, value

A, B, C = [89.0, 90.0, 91.0, 90.5], [88.0, 89.5, 90.0, 90.1], [70.0, 71.0, 70.5, 70.2]
PUBLISHED = {"A": value(91.0, 0.5), "B": value(90.5, 0.7), "C": value(60.0, 1.0)}
GROUPS = {"near": ["A", "B*"]}


def test_a_group_is_averaged_by_seed_and_tested_over_seeds() -> None:
    table = filled({"A": A, "B": B, "C": C}, PUBLISHED, groups=GROUPS, published_seeds=5)
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


def test_p_is_adjusted_for_the_groups_of_the_table() -> None:
    """Two groups, so the smaller p counts twice (Holm)."""
    table = filled({"A": A, "B": B, "C": C}, PUBLISHED, groups=GROUPS, published_seeds=5)
    bare = []
    for rows in ([A, B, C], [A, B]):
        ours = np.mean(rows, axis=0)
        theirs = [PUBLISHED[row] for row in "ABC"[: len(rows)]]
        mean, std = np.mean([each.mean for each in theirs]), np.mean([each.std for each in theirs])
        bare.append(stats.ttest_ind_from_stats(ours.mean(), ours.std(ddof=1), 4, mean, std, 5, equal_var=False).pvalue)
    small, large = sorted(bare)
    assert sorted(each.p for each in verdict.biases(table)) == pytest.approx([2 * small, max(2 * small, large)])


def test_rows_that_share_a_draw_are_one_observation_a_seed() -> None:
    """Seven copies of one low row say no more than the row."""
    alone = filled({"A": A, "B": A}, {"A": PUBLISHED["A"], "B": PUBLISHED["A"]}, published_seeds=5)
    many = filled({f"R{i}": A for i in range(7)}, {f"R{i}": PUBLISHED["A"] for i in range(7)}, published_seeds=5)
    assert verdict.biases(alone)[0].p == pytest.approx(verdict.biases(many)[0].p)


def test_what_takes_no_part_in_a_joint_test() -> None:
    rows = [{"label": "A"}, {"label": "B"}, {"label": "C", "exploratory": "chosen afterwards"}]
    (found,) = verdict.biases(filled({"A": A, "B": B, "C": C}, PUBLISHED, rows=rows))
    assert found.rows == 2
    marked = [{**row, "exploratory": "chosen afterwards"} for row in rows]
    grouped = filled({"A": A, "B": B, "C": C}, PUBLISHED, rows=marked, groups={"both": ["A", "B"]})
    assert [(each.group, each.rows) for each in verdict.biases(grouped)] == [("both", 2)], "it has no others"
    assert verdict.biases(filled({"A": A, "B": [90.0], "C": []}, PUBLISHED)) == []
    assert verdict.biases(filled({"A": A, "B": B}, PUBLISHED, made=Provenance("quick"))) == []
    (common,) = verdict.biases(filled({"A": A, "B": B[:2]}, PUBLISHED))
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
    assert verdict.matches(filled({"A": A}, PUBLISHED, made=Provenance("quick"))) == []
