"""What every rendering of a table shares: the text of a cell, and which cells are best and second."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from fedbench.results.units import STALE
from fedbench.tables import specificity
from fedbench.tables.bias import Bias, biases
from fedbench.tables.parts import ColumnSpec, MetricSpec, RowSpec
from fedbench.tables.result import PENDING, Cell, TableResult
from fedbench.tables.verdict import Verdict, judge

DASH = "-"


@dataclass(frozen=True)
class Text:
    """A cell in words."""

    ours: str  # "92.02 ± 0.39", "> horizon", or why there is no value
    published: str  # as printed, or a dash
    difference: str  # signed, with its 95 % interval and Hedges' g where there is a test; or a dash
    verdict: Verdict
    place: int  # 1: best of its column and metric, 2: second, 0: neither
    ran: bool
    also: tuple[str, ...] = ()  # other rows to whose published value it is equivalent as well


class Layout:
    """A table with its cells put into words."""

    def __init__(self, table: TableResult) -> None:
        self.table = table
        self._places = {
            (column.label, metric.name): _places(table, column, metric)
            for column in table.spec.columns
            for metric in table.spec.metrics
        }

    @cached_property
    def columns(self) -> list[ColumnSpec]:
        """The columns in which something ran; all of them if nothing did."""
        ran = {cell.column for cell in self.table.cells if cell.values}
        return [column for column in self.table.spec.columns if not ran or column.label in ran]

    @cached_property
    def rows(self) -> list[RowSpec]:
        """The rows that have a value in those columns, or a reason why one that was asked for is not there; or all."""
        columns = {column.label for column in self.columns}
        known = {cell.row for cell in self.table.cells if cell.column in columns and not _pending(cell)}
        return [row for row in self.table.spec.rows if not known or row.label in known]

    @property
    def left_out(self) -> str:
        """The rows and columns that were not asked for, or have not begun; "" if there are none."""
        spec = self.table.spec
        begun = {cell.column for cell in self.table.cells if not _pending(cell)}
        rows = [row.label for row in spec.rows if row not in self.rows]
        columns = [
            each.label for each in spec.columns if each not in self.columns and each.label not in begun
        ]
        sides = (("rows", rows), ("columns", columns))
        said = "; ".join(f"{side} {', '.join(labels)}" for side, labels in sides if labels)
        return f"Left out, as {PENDING}: {said}." if said else ""

    @cached_property
    def matches(self) -> list[specificity.Match]:
        """Every cell with a verdict beside every published value of its column and metric."""
        return specificity.matches(self.table)

    @cached_property
    def biases(self) -> list[Bias]:
        """Joint tests of groups of rows."""
        return biases(self.table)

    def text(self, row: RowSpec, column: ColumnSpec, metric: MetricSpec) -> Text:
        """The cell of a row, a column and a metric."""
        cell = self.table.cell(row.label, column.label, metric.name)
        judged, value = judge(self.table, cell), ours(cell, metric)
        marked = cell.values and value != DASH and (row.label, column.label) in self.table.stale
        return Text(
            value + (STALE if marked else ""),
            DASH if cell.published is None else cell.published.text,
            difference(judged, metric),
            judged,
            self._places[column.label, metric.name].get(row.label, 0),
            bool(cell.values),
            specificity.passes_for(self.matches, column.label, metric.name, row.label),
        )


def _pending(cell: Cell) -> bool:
    return not cell.values and cell.reason in ("", PENDING)


def ours(cell: Cell, metric: MetricSpec) -> str:
    """Our value: mean ± std, with the number of seeds that never got there; or the reason for having none."""
    finite = [value for value in cell.values if math.isfinite(value)]
    if not cell.values:
        return cell.reason or "not run"
    if not finite:
        return DASH
    digits = metric.decimals
    mean = sum(finite) / len(finite)
    text = f"{mean:.{digits}f}"
    if len(finite) > 1:
        spread = math.sqrt(sum((value - mean) ** 2 for value in finite) / (len(finite) - 1))
        text += f" ± {spread:.{digits}f}"
    missed = len(cell.values) - len(finite)
    return f"{text} ({missed} of {len(cell.values)} censored)" if missed else text


def _places(table: TableResult, column: ColumnSpec, metric: MetricSpec) -> dict[str, int]:
    """1 for the best rows, 2 for the second, as they are printed; nothing without an order that means anything."""
    if metric.better == "neither" or not table.circumstances.trained:
        return {}
    sign = 1 if metric.better == "higher" else -1
    means = {
        row.label: sign * round(table.cell(row.label, column.label, metric.name).mean, metric.decimals)
        for row in table.spec.rows
        if math.isfinite(table.cell(row.label, column.label, metric.name).mean)
    }
    levels = sorted(set(means.values()), reverse=True)[:2]
    return {row: levels.index(mean) + 1 for row, mean in means.items() if mean in levels and len(means) > 1}


def difference(judged: Verdict, metric: MetricSpec) -> str:
    """Ours - published, its 95 % interval and Hedges' g; a dash if there is no difference."""
    if not math.isfinite(judged.difference):
        return DASH
    digits, test = metric.decimals, judged.comparison
    text = f"{judged.difference:+.{digits}f}"
    if test is None:
        return text
    text += f" [{test.low:.{digits}f}, {test.high:.{digits}f}]"
    return text if math.isnan(test.effect) else f"{text}, g {test.effect:.1f}"
