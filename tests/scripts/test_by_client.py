"""FedCollab client by client: p values and intervals by hand, and the page that is drawn of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

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


def test_the_committed_page_is_of_the_committed_tables(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails: make tables."""
    monkeypatch.setattr(script, "SAMPLES", 350)
    page = ROOT / "results" / "clients" / "fedcollab.md"
    assert script.text(*script.collect(ROOT / "results")) == page.read_text(encoding="utf-8")


def test_without_tables_it_says_what_to_do(script: Any, tmp_path: Path, capsys: Any) -> None:
    assert script.main(tmp_path) == 2
    assert "make reproduce-fedcollab-t1 columns=1 rows=1,2,3" in capsys.readouterr().err
