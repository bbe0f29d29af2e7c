"""FedCollab client by client: p values and intervals by hand, and the page that is drawn of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedbench.papers.equivalence import EQUIVALENT, Sample, compare
from fedbench.papers.published import Published
from tests.papers.tables.toys import value

ROOT = Path(__file__).parents[2]
LARGE = np.array([True, True, False, False])
OURS = np.array([[90.0, 80, 50, 50], [92.0, 84, 50, 50], [91.0, 82, 50, 50]])


@pytest.fixture
def script(load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    found = load("by_client")
    monkeypatch.setattr(found, "SAMPLES", 100)
    return found


def test_the_spread_is_pooled_over_a_group_and_the_p_values_are_holms(script: Any) -> None:
    of_seeds, of_samples = script.p_values(OURS, np.array([95.0, 82, 50, 51]), LARGE)
    error = math.sqrt((1 + 4) / 2 * (1 + 1 / 3))  # the variances of the first two clients are 1 and 4
    p = 2 * stats.t.sf(4 / error, 4)
    rounding = math.sqrt(1 / 12) * math.sqrt(1 + 1 / 3)  # the last group varies less than by whole samples
    q = 2 * stats.t.sf(1 / rounding, 4)
    assert of_seeds == pytest.approx([3 * p, 1, 1, 4 * q])
    assert of_samples == pytest.approx(np.ones(4))
    _, of_samples = script.p_values(OURS, np.array([95.0, 82, 50, 20]), LARGE)
    assert of_samples == pytest.approx([1, 1, 1, 4 * stats.fisher_exact([[50, 50], [20, 80]]).pvalue])


def test_one_more_seed(script: Any) -> None:
    low, high = script.interval_of_another(np.array([80.0, 82, 84]), 100)
    half = stats.t.ppf(0.975, 2) * 2 * math.sqrt(4 / 3)
    assert (low, high) == (pytest.approx(82 - half), pytest.approx(82 + half))
    _, high = script.interval_of_another(np.array([0.0, 0.0]), 1000)  # one sample is 0.1 %
    assert high == pytest.approx(stats.t.ppf(0.975, 1) * 0.1 / math.sqrt(12) * math.sqrt(1.5))


def test_the_exact_p_by_hand(script: Any) -> None:
    """Three runs; clients gain in 3, 1 and 0 of them: 1 or 2 gain in a run, with the chances 2/3 and 1/3."""
    times = np.array([3.0, 1, 0])
    assert [script.exact_p(times, 3, found) for found in (1, 2, 3, 0)] == pytest.approx([1, 1 / 3, 0, 0])


SURE = np.arange(20) < 10


def runs(shares: np.ndarray, seeds: int, rng: np.random.Generator) -> np.ndarray:
    return rng.random((seeds, 20)) < shares


def shown(gains: np.ndarray) -> Published:
    return value(100 * float(gains.mean()), 100 * float(gains.mean(1).std(ddof=1)))


def test_the_spread_of_gains_is_summed_over_clients(script: Any) -> None:
    gains = np.tile(SURE, (5, 1))
    gains[0, 0] = False  # 4 of 5, and the published run has it: 5 of 6, a variance of 5 / 30
    test, _ = script.share_test(gains, SURE, value(50.0, 0.0))
    spread = 5 * math.sqrt(5 / 30)
    wide = compare(Sample(49.0, math.sqrt(5.0), 5), Sample(50.0, spread, 5, 0.005), 5.0)
    assert (test.difference, test.low, test.high) == pytest.approx((-1, wide.low, wide.high)), "ours varies more, 2.24"
    assert test.outcome == EQUIVALENT
    sure, seeds = script.share_test(np.tile(SURE, (5, 1)), SURE, value(50.0, 0.0))
    assert (sure.outcome, seeds) == (EQUIVALENT, math.inf), "nothing varies; the tables' rule could not tell"


@pytest.mark.slow
def test_by_client_at_most_one_value_in_twenty_at_the_margin_is_called_equivalent(script: Any) -> None:
    """Shares of 20 clients that differ by one client of them in truth, in four ways; and shares that are alike."""
    rng = np.random.default_rng(0)

    def rate(ours: np.ndarray, theirs: np.ndarray) -> float:
        told = []
        for _ in range(120):
            published = runs(theirs, 5, rng)
            test, _ = script.share_test(runs(ours, 5, rng), published[0], shown(published))
            told.append(test.outcome == EQUIVALENT)
        return float(np.mean(told))

    half, two = SURE / 1.0, np.where(np.arange(20) < 8, 1.0, np.where(np.arange(20) < 10, 0.8, 0))
    one_more = np.arange(20) < 11
    for ours, theirs in (
        (np.full(20, 0.95), np.ones(20)),
        (one_more, half),
        (0.8 * half, 0.9 * half),
        (half, np.where(np.arange(20) < 8, 1.0, 0.5 * half)),
    ):
        assert rate(ours, theirs) < 0.12, "5 %, of 120 trials"
    assert rate(half, half) == 1
    assert rate(two, two) > 0.35, "the tables' rule calls none of these equivalent"


def test_the_committed_page_is_of_the_committed_tables(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails: make tables."""
    monkeypatch.setattr(script, "SAMPLES", 350)
    page = ROOT / "results" / "clients" / "fedcollab.md"
    assert script.text(*script.collect(ROOT / "results")) == page.read_text(encoding="utf-8")


def test_without_tables_it_says_what_to_do(script: Any, tmp_path: Path, capsys: Any) -> None:
    assert script.main(tmp_path) == 2
    assert "make reproduce-fedcollab-t1 columns=1 rows=1,2,3" in capsys.readouterr().err
