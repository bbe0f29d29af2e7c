"""Which cells of a filled table were made by other code than today's, or measured against another Local than its own.

Each line of rows.csv names the code that made it (fedbench.runs.fingerprint). A line without was recorded before code
was; it stands by its commit, and by the tests that hold the numbers of what has changed since. Of Local: see
fedbench.tables.store.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedbench.core.errors import FedbenchError
from fedbench.runs import fingerprint
from fedbench.runs.config import from_plain
from fedbench.tables import store
from fedbench.tables.spec import Selection, compose_cell
from fedbench.tables.store import LOCAL, TableResult, another_local


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
    table, rows = store.load_table(folder), store.load_rows(folder)
    stale: dict[tuple[str, str], tuple[str, ...]] = {}
    changed = 0
    for place, codes in _codes(rows).items():
        today = _today(table, *place)
        parts = [fingerprint.changed(code, today) for code in codes] if today else []
        changed += sum(map(bool, parts))
        if any(parts):
            stale[place] = tuple(dict.fromkeys(part for each in parts for part in each))
    apart = another_local(rows, store.load_clients(folder))
    for row in rows:
        if row["key"] in apart:
            place = row["row"], row["column"]
            stale[place] = tuple(dict.fromkeys((*stale.get(place, ()), LOCAL)))
    count = RunCounts(len(rows), changed, sum(1 for row in rows if not row.get("code")), len(apart))
    return dataclasses.replace(table, stale=stale), count


def _codes(rows: Sequence[Mapping[str, str]]) -> dict[tuple[str, str], list[str]]:
    """Return the codes that are known, by (row, column)."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if code := row.get("code"):
            found.setdefault((row["row"], row["column"]), []).append(code)
    return found


def _today(table: TableResult, row: str, column: str) -> str:
    """Return hashes of today's code for a cell; "" if the cell can no longer be composed here."""
    made = table.provenance
    overrides = (*made.changed, *made.varied)
    selection = Selection(scale=made.scale, substitute=made.substitute, overrides=overrides)
    try:
        chosen = table.spec.only([row], [column])
        own = (*chosen.rows[0].overrides, *chosen.columns[0].own(row))
        _, plain = compose_cell(table.spec, chosen.columns[0], own, selection)
        return fingerprint.code_of(from_plain(plain))
    except FedbenchError:  # a file of weights that is not here, a row that went
        return ""
