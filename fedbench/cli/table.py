"""The table at the end of a sweep: one line a configuration, mean and standard deviation over its seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

CHOICES = ("dataset", "partition", "model", "protocol", "method")  # columns that tell configurations apart
METRICS = {"acc": "Acc", "ipr": "IPR", "rsd": "RSD", "seconds": "s"}  # row key -> heading

Row = Mapping[str, Any]


def show(rows: Sequence[Row], console: Console | None = None) -> None:
    """Print the table of `rows` (one a run, in the order in which the runs ended)."""
    (console or Console()).print(build(rows))


def build(rows: Sequence[Row]) -> Table:
    """A choice that all rows share goes to the title, the others become columns."""
    shared = [name for name in CHOICES[:-1] if len({str(row.get(name)) for row in rows}) == 1]
    columns = [name for name in CHOICES if name not in shared]
    metrics = [name for name in METRICS if any(_number(row.get(name)) is not None for row in rows)]
    title = ", ".join(str(rows[0][name]) for name in shared if rows[0].get(name))
    table = Table(title=title or None, title_justify="left")
    for name in columns:
        table.add_column(name)
    table.add_column("seeds", justify="right")
    for name in metrics:
        table.add_column(METRICS[name], justify="right")
    for group in _grouped(rows, columns):
        choices = [str(group[0].get(name, "")) for name in columns]
        cells = [summary([row.get(name) for row in group]) for name in metrics]
        table.add_row(*choices, str(len({row.get("seed") for row in group})), *cells)
    return table


def summary(values: Sequence[Any]) -> str:
    """`mean ± std` to two decimals (sample standard deviation); `mean` alone for one value; `-` for none."""
    numbers = [number for number in map(_number, values) if number is not None]
    if not numbers:
        return "-"
    mean = f"{statistics.fmean(numbers):.2f}"
    return mean if len(numbers) == 1 else f"{mean} ± {statistics.stdev(numbers):.2f}"


def _grouped(rows: Sequence[Row], columns: Sequence[str]) -> list[list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(name)) for name in columns), []).append(row)
    return list(groups.values())


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
