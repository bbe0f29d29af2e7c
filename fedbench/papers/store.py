"""Filled tables on disk: results/tables/NAME/, and below it the same table at other settings, NAME/SETTING/.

A folder holds table.md for people and table.zip, which has all that is needed to draw the table again. In table.zip
table.json holds the specification, the cells and the provenance, so the whole setting; rows.csv one line a run with its
result row; curves.csv the learning curves behind the cells; matrices.npz the collaboration matrices of the first seed;
clients.npz the accuracy of every client.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.config import groups
from fedbench.core.errors import FedbenchError
from fedbench.core.files import Archive, as_csv, as_json, as_npz, make_folder, setting_name
from fedbench.metrics import fairness
from fedbench.papers import measures, spec
from fedbench.papers.spec import ColumnSpec, MetricSpec, Published, RowSpec, Selection, TableSpec, compose_cell
from fedbench.runs import fingerprint
from fedbench.runs.config import from_plain

PENDING = "not run yet"  # why a cell has no value that was not asked for, or not yet
SEVERAL = "one of several settings tried beside the same published value"


@dataclass(frozen=True)
class Cell:
    """One number of the table over seeds; nan values (censored) are kept and counted."""

    row: str  # label
    column: str
    metric: str  # name
    values: tuple[float, ...] = ()  # [seeds that ran]
    seeds: tuple[int, ...] = ()  # of the values
    keys: tuple[str, ...] = ()  # run keys of the values
    published: Published | None = None
    reason: str = ""  # why there is no value, or not one for every seed; "" if all ran
    baselines: tuple[str, ...] = ()  # keys of the runs that the values are relative to, if the row has some

    @property
    def mean(self) -> float:
        """Mean over seeds; nan without a value."""
        return float(np.mean(self.values)) if self.values else float("nan")

    @property
    def std(self) -> float:
        """Sample standard deviation over seeds; nan for fewer than two."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else float("nan")


@dataclass(frozen=True)
class Provenance:
    """What a reader must know of how a table was made, and so whether its cells get verdicts (`is_paper_setting`)."""

    scale: str = "paper"
    substitute: str = ""  # data set in place of the table's own; "" if none
    changed: tuple[str, ...] = ()  # further overrides given on the command line
    varied: tuple[str, ...] = ()  # those of what the paper leaves open, which void no verdict
    trained: bool = True  # false: too short for an order of the methods to mean anything
    todo: int = 0  # TODO in the table's YAML of today, which is not filled in
    machine: str = ""
    commit: str = ""
    date: str = ""
    seconds: float = float("nan")  # of all runs together

    def named(self, table: TableSpec) -> str:
        """Return the table's title with a reduced scale and changed settings; a substitute data set comes first."""
        title = f"{table.name} on {self.substitute}, in the place of {table.title}" if self.substitute else table.title
        parts = [] if self.scale == "paper" else [f"{self.scale} scale"]
        further = (*self.changed, *self.varied)
        parts += [f"with {' '.join(further)}"] if further else []
        parts += [f"{self.todo} TODO left in conf/table/{table.name}.yaml"] if self.todo else []
        return f"{title} ({'; '.join(parts)})" if parts else title

    @property
    def is_paper_setting(self) -> bool:
        """Return whether the numbers may be compared with the published ones."""
        return self.scale == "paper" and not (self.substitute or self.changed or self.todo)


