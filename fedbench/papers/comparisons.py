"""Comparisons beyond single cells: differences and order of rows, biased groups, and what a verdict is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, TypeVar

import numpy as np

from fedbench.core.tables import grouped
from fedbench.papers.equivalence import EQUIVALENT, LEAST_SEEDS, LEVEL, Sample, compare
from fedbench.papers.spec import ColumnSpec, MetricSpec
from fedbench.papers.store import Cell, TableResult
from fedbench.papers.verdict import NONE, against, ours_of, theirs_of, verdict_of

TestT = TypeVar("TestT", "Paired", "Bias")

# Is a difference between rows more than one lucky seed?
#
# Paired differences to a reference row are over the seeds of a column (same partition, initial weights and batches),
# with Student's t and p adjusted by Holm over all comparisons. There are no ranks over columns and seeds: seeds of one
# column are repeats on one data set, and Friedman's test asks for independent ones (Demsar, JMLR 2006).

LEAST_PAIRS = 3
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


def paired(table: TableResult, metric: MetricSpec, reference: str) -> list[Paired]:
    """Return every other row against `reference`, in columns where at least three seeds are paired."""
    found = []
    for column in table.spec.columns:
        base = _by_seed(table, reference, column.label, metric)
        for row in table.spec.rows:
            other = _by_seed(table, row.label, column.label, metric)
            seeds = sorted(base.keys() & other.keys())
            if row.label == reference or len(seeds) < LEAST_PAIRS:
                continue
            mean, half, p = t_test(np.array([base[seed] - other[seed] for seed in seeds]))
            found.append(Paired(column.label, row.label, len(seeds), mean, mean - half, mean + half, p))
    return _adjusted(found)


def t_test(gaps: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Return (mean, half of its 95 % interval, two-sided p) of two or more paired differences; rounding counts as 0."""
    from scipy import stats

    gaps = np.where(np.abs(gaps) < 10.0**-EXACT, 0.0, gaps)
    error = float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
    half = float(stats.t.ppf(1 - LEVEL / 2, len(gaps) - 1)) * error
    mean = float(gaps.mean())
    return mean, half, 2 * float(stats.t.sf(abs(mean) / error, len(gaps) - 1)) if error else float(mean == 0)


def holm(p: Sequence[float]) -> list[float]:
    """Return p values after Holm's step-down adjustment, for direct comparison with the level."""
    order, adjusted = np.argsort(p), np.empty(len(p))
    factors = np.arange(len(p), 0, -1)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, factors * np.asarray(p)[order]))
    return [float(value) for value in adjusted]


def _adjusted(found: Sequence[TestT]) -> list[TestT]:
    """Return tests with Holm's adjustment over all of them."""
    return [replace(each, p=p) for each, p in zip(found, holm([each.p for each in found]), strict=True)]


def _by_seed(table: TableResult, row: str, column: str, metric: MetricSpec) -> dict[int, float]:
    cell = table.cell(row, column, metric.name)
    return {s: v for s, v in zip(cell.seeds, cell.values, strict=True) if math.isfinite(v) and not cell.diverged}


# How a whole column agrees with the paper: the order of the rows, and whether the paper's method is best.


@dataclass(frozen=True)
class Agreement:
    """One column and metric."""

    column: str
    metric: str
    rows: int  # rows with both a value, without a seed that diverged, and a published one
    tau: float  # Kendall's tau-b of our order and the paper's; nan for fewer than three rows or a constant one
    best_ours: tuple[str, ...] = ()  # among those rows; several if they tie
    headline: bool | None = None  # whether the headline row is best; None if it, or every rival, is missing
    headline_published: bool | None = None  # the same of all published rows
    published: int = 0  # rows with a published value


def agreements(table: TableResult) -> list[Agreement]:
    """Return one entry for each column and ranked metric that has at least one row to compare.

    It is empty if several rows of a table share one published value, because there is no order to agree with.
    """
    if table.spec.varies:
        return []
    ranked = [metric for metric in table.spec.metrics if metric.better != "neither"]
    found = [_agreement(table, *place) for place in product(table.spec.columns, ranked)]
    return [each for each in found if each.rows]


def _agreement(table: TableResult, column: ColumnSpec, metric: MetricSpec) -> Agreement:
    from scipy import stats

    printed = [cell for cell in table.cells_below(column, metric) if cell.published]
    both = [cell for cell in printed if math.isfinite(cell.mean) and not cell.diverged]
    sign = 1.0 if metric.better == "higher" else -1.0
    ours = {cell.row: sign * round(cell.mean, EXACT) for cell in both}
    theirs = {cell.row: sign * cell.published.mean for cell in printed if cell.published}
    compared = table.spec.headline in ours and len(both) > 1
    # The headline row is among the best, and they are not simply all rows.
    here, there = (table.spec.headline in _best(rows) != (*rows,) if compared else None for rows in (ours, theirs))
    pairs = [*ours.values()], [theirs[row] for row in ours]
    tau = float(stats.kendalltau(*pairs).statistic) if len(both) > 2 else math.nan
    return Agreement(column.label, metric.name, len(both), tau, _best(ours), here, there, len(printed))


