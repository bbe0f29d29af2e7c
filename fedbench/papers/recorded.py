"""Stored values of a table that are still valid, and cells made by other code.

A stored value is valid if its run keys (the run's and its baseline's) and its measure are the cell's current ones.

A run is compared with the Local in its runs folder. If that Local is missing and is made again on a machine that rounds
differently, the table shows the new Local under the same run key. The accuracies of the clients (clients.npz), if
stored, identify values that were measured against the old one.

Each line of rows.csv names the code that made it (fedbench.runs.fingerprint). A line without code is older than code
hashes; its commit identifies it, and tests hold the numbers of later changes. For Local see `another_local`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.errors import Diverged, FedbenchError
from fedbench.metrics import fairness
from fedbench.papers import measures, store
from fedbench.papers.selection import Selection, compose_cell
from fedbench.papers.spec import ColumnSpec, MetricSpec, RowSpec
from fedbench.runs import fingerprint
from fedbench.runs.config import from_plain

LOCAL = "Local"  # why a cell is marked
TOLERANCE = 1e-3  # percentage points; accuracies are kept as float32


def another_local(rows: Sequence[Mapping[str, Any]], clients: store.Arrays) -> frozenset[str]:
    """Return keys of runs in `rows` whose IPR or RSD differs from that of their `clients` with the Local in `rows`."""
    lines = [row for row in rows if not row["row"].endswith(store.BASELINE)]  # of a baseline no clients are kept
    kept = {row["key"]: clients.get(store.place_of(row["row"], row["column"], row["seed"])) for row in lines}
    found = set()
    for row in lines:
        own, local = kept[row["key"]], kept.get(row.get("local_key") or "")
        if own is None or local is None or not (row.get("ipr") and row.get("rsd")):
            continue
        fair = fairness(*(np.asarray(each, dtype=np.float64) / 100 for each in (own, local)))
        recorded = float(row["ipr"]), float(row["rsd"])
        if not np.allclose(recorded, (fair.ipr, fair.rsd), rtol=0, atol=TOLERANCE):
            found.add(str(row["key"]))
    return frozenset(found)


@dataclass(frozen=True)
class StoredTable:
    """A stored table, empty if there is none."""

    table: store.TableResult | None = None
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by run key
    curves: tuple[Mapping[str, str], ...] = ()
    matrices: store.Arrays = field(default_factory=dict)  # of runs, by `store.place_of`
    clients: store.Arrays = field(default_factory=dict)
    # keys of the runs that were compared with another result of Local than the recorded one
    apart: frozenset[str] = frozenset()

    def seeds(self, row: RowSpec, column: ColumnSpec) -> tuple[int, ...]:
        """Return the seeds for which a cell has a value in any metric; none if the row or column has changed."""
        return tuple(sorted({seed for cell, *_ in self._cells(row, column) for seed in cell.seeds}))

    def failures(self, row: RowSpec, column: ColumnSpec, base: tuple[str, ...]) -> dict[int, str]:
        """Return how runs of a cell diverged, by seed; none if an override has changed, as failures have no key."""
        found, today = dict[int, str](), (base, row.overrides, column.overrides, column.own(row.label))
        for cell, _, line, place in self._cells(row, column):
            if self.table and (self.table.spec.base, line.overrides, place.overrides, place.own(row.label)) == today:
                found |= {seed: why for seed, why in cell.failures.items() if why.startswith(Diverged.__name__)}
        return found

    def value(self, row: RowSpec, column: ColumnSpec, metric: MetricSpec, key: str, base: str) -> float | None:
        """Return the metric of the run `key`, nan if censored; None if not recorded. `base`: see CellRuns.keys."""
        today = metric.measured(row, column)
        for cell, old, line, place in self._cells(row, column):
            if cell.metric == metric.name and key in cell.keys and _alike(old.measured(line, place), today):
                number = cell.keys.index(key)
                return cell.values[number] if base == (cell.baselines or cell.keys)[number] else None
        return None

    def _cells(self, row: RowSpec, column: ColumnSpec) -> list[tuple[store.Cell, MetricSpec, RowSpec, ColumnSpec]]:
        """Return the stored cells of these labels, each with its place; none if what no run key covers has changed."""
        if self.table is None:
            return []
        spec, covered = self.table.spec, (row.label, row.baseline, row.study)
        rows = [each for each in spec.rows if (each.label, each.baseline, each.study) == covered]
        columns = [each for each in spec.columns if each.label == column.label]
        here = [cell for cell in self.table.cells if (cell.row, cell.column) == (row.label, column.label)]
        return [(cell, spec.metric(cell.metric), *lines) for lines in product(rows, columns) for cell in here]


def read_stored(folder: Path) -> StoredTable:
    """Return what is stored in `folder`, which may be missing.

    Raises:
        FedbenchError: table.zip is unreadable.
    """
    if not (folder / store.ARCHIVE).is_file():
        return StoredTable()
    lines = store.read_rows(folder)
    # A line as a result row: without the table's own columns, an empty field is None.
    rows = {line["key"]: {k: text or None for k, text in line.items() if k not in ("row", "column")} for line in lines}
    curves = tuple(store.read_rows(folder, store.CURVES))
    matrices, clients = (store.read_arrays(folder, name) for name in (store.MATRICES, store.CLIENTS))
    return StoredTable(store.read_table(folder), rows, curves, matrices, clients, another_local(lines, clients))


def _alike(old: Mapping[str, Any], today: Mapping[str, Any]) -> bool:
    """Return whether a stored measure is today's; written-out defaults do not matter."""
    if old == today:
        return True
    wanted = measures.build(today)
    try:
        return measures.build(old) == wanted
    except FedbenchError:  # a measure, or a parameter, that there no longer is
        return False


