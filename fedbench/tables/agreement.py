"""How a whole column agrees with the paper: the order of the rows, and whether the paper's method is best."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from fedbench.tables.parts import MetricSpec
from fedbench.tables.result import Cell, TableResult
from fedbench.tables.significance import EXACT


@dataclass(frozen=True)
class Agreement:
    """One column and metric."""

    column: str
    metric: str
    rows: int  # that have both a value and a published one
    tau: (
        float  # Kendall's tau-b of our order and the paper's; nan for fewer than three rows or a constant one
    )
    best_ours: tuple[str, ...] = ()  # among those rows; several if they tie
    best_published: tuple[str, ...] = ()
    headline: bool | None = None  # whether the headline row is best; None if it, or every rival, is missing
    headline_published: bool | None = None


def agreements(table: TableResult) -> list[Agreement]:
    """One entry for each column and ranked metric that has at least one row to compare.

    None where a table puts several rows beside the same published value: there is no order to agree with.
    """
    if table.spec.varies:
        return []
    found = [
        _agreement(table, column.label, metric)
        for column in table.spec.columns
        for metric in table.spec.metrics
        if metric.better != "neither"
    ]
    return [each for each in found if each.rows]


def _agreement(table: TableResult, column: str, metric: MetricSpec) -> Agreement:
    cells = [table.cell(row.label, column, metric.name) for row in table.spec.rows]
    both = [cell for cell in cells if comparable(cell)]
    sign = 1.0 if metric.better == "higher" else -1.0
    ours = {cell.row: sign * round(cell.mean, EXACT) for cell in both}
    theirs = {cell.row: sign * cell.published.mean for cell in both if cell.published}
    best_ours, best_published = _best(ours), _best(theirs)
    compared = table.spec.headline in ours and len(both) > 1
    return Agreement(
        column,
        metric.name,
        len(both),
        _tau(list(ours.values()), list(theirs.values())),
        best_ours,
        best_published,
        _stands_out(table.spec.headline, best_ours, len(both)) if compared else None,
        _stands_out(table.spec.headline, best_published, len(both)) if compared else None,
    )


def _stands_out(row: str, best: tuple[str, ...], rows: int) -> bool:
    """Whether `row` is among the best, and they are not simply all rows."""
    return row in best and len(best) < rows


def _best(values: dict[str, float]) -> tuple[str, ...]:
    return tuple(row for row, value in values.items() if value == max(values.values()))


def _tau(ours: list[float], theirs: list[float]) -> float:
    from scipy import stats

    if len(ours) < 3:
        return float("nan")
    with warnings.catch_warnings():  # a constant order has no correlation: nan, and no warning
        warnings.simplefilter("ignore")
        return float(stats.kendalltau(ours, theirs).statistic)


def comparable(cell: Cell) -> bool:
    """Whether `cell` has a value of ours beside a published one."""
    return cell.published is not None and math.isfinite(cell.mean)
