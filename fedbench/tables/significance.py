"""Is a difference between rows more than one lucky seed? Paired intervals, average ranks, critical difference.

Paired differences to a reference row are over the seeds of a column (same partition, initial weights and batches),
with Student's t and p adjusted by Holm over all comparisons. Average ranks are over blocks, a column with a seed, with
Friedman's test and Nemenyi's critical difference (Demsar, JMLR 2006).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.tables.parts import MetricSpec
from fedbench.tables.result import TableResult

LEAST_PAIRS = 3
LEVEL = 0.05
EXACT = 9  # decimals of a percentage: what is equal so far is a tie, whose sums were rounded differently


@dataclass(frozen=True)
class Paired:
    """The reference row minus another row, in one column, over the seeds that both have."""

    column: str
    row: str
    seeds: int
    difference: float  # mean over seeds, in the metric's unit; positive: the reference is larger
    low: float  # 95 % confidence interval
    high: float
    p: float  # two-sided, adjusted by Holm over all comparisons of the table


@dataclass(frozen=True)
class Ranks:
    """Average ranks of the rows, 1 the best, over blocks (a column with a seed that every row has)."""

    blocks: int
    ranks: dict[str, float]
    p: float  # of Friedman's test that all rows are alike
    critical: float  # Nemenyi: rows whose average ranks differ by less are not told apart at the 5 % level


def paired(table: TableResult, metric: MetricSpec, reference: str) -> list[Paired]:
    """Every other row against `reference`, in columns where at least three seeds are paired."""
    from scipy import stats

    found: list[Paired] = []
    for column in table.spec.columns:
        base = _by_seed(table, reference, column.label, metric)
        for row in table.spec.rows:
            other = _by_seed(table, row.label, column.label, metric)
            seeds = sorted(base.keys() & other.keys())
            if row.label == reference or len(seeds) < LEAST_PAIRS:
                continue
            gaps = np.array([base[seed] - other[seed] for seed in seeds])
            error = float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
            half = float(stats.t.ppf(1 - LEVEL / 2, len(gaps) - 1)) * error
            mean = float(gaps.mean())
            p = 2 * float(stats.t.sf(abs(mean) / error, len(gaps) - 1)) if error else float(mean == 0)
            found.append(Paired(column.label, row.label, len(seeds), mean, mean - half, mean + half, p))
    adjusted = holm([each.p for each in found])
    return [
        Paired(e.column, e.row, e.seeds, e.difference, e.low, e.high, p)
        for e, p in zip(found, adjusted, strict=True)
    ]


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: p values that may be compared with the level as they are."""
    order = np.argsort(p)
    adjusted = np.empty(len(p))
    running = 0.0
    for place, index in enumerate(order):
        running = max(running, min(1.0, (len(p) - place) * p[index]))
        adjusted[index] = running
    return [float(value) for value in adjusted]


def ranks(table: TableResult, metric: MetricSpec) -> Ranks | None:
    """Average ranks of the rows that share blocks; None for fewer than two blocks or three rows."""
    from scipy import stats

    rows = [row.label for row in table.spec.rows]
    values = [
        {
            (column.label, seed): value
            for column in table.spec.columns
            for seed, value in _by_seed(table, row, column.label, metric).items()
        }
        for row in rows
    ]
    kept = [index for index, each in enumerate(values) if each]
    blocks = sorted(set.intersection(*(set(values[index]) for index in kept))) if kept else []
    if len(kept) < 3 or len(blocks) < 2:
        return None
    sign = -1.0 if metric.better == "higher" else 1.0
    scores = np.array([[sign * values[index][block] for index in kept] for block in blocks])  # [blocks, rows]
    scores = scores.round(EXACT)
    average = stats.rankdata(scores, axis=1).mean(0)
    with warnings.catch_warnings():  # rows that all tie have no statistic: nan, and no warning
        warnings.simplefilter("ignore")
        p = float(stats.friedmanchisquare(*scores.T).pvalue)
    count = len(kept)
    quantile = float(stats.studentized_range.ppf(1 - LEVEL, count, np.inf)) / math.sqrt(2)
    critical = quantile * math.sqrt(count * (count + 1) / (6 * len(blocks)))
    return Ranks(
        len(blocks),
        {rows[index]: float(rank) for index, rank in zip(kept, average, strict=True)},
        p,
        critical,
    )


def _by_seed(table: TableResult, row: str, column: str, metric: MetricSpec) -> dict[int, float]:
    cell = table.cell(row, column, metric.name)
    return {s: v for s, v in zip(cell.seeds, cell.values, strict=True) if math.isfinite(v)}