def _best(values: dict[str, float]) -> tuple[str, ...]:
    return tuple(row for row, value in values.items() if value == max(values.values()))


# Does a group of rows lean to one side? A joint test, beside the verdicts on single cells.
#
# Rows of one group share seeds, and so partition, initial weights and batches: seven rows that are all low may be one
# unlucky draw. So the rows are averaged first, seed by seed, and the test is over seeds: with G rows,
#
#     d = mean over seeds s of (mean over rows of ours[row, s]) - mean over rows of published[row],
#
# tested as a single cell is (fedbench.papers.equivalence: Welch's t). The spread of the published mean over rows is
# taken to be the mean of their spreads, which is its largest possible value: as if the paper's rows went up and down
# together.

ALL = "all rows"


@dataclass(frozen=True)
class Bias:
    """Ours minus published over a group of rows, in one column and metric."""

    column: str
    metric: str
    group: str
    rows: int
    below: int  # rows whose mean is below the published one
    seeds: int  # seeds that all of them have
    difference: float  # mean over rows and seeds, in the metric's unit
    low: float  # 95 % interval
    high: float
    p: float  # two-sided, for no bias of the group, adjusted by Holm over the whole table


def biases(table: TableResult) -> list[Bias]:
    """Return one entry a column, metric and group (the table's, and all rows) of two or more rows with a verdict.

    Exploratory rows are left out, unless a group that the table names has only exploratory ones.
    """
    groups: Mapping[str, tuple[str, ...]] = {ALL: ("*",), **table.spec.groups}
    found = [
        _bias(_members(table, column.label, metric.name, group, names), group, table)
        for column in table.spec.columns
        for metric in table.spec.metrics
        for group, names in groups.items()
    ]
    return _adjusted([bias for bias in found if bias is not None])


def _members(table: TableResult, column: str, metric: str, group: str, names: tuple[str, ...]) -> list[Cell]:
    labels = [row.label for row in table.spec.rows if any(fnmatchcase(row.label, name) for name in names)]
    confirmed = [label for label in labels if not table.exploratory(label, column)]
    chosen = confirmed if confirmed or group == ALL else labels
    cells = [table.cell(label, column, metric) for label in chosen]
    return [cell for cell in cells if _is_tested(table, cell) and cell.published and not cell.published.bound]


def _is_tested(table: TableResult, cell: Cell) -> bool:
    return verdict_of(table, cell).kind != NONE and len(cell.values) >= LEAST_SEEDS


def _bias(cells: list[Cell], group: str, table: TableResult) -> Bias | None:
    seeds = sorted(set.intersection(*(set(cell.seeds) for cell in cells))) if cells else []
    if len(cells) < 2 or len(seeds) < LEAST_SEEDS:
        return None
    ours = np.array([[dict(zip(cell.seeds, cell.values, strict=True))[seed] for seed in seeds] for cell in cells])
    theirs = [theirs_of(table, cell, cell.published) for cell in cells if cell.published]
    spreads = [each.std for each in theirs if each.std is not None]
    published = Sample(
        float(np.mean([each.mean for each in theirs])),
        float(np.mean(spreads)) if len(spreads) == len(theirs) else None,
        table.spec.published_seeds,
        float(np.mean([each.rounding for each in theirs])),
    )
    by_seed = ours.mean(0)  # [seeds]
    test = compare(ours_of(table, cells[0], by_seed), published, math.inf)
    below = int((ours.mean(1) < [each.mean for each in theirs]).sum())
    counts = len(cells), below, len(seeds)
    return Bias(cells[0].column, cells[0].metric, group, *counts, test.difference, test.low, test.high, test.p)


# What a verdict is worth: for which other published rows would a row of ours pass as well?
#
# A row that is equivalent to its own published value and to five others' agrees with the paper, but says little of
# which method it is.


@dataclass(frozen=True)
class Match:
    """Our cell beside its own or another row's published value, in the same column and metric."""

    column: str
    metric: str
    row: str  # ours
    published: str  # the row of the published value
    difference: float
    outcome: str  # equivalent | different | inconclusive


def matches(table: TableResult) -> list[Match]:
    """Return every cell with a verdict and a test against every published value of its column and metric."""
    found = []
    for column, metric in product(table.spec.columns, table.spec.metrics):
        cells = table.cells_below(column, metric)
        for cell, other in product([cell for cell in cells if _is_tested(table, cell)], cells):
            test = None if other.published is None else against(table, cell, other.published)
            if test is not None:
                found.append(Match(cell.column, cell.metric, cell.row, other.row, test.difference, test.outcome))
    return found


def matrix(found: list[Match], column: str) -> dict[tuple[str, str], list[str]]:
    """Return (our row, published row) -> the outcomes in a column, in the order of the metrics that both have."""
    return grouped(((each.row, each.published), each.outcome) for each in found if each.column == column)


def passes_for(found: list[Match], column: str, metric: str, row: str) -> tuple[str, ...]:
    """Return the other rows whose published value the cell is equivalent to."""
    return tuple(
        each.published
        for each in found
        if (each.column, each.metric, each.row) == (column, metric, row)
        and each.published != row
        and each.outcome == EQUIVALENT
    )
