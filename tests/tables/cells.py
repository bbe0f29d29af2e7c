"""The cells of the published tables, and the run of each."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from fedbench.config import compose
from fedbench.runs.config import RunConfig, resolve
from fedbench.tables import spec
from fedbench.tables.spec import ColumnSpec, MetricSpec, RowSpec, TableSpec

load = functools.cache(spec.load)


def cells(table: TableSpec) -> Iterator[tuple[RowSpec, ColumnSpec, MetricSpec]]:
    for row in table.rows:
        for column in table.columns:
            for metric in table.metrics:
                yield row, column, metric


@functools.cache
def composed(overrides: tuple[str, ...]) -> RunConfig:
    return resolve(compose.compose(overrides))


def config(name: str, row: str, column: str) -> RunConfig:
    """What the cell of these labels runs."""
    table = load(name)
    (line,) = (line for line in table.rows if line.label == row)
    (place,) = (place for place in table.columns if place.label == column)
    return composed((*table.base, *place.overrides, *line.overrides, *place.own(row)))
