"""Filled tables made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedbench.tables import spec
from fedbench.tables.spec import Published
from fedbench.tables.store import Cell, Provenance, TableResult


def value(mean: float, std: float | None = None, decimals: int = 2, bound: str = "") -> Published:
    """A published value."""
    return Published("p", "T1", "d", "s", "m", "acc", "", mean, std, decimals, bound)


def filled(
    values: Mapping[str, Sequence[float]],
    published: Mapping[str, Published] | None = None,
    *,
    made: Provenance | None = None,
    column: str = "c",
    **changes: Any,
) -> TableResult:
    """A table of one column and one metric; `values` of each row over seeds 0, 1, ..."""
    content: dict[str, Any] = {
        "name": "toy",
        "title": "Toy & table",
        "paper": "p",
        "table": "T1",
        "metrics": [{"name": "acc"}],
        "rows": [{"label": row} for row in values],
        "columns": [{"label": column}],
    }
    metric = changes.get("metrics", content["metrics"])[0]["name"]
    cells = [
        Cell(row, column, metric, tuple(xs), tuple(range(len(xs))), published=(published or {}).get(row))
        for row, xs in values.items()
    ]
    return TableResult(spec.parse({**content, **changes}), tuple(cells), made or Provenance())
