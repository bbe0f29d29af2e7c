"""Part three: cells of two tables at full length on Fashion-MNIST, the most informative first.

Each row is run by `fedbench reproduce`, its seeds as one program on a GPU, and the table drawn after it, with verdicts,
under OUT/results. A run that the deadline stops leaves a checkpoint under OUT/runs; the same command goes on with it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from checks.engines import first_line
from checks.record import Deadline, Lines
from fedbench.cli.reproduce import reproduce
from fedbench.core.signals import handled
from fedbench.tables import spec, store
from fedbench.tables.spec import Selection
from fedbench.tables.store import TableResult

COLUMNS = {"fedcollab_t1": "Label shift", "fedrema_t1": "Fashion-MNIST"}
FIRST = (  # what the papers' claims rest on; the other rows follow, a table at a time
    ("fedcollab_t1", "Local"),
    ("fedcollab_t1", "FedAvg"),
    ("fedcollab_t1", "FedAvg+FedCollab"),
    ("fedrema_t1", "FedReMa"),
    ("fedrema_t1", "FedAvg"),
    ("fedrema_t1", "Local"),
    ("fedcollab_t1", "Ditto+FedCollab"),
)


def run(device: str, scale: str, deadline: Deadline, out: Lines) -> None:
    """Rows until the deadline; a line a row.

    Raises:
        Stopped: a signal came; the line of the row under way says so.
    """
    done = {(line["table"], line["row"]) for line in out.read() if "seconds" in line}
    with handled():
        for table, row in order():
            if (table, row) in done:
                continue
            if deadline.left < 0:
                return
            out.add(**_row(table, row, device, scale, out.path.parent))


def order() -> list[tuple[str, str]]:
    """(table, row) of every row, those of `FIRST` before the others."""
    every = [(table, row.label) for table in COLUMNS for row in spec.load(table).rows]
    return list(dict.fromkeys([*FIRST, *every]))


def _row(table: str, row: str, device: str, scale: str, out: Path) -> dict[str, Any]:
    what = {"table": table, "row": row, "column": COLUMNS[table], "scale": scale}
    print(f"{table}: {row}", flush=True)
    column, results = COLUMNS[table], out / "results"
    selection = Selection(
        table=table, scale=scale, rows=(row,), columns=(column,), results=str(results), jobs=1,
        overrides=(f"hardware.device={device}", f"runs_dir={out / 'runs'}"),
    )  # fmt: skip
    begin = time.perf_counter()
    try:
        reproduce(selection)
    except ImportError as error:  # what draws the table and judges it; the values are stored before
        what["undrawn"] = first_line(error)
    except Exception as error:  # noqa: BLE001 - one row must not end the others
        return {**what, "error": first_line(error)}
    seconds = round(time.perf_counter() - begin, 1)
    (folder,) = (each for each in store.folders(results) if _is_of(each, table))
    return {**what, "seconds": seconds, **_values(store.load_table(folder), row, column)}


def _is_of(folder: Path, table: str) -> bool:
    return store.load_table(folder).spec.name == table


def _values(filled: TableResult, row: str, column: str) -> dict[str, Any]:
    """Of each metric the mean, the seeds' values and what is published; why values are missing."""
    found: dict[str, Any] = {}
    for metric in filled.spec.metrics:
        cell = filled.cell(row, column, metric.name)
        printed = cell.published.text if cell.published else ""
        found[metric.name] = {"mean": cell.mean, "values": cell.values, "published": printed}
        if cell.reason:
            found["error"] = cell.reason
    return found
