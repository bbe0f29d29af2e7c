"""Paired intervals, Holm's adjustment, average ranks and critical difference, against independent computations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedbench.tables import verdict
from tests.tables.toys import filled

METRIC = filled({"A": [1.0]}).spec.metrics[0]


def test_paired_interval_and_p_are_scipys() -> None:
    a, b = [90.0, 91.5, 89.0, 92.0], [88.0, 90.0, 88.5, 89.0]
    (found,) = verdict.paired(filled({"A": a, "B": b}), METRIC, "A")
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
    assert verdict.paired(filled({"A": [1, 2], "B": [2, 3]}), METRIC, "A") == []


def test_constant_differences_are_certain() -> None:
    (found,) = verdict.paired(filled({"A": [3, 4, 5], "B": [1, 2, 3]}), METRIC, "A")
    assert (found.low, found.high, found.p) == (2, 2, 0)
    (same,) = verdict.paired(filled({"A": [3, 4, 5], "B": [3, 4, 5]}), METRIC, "A")
    assert same.p == 1


def test_average_ranks_friedman_and_nemenyi() -> None:
    rows = {"A": [9.0, 8.0, 9.0, 7.0, 9.0], "B": [5.0, 8.0, 6.0, 6.0, 5.0], "C": [1.0, 2.0, 3.0, 6.0, 2.0]}
    ranked = verdict.ranks(filled(rows), METRIC)
    assert ranked is not None
    # Ties share ranks: A has 1, 1.5, 1, 1, 1; B 2, 1.5, 2, 2.5, 2; C 3, 3, 3, 2.5, 3.
    assert ranked.ranks == pytest.approx({"A": 1.1, "B": 2.0, "C": 2.9})
    assert ranked.p == pytest.approx(stats.friedmanchisquare(*rows.values()).pvalue)
    # Demsar's table: q(.05) for three methods is 2.343.
    assert ranked.critical == pytest.approx(2.343 * np.sqrt(3 * 4 / (6 * 5)), abs=1e-3)


def test_ranks_need_blocks_and_rows() -> None:
    assert verdict.ranks(filled({"A": [1, 2], "B": [2, 3]}), METRIC) is None
    assert verdict.ranks(filled({"A": [1], "B": [2], "C": [3]}), METRIC) is None
