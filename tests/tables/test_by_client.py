"""Client by client: p values by hand, prediction intervals, shares that gain, and the command that draws them."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedbench.core.errors import ConfigError
from fedbench.data import authors
from fedbench.tables import store
from fedbench.tables.by_client import compare, further, paired, shares_gaining
from fedbench.tables.render.by_client import LABELS, PARTITION

OURS = np.array([[90.0, 80, 50, 50], [92.0, 84, 50, 50], [91.0, 82, 50, 50]])
TWO = np.array([0, 0, 1, 1])


def test_the_spread_is_pooled_over_a_group_and_the_p_values_are_holms() -> None:
    found = compare(OURS, np.array([95.0, 82, 50, 51]), 100, TWO)
    assert found.mean == pytest.approx([91, 82, 50, 50])
    error = math.sqrt((1 + 4) / 2 * (1 + 1 / 3))  # the variances of the first two clients are 1 and 4
    p = 2 * stats.t.sf(4 / error, 4)
    still = math.sqrt(1 / 12) * math.sqrt(
        1 + 1 / 3
    )  # the last group does not vary: as rounding to a sample would
    q = 2 * stats.t.sf(1 / still, 4)
    assert found.of_seeds == pytest.approx([3 * p, 1, 1, 4 * q])


def test_the_exact_test_counts_samples() -> None:
    found = compare(OURS, np.array([95.0, 82, 50, 20]), 100, TWO)
    p = stats.fisher_exact([[50, 50], [20, 80]]).pvalue
    assert found.of_samples == pytest.approx([1, 1, 1, 4 * p])


def test_one_seed_has_no_spread() -> None:
    found = compare(OURS[:1], OURS[0], 100, TWO)
    assert np.isnan(found.of_seeds).all()
    assert np.isnan(found.std).all()
    with pytest.raises(ConfigError, match=r"\(3,\) published clients cannot stand beside \(3, 4\)"):
        compare(OURS, OURS[0, :3], 100, TWO)


def test_one_more_seed() -> None:
    found = further(np.array([80.0, 82, 84]), 86.0, 100)
    half = stats.t.ppf(0.975, 2) * 2 * math.sqrt(4 / 3)
    assert (found.low, found.high) == (pytest.approx(82 - half), pytest.approx(82 + half))
    assert found.inside
    same = further(np.array([0.0, 0.0]), 0.1, 1000)  # one sample
    assert same.high == pytest.approx(stats.t.ppf(0.975, 1) * 0.1 / math.sqrt(12) * math.sqrt(1.5))
    assert not further(np.array([80.0, 82, 84]), 93.0, 100).inside


def test_the_gap_over_clients_is_students() -> None:
    found = paired(np.array([1.0, 2, 3]))
    half = stats.t.ppf(0.975, 2) / math.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((2, 2 - half, 2 + half))
    assert found.p == pytest.approx(2 * stats.t.sf(2 * math.sqrt(3), 2))


def test_shares_gaining_against_the_own_and_all_other_locals() -> None:
    local = {0: np.array([50.0, 60]), 1: np.array([51.0, 59])}
    same, other = shares_gaining({0: local[0], 3: np.array([55.0, 60])}, local)
    assert same == [0]
    assert other == [50, 50, 100]  # seed 0 beside Local 1; seed 3 beside both


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    yield importlib.import_module("by_client")
    del sys.modules["by_client"]


def test_the_published_history_agrees_with_itself(script: Any, tmp_path: Path) -> None:
    kept = (0, 4, 50, 200)
    for table, keys in (("fedcollab_t1", authors.METHODS), ("fedcollab_t3", ("distances",))):
        clients, curves = {}, []
        for key, seed in ((key, seed) for key in keys for seed in (0, 1, 2)):
            label, shift = LABELS[key], 0.1 * (seed - 1)
            method = key if key in authors.METHODS else "local"
            clients[store.place_of(label, "Label shift", seed)] = authors.clients(method) + shift * (
                key == method
            )
            rounds = [0.0, *(authors.rounds(method) + shift)]
            curves += [
                {
                    "row": label,
                    "column": "Label shift",
                    "seed": seed,
                    "round": number,
                    "acc_on_local": rounds[number],
                }
                for number in kept
            ]
        folder = tmp_path / "tables" / f"{table}-{PARTITION}"
        folder.mkdir(parents=True)
        store.save_clients(folder, clients)
        store.save_curves(folder, curves)
    assert script.main([str(tmp_path)]) == 0
    drawn = (tmp_path / "clients" / "fedcollab.md").read_text(encoding="utf-8")
    assert "| FedAvg+FedCollab | small | 3 | 90.51 ± 0.10 | 90.51 | 90.02 to 91.01 | yes |" in drawn
    assert drawn.count("0 of 20 clients differ beside our seeds, 0 by the exact test") == 3
    assert "| 200 | 85.80 ± 0.10 | 85.80 |" in drawn
    assert "| Ignore distances | 3 | 33.33 | 6 | 33.33 |" in drawn  # above the Local of seed 0 alone


def test_without_tables_it_says_what_to_do(script: Any, tmp_path: Path, capsys: Any) -> None:
    assert script.main([str(tmp_path)]) == 2
    assert "make reproduce-fedcollab-t1 partition=fedcollab_label_shift_seed0" in capsys.readouterr().err
