"""What lies behind the cells of a table, packed small for the page: learning curves, matrices, clients."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedbench.plots.style import cluster_order
from fedbench.tables.store import SEPARATOR, TableResult

LEVELS = 1000  # between zero and the largest weight of a matrix
CLIENTS = 150  # of a matrix that are drawn; more would be smaller than a pixel and weigh megabytes
PREFIX = "acc_on_"
Arrays = np.ndarray[Any, Any]


def behind(
    table: TableResult,
    curves: Sequence[Mapping[str, str]],
    matrices: Mapping[str, Arrays],
    clients: Mapping[str, Arrays],
) -> dict[str, Any]:
    """Return what the page draws of a table, per "row|column" (numbers from 0).

    Returns:
        {"sets": names, "curves": {cell: {seed: {"round": [..], set: [..]}}},
        "matrices": {cell: {"seed", "clients", "unit", "W", "order", "place", "group"}}, see `_matrix`,
        "clients": {cell: {seed: [percent]}}}.
        Rows and columns that the table lacks are left out.
    """
    cells = {
        SEPARATOR.join((row.label, column.label)): f"{i}|{j}"
        for i, row in enumerate(table.spec.rows)
        for j, column in enumerate(table.spec.columns)
    }
    sets = sorted({name for point in curves for name in point if name.startswith(PREFIX)})
    found: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    for point in curves:
        cell = cells.get(SEPARATOR.join((point["row"], point["column"])))
        if cell is None:
            continue
        run = found.setdefault(cell, {}).setdefault(
            point["seed"], {"round": [], **{name: [] for name in sets}}
        )
        run["round"].append(_number(point["round"]))
        for name in sets:
            run[name].append(_number(point.get(name, "")))
    drawn = {cell: _matrix(weights, seed) for cell, seed, weights in _placed(cells, matrices)}
    scores: dict[str, dict[str, list[float | None]]] = {}
    for cell, seed, values in _placed(cells, clients):
        scores.setdefault(cell, {})[seed] = [_number(value) for value in values]
    return {"sets": sets, "curves": found, "matrices": drawn, "clients": scores}


def _placed(cells: Mapping[str, str], arrays: Mapping[str, Arrays]) -> Iterator[tuple[str, str, Arrays]]:
    """Yield (cell, seed, array) of those that lie in a cell of the table."""
    for name, array in arrays.items():
        labels, _, seed = name.rpartition(SEPARATOR)
        if labels in cells:
            yield cells[labels], seed, array


def _matrix(weights: Arrays, seed: str) -> dict[str, Any]:
    """Return a matrix [N, N], of at most CLIENTS clients, as whole multiples of a unit.

    With an order in which those who weigh each other stand together, a place of each client in the plane (the two
    leading principal components of the rows), and its coalition: the clients whose rows weigh the same ones.
    """
    shown = np.asarray(weights[:CLIENTS, :CLIENTS], dtype=np.float64)
    known = np.nan_to_num(shown)
    left, values, _ = np.linalg.svd(known - known.mean(0), full_matrices=False)
    place = np.pad((left * values)[:, :2], ((0, 0), (0, max(0, 2 - len(values)))))
    _, group = np.unique(known > 0, axis=0, return_inverse=True)
    return {
        "seed": seed,
        "clients": len(weights),
        **_levels(shown),
        "order": cluster_order(known).tolist(),
        "place": [[_number(value) for value in point] for point in np.round(place, 6)],
        "group": np.ravel(group).tolist(),
    }


def packed(content: Any) -> str:
    """Return text, or anything JSON can hold, as base64 of gzip; the same content gives the same text."""
    text = (
        content if isinstance(content, str) else json.dumps(content, allow_nan=False, separators=(",", ":"))
    )
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def _levels(weights: Arrays) -> dict[str, Any]:
    """Return weights [N, N] as whole numbers, a tenth of the size of decimals; None where one is not finite."""
    finite = np.isfinite(weights)
    unit = float(np.abs(weights[finite]).max(initial=0.0)) / LEVELS or 1.0
    whole = np.rint(np.where(finite, weights, 0.0) / unit).astype(int).astype(object)
    whole[~finite] = None
    return {"unit": unit, "W": whole.tolist()}


def _number(value: Any) -> float | None:
    """Return a number rounded to what can be seen; None where there is no finite value."""
    if value in ("", None):
        return None
    number = float(value)
    if not math.isfinite(number):
        return None
    short = float(f"{number:.4g}")
    return int(short) if short.is_integer() else short
