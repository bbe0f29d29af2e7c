"""Pictures of finished runs and filled tables, from their files: what `python -m fedbench plot` writes.

`run_figures`, `comparison_figures` and `table_figures` return figures by name, for a page that shows some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.core.errors import FedbenchError
from fedbench.engine.history import TEST_SETS
from fedbench.plots import runs, style
from fedbench.runs.folder import RESULT
from fedbench.runs.run import Run
from fedbench.tables import store, verdict
from fedbench.tables.store import TableResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Figures = dict[str, "Figure"]
TABLE = "table.json"


def run_figures(folder: Path) -> Figures:
    """Return gain over Local by client, collaboration matrix and map of clients, as far as the run has them."""
    run = Run(folder)
    row = run.row
    title = f"{row['method']}, {row['dataset']}, {row['partition']}, seed {row['seed']}"
    found: Figures = {}
    gain = np.array([float(client.get("gain") or "nan") for client in run.client_rows])
    if np.isfinite(gain).any():
        found["gain"] = runs.gain_bars(gain, title)
    if run.W is not None:
        found["collaboration"] = runs.collaboration_matrix(run.W, title)
    found["clients"] = runs.client_map(run.label_counts, run.W, title)
    return found


def comparison_figures(folders: Sequence[Path]) -> Figures:
    """Return accuracy over rounds, bytes and seconds of runs; those that differ in their seed alone are one line."""
    named: dict[str, list[runs.Curve]] = {}
    finished = [Run(folder) for folder in folders]
    rows = [run.row for run in finished]
    for run, name in zip(finished, distinct_names(rows), strict=True):
        named.setdefault(name, []).append(_curve(run.rounds))
    column = f"acc_on_{rows[0]['test_set']}"
    if any(column not in curve for each in named.values() for curve in each):
        raise FedbenchError(f"these runs were not scored on one test set; {column} is not in all of them")
    label = f"accuracy ({rows[0]['test_set']}), %"
    return {
        "curves": runs.accuracy_curves(named, column, label),
        "cost": runs.cost_curves(named, column, label),
    }


def distinct_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return names that tell runs apart besides their seed: method, what else differs, and the key of those alike."""
    keys = ("method", "dataset", "partition", "model", "protocol", "variant")
    varied = [key for key in keys if key == "method" or len({str(row.get(key) or "") for row in rows}) > 1]
    plain = [", ".join(str(row[key]) for key in varied if row.get(key)) for row in rows]
    seen = Counter((name, row["seed"]) for name, row in zip(plain, rows, strict=True))
    clashing = {name for (name, _), count in seen.items() if count > 1}
    return [f"{n} {row['key'][:4]}" if n in clashing else n for n, row in zip(plain, rows, strict=True)]


def table_figures(folder: Path) -> Figures:
    """Return curves by column, ours beside the published values, and the critical difference of its rows."""
    table = store.load_table(folder)
    found: Figures = {}
    points = store.load_curves(folder)
    for index, column in enumerate(table.spec.columns, 1):
        named = _named(points, column.label)
        sets = {name for each in named.values() for run in each for name in run if name.startswith("acc_on_")}
        wanted = [f"acc_on_{name}" for name in TEST_SETS if f"acc_on_{name}" in sets]
        if wanted:
            found[f"curves-{index}"] = runs.accuracy_curves(named, wanted[0], f"{column.label}: accuracy, %")
        if published := _beside(table, column.label):
            labels, title = [row.label for row in table.spec.rows], f"{table.spec.title}: {column.label}"
            found[f"beside-{index}"] = runs.beside_published(published, labels, title)
    metric = table.spec.metrics[0]
    if ranked := verdict.ranks(table, metric):
        found["ranks"] = runs.critical_difference(ranked.ranks, ranked.critical, ranked.blocks, metric.label)
    return found


def _named(points: Sequence[Mapping[str, str]], column: str) -> dict[str, list[runs.Curve]]:
    """Return the curves of a column by row, one a seed."""
    found: dict[str, dict[str, list[Mapping[str, str]]]] = {}
    for point in points:
        if point["column"] == column:
            found.setdefault(point["row"], {}).setdefault(point["seed"], []).append(point)
    return {row: [_curve(seed) for seed in seeds.values()] for row, seeds in found.items()}


def _beside(table: TableResult, column: str) -> dict[str, np.ndarray]:
    """Return by metric mean and deviation, ours and published, [rows, 4]; none if nothing is published."""
    found = {}
    for metric in table.spec.metrics:
        cells = [table.cell(row.label, column, metric.name) for row in table.spec.rows]
        theirs = [(c.published.mean, c.published.std) if c.published else (np.nan, np.nan) for c in cells]
        values = np.array([(c.mean, c.std, *t) for c, t in zip(cells, theirs, strict=True)], dtype=np.float64)
        if np.isfinite(values[:, 2]).any() and np.isfinite(values[:, 0]).any():
            found[metric.label] = values
    return found


def _curve(rows: Sequence[Mapping[str, str]]) -> runs.Curve:
    """Return the numeric columns of a history, by name."""
    kept = ("round", "bytes_up", "bytes_down", "seconds_total")
    names = [name for name in rows[0] if name in kept or name.startswith("acc_on_")]
    return {name: [float(row[name] or "nan") for row in rows] for name in names}


def find_folders(paths: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Return (folders of finished runs, folders of filled tables) that `paths` are, or hold.

    Raises:
        FedbenchError: a path holds neither.
    """
    found: tuple[list[Path], list[Path]] = ([], [])
    for text in paths:
        each = [sorted(file.parent for file in Path(text).rglob(name)) for name in (RESULT, TABLE)]
        if not any(each):
            raise FedbenchError(f"{text} holds no finished run and no filled table")
        for kept, new in zip(found, each, strict=True):
            kept.extend(folder for folder in new if folder not in kept)
    return found


def save_figures(
    figures: Mapping[str, Figure], place: Path, formats: Sequence[str] = ("svg", "png")
) -> list[Path]:
    """Write each figure to PLACE-NAME.FORMAT; returns the paths without their ends."""
    place.parent.mkdir(parents=True, exist_ok=True)
    written = [place.with_name(f"{place.name}-{name}") for name in figures]
    for path, figure in zip(written, figures.values(), strict=True):
        style.save(figure, path, formats=formats)
    return written
