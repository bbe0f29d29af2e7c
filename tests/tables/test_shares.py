"""The verdict on a share of clients, which moves in steps and ends at 0 and 100 %."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from fedbench.tables.equivalence import EQUIVALENT, INCONCLUSIVE, Sample, compare
from fedbench.tables.spec import Published
from fedbench.tables.verdict import Verdict, verdict_of
from tests.tables.toys import filled, value


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
