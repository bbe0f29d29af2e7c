"""Filled tables on disk: results/tables/NAME/, and below it the same table at other settings, NAME/SETTING/.

A folder holds table.md for people and table.zip, from which the table can be drawn again. In table.zip, table.json has
the specification, the cells and the provenance; rows.csv the result row of each run; curves.csv the learning curves;
matrices.npz the collaboration matrices of the first seed; clients.npz the accuracy of every client.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.config import groups
from fedbench.core.checked import Archive
from fedbench.core.errors import Diverged
from fedbench.core.files import as_csv, as_json, as_npz, make_folder, setting_name
from fedbench.papers import spec
from fedbench.papers.published import Published
from fedbench.papers.spec import ColumnSpec, MetricSpec, TableSpec

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
    reason: str = ""  # why seeds have no value; "" if all ran
    baselines: tuple[str, ...] = ()  # keys of the baseline runs, if the row has some

    @property
    def mean(self) -> float:
        """Mean over seeds; nan without a value."""
        return float(np.mean(self.values)) if self.values else float("nan")

    @property
    def std(self) -> float:
        """Sample standard deviation over seeds; nan for fewer than two."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else float("nan")

    @property
    def failures(self) -> dict[int, str]:
        """Why runs gave no value, by seed, without those that nobody tried."""
        found = re.findall(r"(?:^|; )seeds? ([\d, ]+): (.*?)(?=; seeds? [\d, ]+: |$)", self.reason)
        return {int(seed): why for seeds, why in found if why != PENDING for seed in seeds.split(", ")}

    @property
    def diverged(self) -> bool:
        """Return whether a seed diverged. `mean` is then over luckier seeds: it has no verdict and no rank."""
        return f"{Diverged.__name__}: " in self.reason


@dataclass(frozen=True)
class Provenance:
    """How a table was made, which decides whether its cells get verdicts (`is_paper_setting`)."""

    scale: str = "paper"
    substitute: str = ""  # data set in place of the table's own; "" if none
    changed: tuple[str, ...] = ()  # other overrides from the command line
    varied: tuple[str, ...] = ()  # overrides of what the paper leaves open, which do not void verdicts
    trained: bool = True  # false: too short for a meaningful order of the methods
    todo: int = 0  # number of TODOs in today's YAML of the table
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
    # (row, column) -> what is not as in the table's other rows or today's code; see `recorded.read_marked`
    stale: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    # (row, column) -> (clients with an accuracy, all) of the run that scored the fewest, where one scored not all
    fewer: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def exploratory(self, row: str, column: str) -> str:
        """Return why the verdicts on a row in a column are counted separately; "" if they are not."""
        (marked,) = (each for each in self.spec.rows if each.label == row)
        (place,) = (each for each in self.spec.columns if each.label == column)
        for line in (self.spec, marked, place):
            for override, reason in spec.exploratory_reasons(line.exploratory).items():
                if not override or override in self.provenance.varied:
                    return str(reason)
        return SEVERAL if self.spec.varies else ""

    def clients_of(self, column: str) -> int | None:
        """Return a column's number of clients: that of its runs, or without runs that of the paper, if known."""
        return self.clients.get(column) or self.spec.clients or None

    def cell(self, row: str, column: str, metric: str) -> Cell:
        """Return the cell of these labels. Raises KeyError if there is none."""
        for cell in self.cells:
            if (cell.row, cell.column, cell.metric) == (row, column, metric):
                return cell
        raise KeyError((row, column, metric))

    def cells_below(self, column: ColumnSpec, metric: MetricSpec) -> list[Cell]:
        """Return the cells of a column and metric, one for each row."""
        return [self.cell(row.label, column.label, metric.name) for row in self.spec.rows]

    @property
    def title(self) -> str:
        """The table's title with its differences from the published setting."""
        return self.provenance.named(self.spec)


ARCHIVE = "table.zip"
TABLE, ROWS, CURVES = "table.json", "rows.csv", "curves.csv"  # and what is in it
MATRICES, CLIENTS = "matrices.npz", "clients.npz"
# Fields of a specification that say how values are judged and what is said of them, not how they are measured.
JUDGING = ("published_seeds", "published_over_k", "clients", "groups", "exploratory", "notes", "findings")
SEPARATOR = "|"  # between row, column and seed in the names of arrays
BASELINE = f"{SEPARATOR}baseline"  # behind a row's label in rows.csv: a run that its own are held against
Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]


def folder_of_table(results: Path | str, table: str, made: Provenance) -> Path:
    """Return where a table of this provenance is kept."""
    parts = ["" if made.scale == "paper" else made.scale, made.substitute, *made.changed, *made.varied]
    setting = [re.sub(r"[^A-Za-z0-9._=+]", "_", part) for part in parts if part]
    folder = Path(results) / "tables" / table
    return folder / setting_name(setting) if setting else folder


def place_of(row: str, column: str, seed: int | str) -> str:
    """Return the name of a run's array in the files."""
    return SEPARATOR.join((row, column, str(seed)))


def table_folders(results: Path | str) -> dict[str, Path]:
    """Return every filled table below `results` by its name, NAME or NAME/SETTING, in order."""
    tables = Path(results) / "tables"
    found = sorted(file.parent for file in tables.rglob(ARCHIVE))
    return {folder.relative_to(tables).as_posix(): folder for folder in found}


