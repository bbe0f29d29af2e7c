"""The published tables, and the run of each cell."""

from __future__ import annotations

import functools

from fedbench.config import compose
from fedbench.papers import spec
from fedbench.runs.config import RunConfig, resolve

load = functools.cache(spec.load_spec)


@functools.cache
def composed(overrides: tuple[str, ...]) -> RunConfig:
    return resolve(compose.compose(overrides))


def config(name: str, row: str, column: str) -> RunConfig:
    """What the cell of these labels runs."""
    table = load(name)
    (line,) = (line for line in table.rows if line.label == row)
    (place,) = (place for place in table.columns if place.label == column)
    return composed((*table.base, *place.overrides, *line.overrides, *place.own(row)))