@dataclass(frozen=True)
class TableResult:
    """A table with its cells, one for every row, column and metric, in that order."""

    spec: TableSpec
    cells: tuple[Cell, ...]
    provenance: Provenance = field(default_factory=Provenance)
    clients: Mapping[str, int] = field(default_factory=dict)  # column -> clients of its runs, where they are known
    # (row, column) -> what is not as in the table's other rows or today's code; see `load`
    stale: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    # (row, column) -> (clients with an accuracy, all) of the run that scored the fewest, where one scored not all
    fewer: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def exploratory(self, row: str, column: str) -> str:
        """Return why the verdicts on a row in a column are counted apart; "" if they are not."""
        for override, reason in self.spec.exploratory.items():
            if override in self.provenance.varied:
                return reason
        (marked,) = (each for each in self.spec.rows if each.label == row)
        if marked.exploratory and (not (only := marked.exploratory_with) or set(only) & set(self.provenance.varied)):
            return marked.exploratory
        (place,) = (each for each in self.spec.columns if each.label == column)
        if place.exploratory:
            return place.exploratory
        return SEVERAL if self.spec.varies else ""

    def clients_of(self, column: str) -> int | None:
        """Return how many clients a column has: those of its runs, or before any those of the paper, if known."""
        return self.clients.get(column) or self.spec.clients or None

    def cell(self, row: str, column: str, metric: str) -> Cell:
        """Return the cell of these labels. Raises KeyError if there is none."""
        for cell in self.cells:
            if (cell.row, cell.column, cell.metric) == (row, column, metric):
                return cell
        raise KeyError((row, column, metric))

    def cells_below(self, column: ColumnSpec, metric: MetricSpec) -> list[Cell]:
        """Return the cells of a column and metric, one a row."""
        return [self.cell(row.label, column.label, metric.name) for row in self.spec.rows]

    @property
    def title(self) -> str:
        """The table's title, and what is not as published."""
        return self.provenance.named(self.spec)


ARCHIVE = "table.zip"
TABLE, ROWS, CURVES = "table.json", "rows.csv", "curves.csv"  # and what is in it
MATRICES, CLIENTS = "matrices.npz", "clients.npz"
# Fields of a specification that say how values are judged and what is said of them, not how they are measured.
JUDGING = ("published_seeds", "published_over_k", "clients", "margins", "groups", "exploratory", "notes", "findings")
JUDGING_LINES = {"rows": ("exploratory", "exploratory_with"), "columns": ("exploratory",)}  # the same of a line
SEPARATOR = "|"  # between row, column and seed in the names of arrays
BASELINE = f"{SEPARATOR}baseline"  # behind a row's label in rows.csv: a run that its own are held against
Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]


def folder_of(results: Path | str, table: str, made: Provenance) -> Path:
    """Return where a table of this provenance is kept."""
    parts = ["" if made.scale == "paper" else made.scale, made.substitute, *made.changed, *made.varied]
    setting = [re.sub(r"[^A-Za-z0-9._=+]", "_", part) for part in parts if part]
    folder = Path(results) / "tables" / table
    return folder / setting_name(setting) if setting else folder


def place_of(row: str, column: str, seed: int | str) -> str:
    """Return the name under which an array of a run is kept."""
    return SEPARATOR.join((row, column, str(seed)))


def folders(results: Path | str) -> dict[str, Path]:
    """Return every filled table below `results` by its name, NAME or NAME/SETTING, in order."""
    tables = Path(results) / "tables"
    found = sorted(file.parent for file in tables.rglob(ARCHIVE))
    return {folder.relative_to(tables).as_posix(): folder for folder in found}


def save(
    folder: Path,
    table: TableResult,
    rows: Sequence[Mapping[str, Any]] = (),
    curves: Sequence[Mapping[str, Any]] = (),
    matrices: Arrays | None = None,
    clients: Arrays | None = None,
) -> None:
    """Write table.zip, as a whole; what is in it already and is not given stays.

    `rows` are result rows, `curves` points with row, column, seed, round and acc_on_<set> in percent; `matrices` [N, N]
    and the accuracies of `clients` [N] in percent are kept by "row|column|seed", as float32.

    Raises:
        Damaged: what is there is not as it was written.
    """
    make_folder(folder)
    content = {
        "spec": dataclasses.asdict(table.spec),
        "circumstances": dataclasses.asdict(table.provenance),
        "cells": [_plain(cell) for cell in table.cells],
    }
    files = {TABLE: as_json(content)}
    files |= {name: as_csv(lines) for name, lines in ((ROWS, rows), (CURVES, curves)) if lines}
    for name, arrays in ((MATRICES, matrices), (CLIENTS, clients)):
        if arrays:
            files[name] = as_npz({key: np.asarray(each, dtype=np.float32) for key, each in arrays.items()})
    files_of(folder).write(files)


