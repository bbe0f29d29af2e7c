"""What is printed of finished runs: the result of one, and many side by side."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedbench.results.history import TIMING_PREFIX
from fedbench.results.units import STALE, decimals, human_bytes, human_seconds, mean_std, number

GROUP = ("dataset", "partition", "model", "protocol")  # runs are comparable when they agree on these
COLUMNS = {"acc": "Acc %", "acc_pooled": "pooled %", "ipr": "IPR %", "rsd": "RSD pp"}  # row key -> heading
LOWER_IS_BETTER = ("rsd",)


def run_table(result: Mapping[str, Any]) -> Table:
    """The closing table of one run, from its result row."""
    title = ", ".join(str(result[name]) for name in ("method", "variant", *GROUP) if result.get(name))
    table = Table(title=Text(f"{title}, seed {result['seed']}"), show_header=False, title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, heading in COLUMNS.items():
        table.add_row(heading, decimals(result.get(name)))
    table.add_row("read at", f"{result['report']}, {result['test_set']} test set")
    for way in ("up", "down"):
        prepared = number(result.get(f"bytes_{way}_prepare"))
        said = f" ({human_bytes(prepared)} to prepare)" if prepared else ""
        table.add_row(f"traffic {way}", f"{human_bytes(result[f'bytes_{way}'])}{said}")
    table.add_section()
    for name, value in result.items():
        if name.startswith(TIMING_PREFIX):
            table.add_row(name.removeprefix(TIMING_PREFIX), human_seconds(value))
    return table


def comparison_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Many runs: a section for each (data set, partition, model, protocol), a line for each method.

    Cells are mean ± sample standard deviation over the runs, the best mean of a section is bold. A run that
    appears twice (same key) counts once; more runs than seeds are shown as such, since they mix configurations.
    Where other code made one of the runs (`code_changed`), its line is marked: see `units.remark`.
    """
    unique = {row.get("key") or index: row for index, row in enumerate(rows)}
    table = Table()
    # A section's heading folds where the terminal is narrow; methods' names and values stay on one line before it.
    table.add_column("method", min_width=max((len(_label(row)) for row in rows), default=0))
    table.add_column("seeds", justify="right")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    for where, section in _grouped(list(unique.values()), GROUP).items():
        table.add_section()
        table.add_row(Text(", ".join(filter(None, where)), style="italic"))
        _add_section(table, section)
    return table


def _add_section(table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    methods = _grouped(rows, ("method", "variant"))
    values = {
        name: {
            method: [known for row in runs if (known := number(row.get(name))) is not None]
            for method, runs in methods.items()
        }
        for name in COLUMNS
    }
    best = {name: _best(column, name in LOWER_IS_BETTER) for name, column in values.items()}
    for method, runs in methods.items():
        seeds = len({row.get("seed") for row in runs})
        count = str(seeds) if seeds == len(runs) else f"{seeds} ({len(runs)} runs)"
        mark = STALE if any(row.get("code_changed") for row in runs) else ""
        cells = [
            Text(
                mean_std(values[name][method]) + (mark if values[name][method] else ""),
                style="bold" if method in best[name] else "",
            )
            for name in COLUMNS
        ]
        table.add_row(Text(_label(runs[0])), count, *cells)


def _label(row: Mapping[str, Any]) -> str:
    return "  " + " ".join(str(row[name]) for name in ("method", "variant") if row.get(name))


def _best(column: Mapping[tuple[str, ...], Sequence[float]], lower: bool) -> set[tuple[str, ...]]:
    """Methods whose mean, as printed, is the best of those that have one; none if there is nothing to beat."""
    means = {key: round(math.fsum(known) / len(known), 2) for key, known in column.items() if known}
    if len(means) < 2:
        return set()
    target = min(means.values()) if lower else max(means.values())
    return {key for key, mean in means.items() if mean == target}


def _grouped(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
    """Rows by their values of `names`, in order of first appearance."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(name) or "") for name in names), []).append(row)
    return groups


class Output(Console):
    """Standard output, of which somebody may read the first lines only (`| head`): what runs goes on."""

    def on_broken_pipe(self) -> None:
        """Print to nobody from now on; rich would end the process."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
