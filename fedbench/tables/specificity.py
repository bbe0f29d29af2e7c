"""What a verdict is worth: for which other published rows would a row of ours pass as well?

A row that is equivalent to its own published value and to five others' agrees with the paper, but says little of which
method it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.tables.equivalence import EQUIVALENT, LEAST_SEEDS
from fedbench.tables.result import Cell, TableResult
from fedbench.tables.verdict import NONE, against, judge


@dataclass(frozen=True)
class Match:
    """A cell of ours beside the published value of another row, or its own, in the same column and metric."""

    column: str
    metric: str
    row: str  # ours
    published: str  # the row of the published value
    difference: float
    outcome: str  # equivalent | different | inconclusive


def matches(table: TableResult) -> list[Match]:
    """Every cell with a verdict and a test against every published value of its column and metric."""
    found = []
    for column in table.spec.columns:
        for metric in table.spec.metrics:
            cells = [table.cell(row.label, column.label, metric.name) for row in table.spec.rows]
            for cell in cells:
                if judge(table, cell).kind != NONE and len(cell.values) >= LEAST_SEEDS:
                    found += _beside(table, cell, cells)
    return found


def matrix(found: list[Match], column: str) -> dict[tuple[str, str], list[str]]:
    """(our row, published row) -> the outcomes in a column, in the order of the metrics that both have."""
    together: dict[tuple[str, str], list[str]] = {}
    for each in found:
        if each.column == column:
            together.setdefault((each.row, each.published), []).append(each.outcome)
    return together


def passes_for(found: list[Match], column: str, metric: str, row: str) -> tuple[str, ...]:
    """Other rows to whose published value a cell is equivalent."""
    return tuple(
        each.published
        for each in found
        if (each.column, each.metric, each.row) == (column, metric, row)
        and each.published != row
        and each.outcome == EQUIVALENT
    )


def _beside(table: TableResult, cell: Cell, cells: list[Cell]) -> list[Match]:
    found = []
    for other in cells:
        test = None if other.published is None else against(table, cell, other.published)
        if test is not None:
            found.append(Match(cell.column, cell.metric, cell.row, other.row, test.difference, test.outcome))
    return found