def files_of(folder: Path, kind: str = "table") -> Archive:
    """Return the files that are read back of the folder of a table, or of another `kind` of results."""
    name = shlex.quote(str(folder))
    repair = f"bring it back: git restore {name}, or make the {kind} again after: rm -r {name}"
    return Archive(folder / f"{kind}.zip", repair)


def load_table(folder: Path) -> TableResult:
    """Return the table in `folder`, its cells as stored.

    What they are judged by is looked up again: published values, and from the table's YAML of today its margins, what
    is exploratory, what is still to do, notes and findings. So a correction shows at once.

    Raises:
        Damaged: it is not as it was written.
    """
    files = files_of(folder)
    content = files.json(TABLE)
    try:
        for line in (*content["spec"]["rows"], *content["spec"]["columns"]):
            for old in ("unsupported", "note"):  # which earlier versions wrote
                line.pop(old, None)
        table = _judged_as_today(spec.parse(content["spec"]))
        rows = {row.label: row for row in table.rows}
        columns = {column.label: column for column in table.columns}
        metrics = {metric.name: metric for metric in table.metrics}
        cells = tuple(
            dataclasses.replace(
                _cell(cell),
                published=table.published(rows[cell["row"]], columns[cell["column"]], metrics[cell["metric"]]),
            )
            for cell in content["cells"]
        )
        made = content["circumstances"]
        lists = {key: tuple(made.get(key, ())) for key in ("changed", "varied")}
        provenance = Provenance(**{**made, **lists, "seconds": _number(made["seconds"]), "todo": spec.todo(table.name)})
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise files.damaged(TABLE, f"it holds no table: {error}") from error
    return TableResult(table, cells, provenance, _clients(folder), fewer=_fewer(folder))


def _clients(folder: Path) -> dict[str, int]:
    """Return clients of the runs of each column, where they are known."""
    rows = [row for row in load_rows(folder) if row.get("clients")]
    if not all(row["clients"].isdecimal() and int(row["clients"]) and "column" in row for row in rows):
        raise files_of(folder).damaged(ROWS, "it holds no numbers of clients")
    return {row["column"]: int(row["clients"]) for row in rows}


