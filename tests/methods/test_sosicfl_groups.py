"""The five groups of SosicFL's 5-Fold in the simplex: how many endpoints keep them apart."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from fedbench.core import rng
from fedbench.data.partitions.groups import Fold
from fedbench.methods.parts import simplex
from fedbench.tables import spec

GROUP = np.repeat(np.arange(5), 20)
EVIDENCE = Path(__file__).parents[2] / "results" / "evidence" / "fold_groups.csv"


def written() -> dict[tuple[int, int], float]:
    """How far apart the two nearest groups are, by endpoints and seed, as scripts/evidence.py found it."""
    with EVIDENCE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {(int(row["endpoints"]), int(row["seed"])): float(row["nearest"]) for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_ten_endpoints_keep_five_groups_apart_and_three_do_not(seed: int) -> None:
    """Section 4.1 needs the groups separable; three corners put two pairs of them in one place."""
    counts = Fold(folds=5).counts(np.full(10, 5000)).astype(float)
    for endpoints, apart in ((10, True), (3, False)):
        found = simplex.topics(counts, endpoints, rng.derive(seed, "topics"))
        means = np.stack([found[group == GROUP].mean(0) for group in range(5)])
        nearest = min(float(np.abs(means[a] - means[b]).sum()) for a in range(5) for b in range(a))
        assert (nearest > 0.5) is apart
        assert nearest == pytest.approx(written()[endpoints, seed], abs=2e-3)
        labels, _ = simplex.cluster(found, 5, simplex.METRICS["hilbert"])
        assert (len(set(zip(GROUP.tolist(), labels.tolist(), strict=True))) == 5) or not apart


@pytest.mark.parametrize("name", ["sosicfl_t2", "sosicfl_t3", "sosicfl_t5"])
def test_the_tables_say_for_how_many_seeds(name: str) -> None:
    table = spec.load(name)
    apart = {e: [s for s in range(12) if written()[e, s] > 0.5] for e in (3, 5, 10)}
    assert set(range(table.seeds)) <= set(apart[10])
    assert len(apart[3]) == 0
    (note,) = (each for each in table.notes if "keeps the five groups apart" in each)
    joined = sorted(set(range(12)) - set(apart[10]))
    assert f"for {len(apart[10])} of 12 seeds, among them the table's 0-{table.seeds - 1}" in note
    assert f"for seeds {' and '.join(map(str, joined))}; with five for {len(apart[5])} of 12" in note
