"""Does a group of rows lean to one side? A joint test, beside the verdicts on single cells.

Rows of one group share seeds, and so partition, initial weights and batches: seven rows that are all low may be one
unlucky draw. So the rows are averaged first, seed by seed, and the test is over seeds: with G rows,

    d = mean over seeds s of (mean over rows of ours[row, s]) - mean over rows of published[row],

tested as a single cell is (fedbench.tables.equivalence: Welch's t). The spread of the published mean over rows is taken
to be the mean of their spreads, which is its largest possible value: as if the paper's rows went up and down together.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from fedbench.tables.equivalence import LEAST_SEEDS, Sample, compare
from fedbench.tables.result import Cell, TableResult
from fedbench.tables.significance import holm
from fedbench.tables.verdict import NONE, judge, measured, samples_of

ALL = "all rows"


@dataclass(frozen=True)
class Bias:
    """Ours minus published over a group of rows, in one column and metric."""

    column: str
    metric: str
    group: str
    rows: int
    below: int  # of them, whose mean is below the published one
    seeds: int  # that all of them have
    difference: float  # mean over rows and seeds, in the metric's unit
    low: float  # 95 % interval
    high: float
    p: float  # two-sided, that the group does not lean, adjusted by Holm over all of the table


def biases(table: TableResult) -> list[Bias]:
    """One entry a column, metric and group (the table's, and all rows) of at least two rows with a common verdict.

    Exploratory rows are left out, but where a group that the table names has no others.
    """
    groups: Mapping[str, tuple[str, ...]] = {ALL: ("*",), **table.spec.groups}
    found = [
        bias
        for column in table.spec.columns
        for metric in table.spec.metrics
        for group, names in groups.items()
        if (bias := _bias(_members(table, column.label, metric.name, group, names), group, table)) is not None
    ]
    adjusted = holm([each.p for each in found])
    return [dataclasses.replace(each, p=p) for each, p in zip(found, adjusted, strict=True)]


def _members(table: TableResult, column: str, metric: str, group: str, names: tuple[str, ...]) -> list[Cell]:
    labels = [row.label for row in table.spec.rows if any(fnmatchcase(row.label, name) for name in names)]
    confirmed = [label for label in labels if not table.exploratory(label, column)]
    chosen = confirmed if confirmed or group == ALL else labels
    cells = [table.cell(label, column, metric) for label in chosen]
    return [
        cell
        for cell in cells
        if judge(table, cell).kind != NONE and len(cell.values) >= LEAST_SEEDS and not _bounded(cell)
    ]


def _bounded(cell: Cell) -> bool:
    return cell.published is None or bool(cell.published.bound)


def _bias(cells: list[Cell], group: str, table: TableResult) -> Bias | None:
    seeds = sorted(set.intersection(*(set(cell.seeds) for cell in cells))) if cells else []
    if len(cells) < 2 or len(seeds) < LEAST_SEEDS:
        return None
    ours = np.array(
        [[dict(zip(cell.seeds, cell.values, strict=True))[seed] for seed in seeds] for cell in cells]
    )
    column, metric = cells[0].column, cells[0].metric
    theirs = [samples_of(table, cell, cell.published)[1] for cell in cells if cell.published]
    spreads = [each.std for each in theirs if each.std is not None]
    published = Sample(
        float(np.mean([each.mean for each in theirs])),
        float(np.mean(spreads)) if len(spreads) == len(theirs) else None,
        table.spec.published_seeds,
        float(np.mean([each.rounding for each in theirs])),
    )
    by_seed = ours.mean(0)  # [seeds]
    test = compare(measured(table, column, metric, by_seed), published, math.inf)
    below = int((ours.mean(1) < [each.mean for each in theirs]).sum())
    return Bias(
        column,
        metric,
        group,
        len(cells),
        below,
        len(seeds),
        test.difference,
        test.low,
        test.high,
        test.p,
    )