def _fewer(folder: Path) -> dict[tuple[str, str], tuple[int, int]]:
    """Return `TableResult.fewer` by the accuracies of the clients, as far as they are kept."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for place, accuracies in load_arrays(folder, CLIENTS).items():
        scored = int(np.isfinite(accuracies).sum())
        if scored < len(accuracies):
            row, column, _ = place.rsplit(SEPARATOR, 2)
            found[row, column] = min(found.get((row, column), (scored, len(accuracies))), (scored, len(accuracies)))
    return found


def _judged_as_today(stored: spec.TableSpec) -> spec.TableSpec:
    if stored.name not in groups.names("table"):
        return stored
    today = spec.load(stored.name)
    judged: dict[str, Any] = {name: getattr(today, name) for name in JUDGING}
    for part, names in JUDGING_LINES.items():
        now = {line.label: {name: getattr(line, name) for name in names} for line in getattr(today, part)}
        judged[part] = tuple(dataclasses.replace(line, **now.get(line.label, {})) for line in getattr(stored, part))
    return dataclasses.replace(stored, **judged)


def load_rows(folder: Path, name: str = ROWS) -> list[dict[str, str]]:
    """Return one line a run, or the points of the learning curves (CURVES); empty if no run finished."""
    files = files_of(folder)
    return files.csv(name) if files.has(name) else []


def load_arrays(folder: Path, name: str) -> dict[str, Array]:
    """Return the collaboration matrices (MATRICES) or accuracies of clients (CLIENTS), as `save` is given them."""
    files = files_of(folder)
    return files.npz(name) if files.has(name) else {}


def _plain(cell: Cell) -> dict[str, Any]:
    """Return a cell without the published value, which has a file of its own; JSON has no nan."""
    content = {f.name: getattr(cell, f.name) for f in dataclasses.fields(cell) if f.name != "published"}
    return {**content, "values": [value if math.isfinite(value) else str(value) for value in cell.values]}


def _cell(content: Mapping[str, Any]) -> Cell:
    lists = {name: tuple(content.get(name, ())) for name in ("seeds", "keys", "baselines")}
    return Cell(**{**content, **lists, "values": tuple(_number(value) for value in content["values"])})


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


# Which runs of a filled table have IPR and RSD against another result of Local than the one that the table shows.
#
# A run is measured against the Local that lay beside it. Where that Local was gone and was run again for a later run,
# on a machine that rounds otherwise, the table shows the new one under the same run key; what was measured before is
# told by the accuracies of the clients (clients.npz), where they are kept.

LOCAL = "Local"  # why a cell is marked
TOLERANCE = 1e-3  # percentage points; accuracies are kept as float32


def another_local(rows: Sequence[Mapping[str, Any]], clients: Arrays) -> frozenset[str]:
    """Return keys of the runs in `rows` whose IPR or RSD is not that of their `clients` against the Local in `rows`."""
    lines = [row for row in rows if not row["row"].endswith(BASELINE)]  # of a baseline no clients are kept
    kept = {row["key"]: clients.get(place_of(row["row"], row["column"], row["seed"])) for row in lines}
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


# What earlier calls left in a table's folder: values that stand although their runs are gone or were not asked for.
#
# A value counts as long as the run keys under which it was recorded, the run's own and that of its baseline, are
# those that the cell has today, and the cell is still measured in the same way.


@dataclass(frozen=True)
class StoredTable:
    """A table as it was stored; nothing, if it never was."""

    table: TableResult | None = None
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by run key
    curves: tuple[Mapping[str, str], ...] = ()
    matrices: Arrays = field(default_factory=dict)  # of runs, by `place_of`
    clients: Arrays = field(default_factory=dict)
    # keys of the runs measured against another result of Local than the recorded
    apart: frozenset[str] = frozenset()

    @property
    def provenance(self) -> Provenance | None:
        """The provenance of the stored table."""
        return self.table.provenance if self.table else None

    def seeds(self, row: RowSpec, column: ColumnSpec) -> tuple[int, ...]:
        """Return the seeds of which a cell has a value in any metric; none if the row or column is another today."""
        return tuple(sorted({seed for cell in self._cells(row, column) for seed in cell.seeds}))

    def value(self, row: RowSpec, column: ColumnSpec, metric: MetricSpec, key: str, base: str) -> float | None:
        """Return the metric of the run `key`, nan if censored; None if not recorded. `base`: see CellRuns.keys."""
        for cell in self._cells(row, column):
            if cell.metric == metric.name and key in cell.keys and self._measured_so(metric, row, column):
                place = cell.keys.index(key)
                return cell.values[place] if base == (cell.baselines or cell.keys)[place] else None
        return None

    def curve(self, row: str, column: str, seed: int) -> list[dict[str, Any]]:
        """Return the thinned learning curve of a run, as stored."""
        return [dict(p) for p in self.curves if (p["row"], p["column"], p["seed"]) == (row, column, str(seed))]

    def _measured_so(self, metric: MetricSpec, row: RowSpec, column: ColumnSpec) -> bool:
        """Return whether the stored values of `metric` in this cell were measured as today; labels do not matter."""
        today = metric.measured(row, column)
        if self.table is None or (stored := _lines(self.table.spec, row, column)) is None:
            return False
        return any(old.name == metric.name and _alike(old.measured(*stored), today) for old in self.table.spec.metrics)

    def _cells(self, row: RowSpec, column: ColumnSpec) -> list[Cell]:
        if self.table is None or (stored := _lines(self.table.spec, row, column)) is None:
            return []
        if (stored[0].baseline, stored[0].study) != (row.baseline, row.study):  # what no run key covers
            return []
        return [cell for cell in self.table.cells if (cell.row, cell.column) == (row.label, column.label)]


def read(folder: Path) -> StoredTable:
    """Return what is stored in `folder`, which may be missing.

    Raises:
        FedbenchError: table.zip is there and unreadable.
    """
    if not (folder / ARCHIVE).is_file():
        return StoredTable()
    lines = load_rows(folder)
    # A line as a result row: without the table's own columns, an empty field is None.
    rows = {line["key"]: {k: text or None for k, text in line.items() if k not in ("row", "column")} for line in lines}
    curves = tuple(load_rows(folder, CURVES))
    matrices, clients = (load_arrays(folder, name) for name in (MATRICES, CLIENTS))
    return StoredTable(load_table(folder), rows, curves, matrices, clients, another_local(lines, clients))


def _alike(old: Mapping[str, Any], today: Mapping[str, Any]) -> bool:
    """Return whether a stored measure is today's, whichever of its defaults either writes out."""
    if old == today:
        return True
    wanted = measures.build(today)
    try:
        return measures.build(old) == wanted
    except FedbenchError:  # a measure, or a parameter, that there no longer is
        return False


