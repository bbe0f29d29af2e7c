"""Order of a column against the paper's, and whether its headline holds."""

from __future__ import annotations

import math

import pytest

from fedbench.tables import verdict
from fedbench.tables.spec import MetricSpec
from fedbench.tables.verdict import agreements
from tests.tables.toys import filled, value

METRIC = MetricSpec("acc")
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
    tied = verdict.ranks(filled({"A": [0.3, 1], "B": [third, 2], "C": [9, 9]}), METRIC)
    assert tied is not None
    assert tied.ranks["A"] == pytest.approx(2.75)  # 2.5 and 3


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