def save_table(
    folder: Path,
    table: TableResult,
    rows: Sequence[Mapping[str, Any]] = (),
    curves: Sequence[Mapping[str, Any]] = (),
    matrices: Arrays | None = None,
    clients: Arrays | None = None,
) -> None:
    """Write table.zip as a whole; parts of it that are not given stay, and so does a file that says the same.

    `rows` are result rows, `curves` points with row, column, seed, round and acc_on_<set> in percent; `matrices` [N, N]
    and the accuracies of `clients` [N] in percent are kept by "row|column|seed", as float16 (three digits) and float32.

    Raises:
        Damaged: the present file is not as it was written.
    """
    make_folder(folder)
    content = {
        "spec": dataclasses.asdict(table.spec),
        "circumstances": dataclasses.asdict(table.provenance),
        "cells": [_plain(cell) for cell in table.cells],
    }
    files = {name: as_csv(lines) for name, lines in ((ROWS, rows), (CURVES, curves)) if lines}
    for name, arrays, kind in ((MATRICES, matrices, np.float16), (CLIENTS, clients, np.float32)):
        if arrays:
            files[name] = as_npz({key: np.asarray(each, dtype=kind) for key, each in arrays.items()})
    kept = files_of(folder)
    if not (kept.has(TABLE) and kept.holds(files) and _said(read_table(folder)) == _said(table)):
        kept.write({TABLE: as_json(content), **files})


def _said(table: TableResult) -> object:
    """Return what a table says, without what depends on the machine that writes it: why it does not try a run."""
    made = dataclasses.replace(table.provenance, machine="", commit="", date="", seconds=0.0)  # of its runs, or of now
    return table.spec, made, [{**_plain(cell), "reason": cell.failures} for cell in table.cells]


def files_of(folder: Path, kind: str = "table") -> Archive:
    """Return the files that are read back of the folder of a table, or of another `kind` of results."""
    place = folder / f"{kind}.zip"  # alone: the same table at other settings is below the folder
    name = shlex.quote(str(place))
    return Archive(place, f"bring it back: git restore {name}, or make the {kind} again after: rm {name}")


def read_table(folder: Path) -> TableResult:
    """Return the table in `folder`, its cells as stored.

    The basis of verdicts is read anew: published values, and exploratory marks, TODOs, notes and findings from today's
    YAML of the table. So a correction shows at once.

    Raises:
        Damaged: it is not as it was written.
    """
    files = files_of(folder)
    content = files.json(TABLE)
    try:
        for line in (content["spec"], *content["spec"]["rows"], *content["spec"]["columns"]):
            for old in ("unsupported", "note", "margins", "exploratory_with"):  # which earlier versions wrote
                line.pop(old, None)
        table = _judged_as_today(spec.parse_spec(content["spec"]))
        cells = tuple(
            dataclasses.replace(_cell(cell), published=table.published(*place))
            for place, cell in zip(table.places(), content["cells"], strict=True)
        )
        made = content["circumstances"]
        lists = {key: tuple(made.get(key, ())) for key in ("changed", "varied")}
        provenance = Provenance(
            **{**made, **lists, "seconds": number_of(made["seconds"]), "todo": spec.todo(table.name)}
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise files.damaged(TABLE, f"it holds no table: {error}") from error
    return TableResult(table, cells, provenance, _clients(folder), fewer=_fewer(folder))


def _clients(folder: Path) -> dict[str, int]:
    """Return the number of clients of each column's runs, if known."""
    rows = [row for row in read_rows(folder) if row.get("clients")]
    if not all(row["clients"].isdecimal() and int(row["clients"]) and "column" in row for row in rows):
        raise files_of(folder).damaged(ROWS, "it holds no numbers of clients")
    return {row["column"]: int(row["clients"]) for row in rows}


def _fewer(folder: Path) -> dict[tuple[str, str], tuple[int, int]]:
    """Return `TableResult.fewer` by the accuracies of the clients, as far as they are kept."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for place, accuracies in read_arrays(folder, CLIENTS).items():
        scored = int(np.isfinite(accuracies).sum())
        if scored < len(accuracies):
            row, column, _ = place.rsplit(SEPARATOR, 2)
            found[row, column] = min(found.get((row, column), (scored, len(accuracies))), (scored, len(accuracies)))
    return found


def _judged_as_today(stored: spec.TableSpec) -> spec.TableSpec:
    if stored.name not in groups.names("table"):
        return stored
    today = spec.load_spec(stored.name)
    judged: dict[str, Any] = {name: getattr(today, name) for name in JUDGING}
    for part in ("rows", "columns"):
        now = {line.label: {"exploratory": line.exploratory} for line in getattr(today, part)}
        judged[part] = tuple(dataclasses.replace(line, **now.get(line.label, {})) for line in getattr(stored, part))
    return dataclasses.replace(stored, **judged)


def read_rows(folder: Path, name: str = ROWS) -> list[dict[str, str]]:
    """Return one line for each run, or the points of the learning curves (CURVES); empty if no run finished."""
    files = files_of(folder)
    return files.csv(name) if files.has(name) else []


def read_arrays(folder: Path, name: str) -> dict[str, Array]:
    """Return the collaboration matrices (MATRICES) or clients' accuracies (CLIENTS), as `save_table` is given them."""
    files = files_of(folder)
    return {key: each.astype(np.float32) for key, each in files.npz(name).items()} if files.has(name) else {}


def _plain(cell: Cell) -> dict[str, Any]:
    """Return a cell without the published value, which has its own file, and without nan, which JSON lacks."""
    content = {f.name: getattr(cell, f.name) for f in dataclasses.fields(cell) if f.name != "published"}
    return {**content, "values": [value if math.isfinite(value) else str(value) for value in cell.values]}


def _cell(content: Mapping[str, Any]) -> Cell:
    lists = {name: tuple(content.get(name, ())) for name in ("seeds", "keys", "baselines")}
    return Cell(**{**content, **lists, "values": tuple(number_of(value) for value in content["values"])})


def number_of(field: Any) -> float:
    """Return a field of a stored row as a number, nan if it is empty."""
    return math.nan if field in (None, "") else float(field)