def _lines(spec: TableSpec, row: RowSpec, column: ColumnSpec) -> tuple[RowSpec, ColumnSpec] | None:
    """Return the row and the column of a stored table that have these labels; None if it lacks one."""
    rows = {each.label: each for each in spec.rows}
    columns = {each.label: each for each in spec.columns}
    if row.label not in rows or column.label not in columns:
        return None
    return rows[row.label], columns[column.label]


# Which cells of a filled table were made by other code than today's, or measured against another Local than its own.
#
# Each line of rows.csv names the code that made it (fedbench.runs.fingerprint). A line without was recorded before
# code was; it stands by its commit, and by the tests that hold the numbers of what has changed since. Of Local: see
# `another_local`.


@dataclasses.dataclass(frozen=True)
class RunCounts:
    """Runs behind the tables of a folder."""

    runs: int = 0
    changed: int = 0  # made by other code than today's
    unknown: int = 0  # recorded before code was
    apart: int = 0  # measured against another result of Local than the table's

    def __add__(self, other: RunCounts) -> RunCounts:
        mine, others = dataclasses.astuple(self), dataclasses.astuple(other)
        return RunCounts(*map(sum, zip(mine, others, strict=True)))

    def __str__(self) -> str:
        """Return one line for people."""
        return (
            f"{self.runs} runs: {self.changed} made by other code than today's, "
            f"{self.unknown} recorded before code was, {self.apart} measured against another result of Local"
        )


def load(folder: Path) -> tuple[TableResult, RunCounts]:
    """Return the table stored in `folder` with its stale cells marked, and how many runs are behind it.

    Raises:
        FedbenchError: a file of the table is damaged.
    """
    table, rows = load_table(folder), load_rows(folder)
    apart = another_local(rows, load_arrays(folder, CLIENTS))
    today = functools.cache(functools.partial(_today, table))
    marks: dict[tuple[str, str], dict[str, None]] = {}  # in the order in which they are met
    changed = 0
    for row in rows:
        code, (label, held, _) = row.get("code"), row["row"].partition(BASELINE)
        parts = fingerprint.changed(code, now) if code and (now := today(row["row"], row["column"])) else []
        changed += bool(parts)
        parts = [f"{part} of the baseline" for part in parts] if held else parts
        if found := [*parts, *([LOCAL] if row["key"] in apart else [])]:
            marks.setdefault((label, row["column"]), {}).update(dict.fromkeys(found))
    stale = {place: tuple(found) for place, found in marks.items()}
    count = RunCounts(len(rows), changed, sum(1 for row in rows if not row.get("code")), len(apart))
    return dataclasses.replace(table, stale=stale), count


def _today(table: TableResult, row: str, column: str) -> str:
    """Return hashes of today's code for a cell; "" if the cell can no longer be composed here."""
    made = table.provenance
    overrides = (*made.changed, *made.varied)
    selection = Selection(scale=made.scale, substitute=made.substitute, overrides=overrides)
    try:
        label, held, _ = row.partition(BASELINE)
        chosen = table.spec.only([label], [column])
        (line,), (place,) = chosen.rows, chosen.columns
        own = line.baseline if held else (*line.overrides, *place.own(label))
        _, plain = compose_cell(table.spec, place, own, selection)
        return fingerprint.code_of(from_plain(plain))
    except FedbenchError:  # a file of weights that is not here, a row that went
        return ""
