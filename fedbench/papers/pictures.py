"""Pictures of a filled table, from its files: learning curves, and ours beside the published values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedbench.cli.runs import Figures
from fedbench.core.tables import grouped
from fedbench.engine.history import TEST_SETS
from fedbench.papers import store, text
from fedbench.papers.spec import ColumnSpec
from fedbench.papers.store import TableResult
from fedbench.plots import runs


def table_figures(folder: Path) -> Figures:
    """Return curves by column, and ours beside the published values."""
    table = store.read_table(folder)
    found: Figures = {}
    points = store.read_rows(folder, store.CURVES)
    for index, column in enumerate(table.spec.columns, 1):
        named = _named(points, column.label)
        sets = {name for each in named.values() for run in each for name in run if name.startswith("acc_on_")}
        wanted = [f"acc_on_{name}" for name in TEST_SETS if f"acc_on_{name}" in sets]
        name = ", ".join(text.headings(table, column)) if table.provenance.substitute else column.label
        if wanted:
            found[f"curves-{index}"] = runs.accuracy_curves(named, wanted[0], f"{name}: accuracy, %")
        if published := _beside(table, column):
            labels = [row.label for row in table.spec.rows]
            found[f"beside-{index}"] = runs.beside_published(published, labels, f"{table.title}: {name}")
    return found


def _named(points: Sequence[Mapping[str, str]], column: str) -> dict[str, list[runs.Curve]]:
    """Return the curves of a column by row, one a seed."""
    numbers = ({name: text for name, text in point.items() if name not in ("row", "column")} for point in points)
    places = ((point["row"], point["column"], point["seed"]) for point in points)
    seeds = grouped(zip(places, numbers, strict=True))
    return grouped((row, runs.curve_of(own)) for (row, here, _), own in seeds.items() if here == column)


def _beside(table: TableResult, column: ColumnSpec) -> dict[str, np.ndarray]:
    """Return by metric mean and deviation, ours and published, [rows, 4]; none if nothing is published."""
    found = {}
    for metric in table.spec.metrics:
        cells = table.cells_below(column, metric)
        theirs = [(c.published.mean, c.published.std) if c.published else (np.nan, np.nan) for c in cells]
        values = np.array([(c.mean, c.std, *t) for c, t in zip(cells, theirs, strict=True)], dtype=np.float64)
        if np.isfinite(values[:, 2]).any() and np.isfinite(values[:, 0]).any():
            found[metric.label] = values
    return found