@dataclasses.dataclass(frozen=True)
class RunCounts:
    """Runs behind the tables of a folder."""

    runs: int = 0
    changed: int = 0  # made by other code than today's
    unknown: int = 0  # recorded without code hashes
    apart: int = 0  # compared with another result of Local than the table's

    def __add__(self, other: RunCounts) -> RunCounts:
        mine, others = dataclasses.astuple(self), dataclasses.astuple(other)
        return RunCounts(*map(sum, zip(mine, others, strict=True)))

    def __str__(self) -> str:
        """Return one line for people."""
        return (
            f"{self.runs} runs: {self.changed} made by other code than today's, "
            f"{self.unknown} recorded before code was, {self.apart} measured against another run of Local"
        )


def read_marked(folder: Path) -> tuple[store.TableResult, RunCounts]:
    """Return the table stored in `folder` with its stale cells marked, and how many runs are behind it.

    Raises:
        FedbenchError: a file of the table is damaged.
    """
    table, rows = store.read_table(folder), store.read_rows(folder)
    apart = another_local(rows, store.read_arrays(folder, store.CLIENTS))
    today = functools.cache(functools.partial(_today, table))
    marks: dict[tuple[str, str], dict[str, None]] = {}  # in the order in which they are met
    changed = 0
    for row in rows:
        code, (label, held, _) = row.get("code"), row["row"].partition(store.BASELINE)
        parts = fingerprint.changed(code, now) if code and (now := today(row["row"], row["column"])) else []
        changed += bool(parts)
        parts = [f"{part} of the baseline" for part in parts] if held else parts
        if found := [*parts, *([LOCAL] if row["key"] in apart else [])]:
            marks.setdefault((label, row["column"]), {}).update(dict.fromkeys(found))
    for line, column in product(table.spec.rows, table.spec.columns):  # a mean is as old as what it is of
        for of in (marks.get((line.label, label), {}) for label in column.mean):
            if of:
                marks.setdefault((line.label, column.label), {}).update(of)
    stale = {place: tuple(found) for place, found in marks.items()}
    count = RunCounts(len(rows), changed, sum(1 for row in rows if not row.get("code")), len(apart))
    return dataclasses.replace(table, stale=stale), count


def _today(table: store.TableResult, row: str, column: str) -> str:
    """Return hashes of today's code for a cell; "" if the cell can no longer be composed here."""
    made = table.provenance
    overrides = (*made.changed, *made.varied)
    selection = Selection(scale=made.scale, substitute=made.substitute, overrides=overrides)
    try:
        label, held, _ = row.partition(store.BASELINE)
        chosen = table.spec.only([label], [column])
        (line,), (place,) = chosen.rows, chosen.columns
        own = line.baseline if held else (*line.overrides, *place.own(label))
        _, plain = compose_cell(table.spec, place, own, selection)
        return fingerprint.code_of(from_plain(plain))
    except FedbenchError:  # a file of weights that is not here, a row that went
        return ""
