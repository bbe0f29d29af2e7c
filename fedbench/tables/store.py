"""Filled tables on disk: results/tables/NAME[-scale][-substitute]/, all that is needed to draw them again.

table.json holds the specification, the cells and the circumstances; rows.csv one line a run with its whole result
row; curves.csv the learning curves behind the cells; matrices.npz the collaboration matrices of the first seed;
clients.npz the accuracy of every client. All are sealed (fedbench.core.sealed).
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.files import as_csv, as_json, as_npz
from fedbench.core.sealed import Sealed
from fedbench.tables import spec
from fedbench.tables.result import Cell, Circumstances, TableResult
from fedbench.tables.spec import LineT

TABLE, ROWS, CURVES = "table.json", "rows.csv", "curves.csv"
MATRICES, CLIENTS = "matrices.npz", "clients.npz"
# Fields of a specification that say how values are judged and what is said of them, not how they are measured.
JUDGING = ("published_seeds", "margins", "groups", "exploratory", "notes", "findings")
JUDGING_LINE = ("exploratory", "exploratory_but", "note")  # the same of a row or column
SEPARATOR = "|"  # between row, column and seed in the names of arrays


def folder_of(results: Path | str, table: str, made: Circumstances) -> Path:
    """Where a table made in these circumstances is kept."""
    parts = [table, "" if made.scale == "paper" else made.scale, made.substitute, *made.changed, *made.varied]
    name = "-".join(re.sub(r"[^A-Za-z0-9._=+]", "_", part) for part in parts if part)
    return Path(results) / "tables" / name[:150]


def place_of(row: str, column: str, seed: int | str) -> str:
    """The name under which an array of a run is kept."""
    return SEPARATOR.join((row, column, str(seed)))


def folders(results: Path | str) -> list[Path]:
    """Every filled table below `results`, in order of name."""
    return sorted(file.parent for file in (Path(results) / "tables").glob(f"*/{TABLE}"))


def save(folder: Path, table: TableResult, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write table.json and rows.csv; each file is replaced as a whole.

    Raises:
        Damaged: the folder's checksums are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seal(folder)
    content = {
        "spec": dataclasses.asdict(table.spec),
        "circumstances": dataclasses.asdict(table.circumstances),
        "cells": [_plain(cell) for cell in table.cells],
    }
    files_of(folder).write({TABLE: as_json(content), **({ROWS: as_csv(rows)} if rows else {})})


def save_curves(folder: Path, curves: Iterable[Mapping[str, Any]]) -> None:
    """Write curves.csv: row, column, seed, round and acc_on_<set> in percent."""
    if rows := list(curves):
        files_of(folder).write({CURVES: as_csv(rows)})


def save_matrices(folder: Path, matrices: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write matrices.npz, [N, N] each, as float32."""
    _save_arrays(folder, MATRICES, matrices)


def save_clients(folder: Path, clients: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write clients.npz: the accuracy of each client [N] in percent, as float32, by "row|column|seed"."""
    _save_arrays(folder, CLIENTS, clients)


def _save_arrays(folder: Path, name: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    if arrays:
        small = {key: np.asarray(each, dtype=np.float32) for key, each in arrays.items()}
        files_of(folder).write({name: as_npz(small)})


def seal(folder: Path) -> None:
    """Give the files of a table that an earlier version wrote their checksums."""
    files_of(folder).adopt(TABLE, ROWS, CURVES, MATRICES, CLIENTS)


def files_of(folder: Path) -> Sealed:
    """The files of a table's folder that are read back."""
    name = shlex.quote(str(folder))
    return Sealed(folder, f"bring it back: git restore {name}, or make the table again after: rm -r {name}")


def load_table(folder: Path) -> TableResult:
    """The table in `folder`, its cells as stored.

    What they are judged by is looked up again: published values, and from the table's YAML of today its margins, what
    is exploratory, notes and findings. So a correction shows at once.

    Raises:
        Damaged: table.json or rows.csv is not as it was written.
    """
    files = files_of(folder)
    content = files.json(TABLE)
    try:
        table = _judged_as_today(spec.parse(content["spec"]))
        rows = {row.label: row for row in table.rows}
        columns = {column.label: column for column in table.columns}
        metrics = {metric.name: metric for metric in table.metrics}
        cells = tuple(
            dataclasses.replace(
                _cell(cell),
                published=table.published(
                    rows[cell["row"]], columns[cell["column"]], metrics[cell["metric"]]
                ),
            )
            for cell in content["cells"]
        )
        made = content["circumstances"]
        lists = {key: tuple(made.get(key, ())) for key in ("changed", "varied")}
        circumstances = Circumstances(**{**made, **lists, "seconds": _number(made["seconds"])})
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise files.damaged(TABLE, f"it holds no table: {error}") from error
    return TableResult(table, cells, circumstances, _clients(folder))


def _clients(folder: Path) -> dict[str, int]:
    """Clients of the runs of each column, where they are known."""
    rows = [row for row in load_rows(folder) if row.get("clients")]
    if not all(row["clients"].isdecimal() and int(row["clients"]) and "column" in row for row in rows):
        raise files_of(folder).damaged(ROWS, "it holds no numbers of clients")
    return {row["column"]: int(row["clients"]) for row in rows}


def _judged_as_today(stored: spec.TableSpec) -> spec.TableSpec:
    if stored.name not in spec.names():
        return stored
    today = spec.load(stored.name)
    judged: dict[str, Any] = {name: getattr(today, name) for name in JUDGING}
    for part in ("rows", "columns"):
        judged[part] = _reworded(getattr(stored, part), getattr(today, part))
    return dataclasses.replace(stored, **judged)


def _reworded(stored: tuple[LineT, ...], today: tuple[LineT, ...]) -> tuple[LineT, ...]:
    now = {line.label: line for line in today}
    judged = [f.name for f in dataclasses.fields(stored[0]) if f.name in JUDGING_LINE]
    return tuple(
        dataclasses.replace(line, **{name: getattr(now.get(line.label, line), name) for name in judged})
        for line in stored
    )


def load_rows(folder: Path, name: str = ROWS) -> list[dict[str, str]]:
    """One line a run; empty if no run finished."""
    files = files_of(folder)
    return files.csv(name) if files.has(name) else []


def load_curves(folder: Path) -> list[dict[str, str]]:
    """The learning curves behind the cells."""
    return load_rows(folder, CURVES)


def load_matrices(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Collaboration matrices [N, N] by "row|column|seed"."""
    return _arrays(folder, MATRICES)


def load_clients(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Accuracies of clients [N] in percent by "row|column|seed"."""
    return _arrays(folder, CLIENTS)


def _arrays(folder: Path, name: str) -> dict[str, np.ndarray[Any, Any]]:
    files = files_of(folder)
    return files.npz(name) if files.has(name) else {}


def _plain(cell: Cell) -> dict[str, Any]:
    """Without the published value, which has a file of its own; JSON has no nan."""
    content = {f.name: getattr(cell, f.name) for f in dataclasses.fields(cell) if f.name != "published"}
    return {**content, "values": [value if math.isfinite(value) else str(value) for value in cell.values]}


def _cell(content: Mapping[str, Any]) -> Cell:
    lists = {name: tuple(content.get(name, ())) for name in ("seeds", "keys", "baselines")}
    return Cell(**{**content, **lists, "values": tuple(_number(value) for value in content["values"])})


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
