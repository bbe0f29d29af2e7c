"""What earlier calls left in a table's folder: values that stand although their runs are gone or were not asked for.

A value counts as long as the run keys under which it was recorded, the run's own and that of its baseline, are those
that the cell has today, and the cell is still measured in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.errors import FedbenchError
from fedbench.tables import measures, store
from fedbench.tables.parts import ColumnSpec, MetricSpec, RowSpec
from fedbench.tables.reference import another_local
from fedbench.tables.result import Cell, Circumstances, TableResult
from fedbench.tables.spec import TableSpec


@dataclass(frozen=True)
class Recorded:
    """A table as it was stored; nothing, if it never was."""

    table: TableResult | None = None
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by run key
    curves: tuple[Mapping[str, str], ...] = ()
    matrices: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    clients: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    # keys of the runs measured against another result of Local than the recorded
    apart: frozenset[str] = frozenset()

    @property
    def made(self) -> Circumstances | None:
        """The circumstances of the stored table."""
        return self.table.circumstances if self.table else None

    def seeds(self, row: RowSpec, column: ColumnSpec) -> tuple[int, ...]:
        """The seeds of which a cell has a value in any metric; none if the row or column is another today."""
        return tuple(sorted({seed for cell in self._cells(row, column) for seed in cell.seeds}))

    def value(
        self, row: RowSpec, column: ColumnSpec, metric: MetricSpec, key: str, base: str
    ) -> float | None:
        """The metric of the run `key`, nan if censored; None if it is not recorded. `base`: see Entry.keys."""
        for cell in self._cells(row, column):
            if cell.metric == metric.name and key in cell.keys and self._measured_so(metric, row, column):
                place = cell.keys.index(key)
                return cell.values[place] if base == (cell.baselines or cell.keys)[place] else None
        return None

    def curve(self, row: str, column: str, seed: int) -> list[dict[str, Any]]:
        """The thinned learning curve of a run, as stored."""
        wanted = (row, column, str(seed))
        return [
            dict(point) for point in self.curves if (point["row"], point["column"], point["seed"]) == wanted
        ]

    def matrix(self, row: str, column: str, seed: int) -> np.ndarray[Any, Any] | None:
        """The collaboration matrix [N, N] of a run."""
        return self.matrices.get(store.place_of(row, column, seed))

    def accuracies(self, row: str, column: str, seed: int) -> np.ndarray[Any, Any] | None:
        """The accuracy of each client [N] of a run, in percent."""
        return self.clients.get(store.place_of(row, column, seed))

    def _measured_so(self, metric: MetricSpec, row: RowSpec, column: ColumnSpec) -> bool:
        """Whether the stored values of `metric` in this cell were measured as today; labels do not matter."""
        today = metric.measured(row, column)
        if self.table is None or (stored := _lines(self.table.spec, row, column)) is None:
            return False
        return any(
            old.name == metric.name and _alike(old.measured(*stored), today)
            for old in self.table.spec.metrics
        )

    def _cells(self, row: RowSpec, column: ColumnSpec) -> list[Cell]:
        if self.table is None or (stored := _lines(self.table.spec, row, column)) is None:
            return []
        if (stored[0].baseline, stored[0].study) != (row.baseline, row.study):  # what no run key covers
            return []
        return [cell for cell in self.table.cells if (cell.row, cell.column) == (row.label, column.label)]


def read(folder: Path) -> Recorded:
    """What is stored in `folder`, which may be missing.

    Raises:
        FedbenchError: table.json is there and unreadable.
    """
    if not (folder / store.TABLE).is_file():
        return Recorded()
    lines = store.load_rows(folder)
    rows = {line["key"]: _result(line) for line in lines}
    curves = tuple(store.load_curves(folder))
    clients = store.load_clients(folder)
    apart = another_local(lines, clients)
    return Recorded(store.load_table(folder), rows, curves, store.load_matrices(folder), clients, apart)


def _result(line: Mapping[str, str]) -> dict[str, Any]:
    """A line of rows.csv as a result row: without the table's own columns, an empty field is None."""
    return {name: text or None for name, text in line.items() if name not in ("row", "column")}


def _alike(old: Mapping[str, Any], today: Mapping[str, Any]) -> bool:
    """Whether a stored measure is today's, whichever of its defaults either writes out."""
    if old == today:
        return True
    wanted = measures.build(today)
    try:
        return measures.build(old) == wanted
    except FedbenchError:  # a measure, or a parameter, that there no longer is
        return False


def _lines(spec: TableSpec, row: RowSpec, column: ColumnSpec) -> tuple[RowSpec, ColumnSpec] | None:
    """The row and the column of a stored table that have these labels; None if it lacks one."""
    rows = {each.label: each for each in spec.rows}
    columns = {each.label: each for each in spec.columns}
    if row.label not in rows or column.label not in columns:
        return None
    return rows[row.label], columns[column.label]
