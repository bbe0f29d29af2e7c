"""From a cell of a table and the user's wishes to the configuration of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from fedbench.config.compose import compose
from fedbench.core.errors import ConfigError
from fedbench.tables.parts import ColumnSpec, RowSpec
from fedbench.tables.scale import Scale
from fedbench.tables.spec import TableSpec


@dataclass(frozen=True)
class Wish:
    """What the user asked for besides the table."""

    scale: Scale
    seeds: tuple[int, ...] = ()  # none: 0, 1, ... as many as the scale or the table says
    substitute: str = ""  # data set in place of the table's own
    changed: tuple[str, ...] = ()  # overrides of every run that change results, as model=lenet5
    settings: tuple[str, ...] = ()  # overrides that do not: runs_dir, hardware, progress
    rows: tuple[str, ...] = ()  # labels of the rows to run; none: all
    columns: tuple[str, ...] = ()

    def wants(self, row: RowSpec, column: ColumnSpec) -> bool:
        """Whether the cell is to be run."""
        chosen = ((row.label, self.rows), (column.label, self.columns))
        return all(not labels or label in labels for label, labels in chosen)


def compose_cell(
    table: TableSpec, column: ColumnSpec, row: Sequence[str], wish: Wish
) -> tuple[list[str], dict[str, Any]]:
    """(overrides, plain config) of a cell: table, column, row, substitute, the user's changes, scale."""
    from omegaconf import OmegaConf

    overrides = [*table.base, *column.overrides, *row]
    if wish.substitute:
        chosen = [f"dataset={wish.substitute}", *column.substitute]
        overrides = [*_without(overrides, chosen), *chosen]
    overrides += [*wish.changed, *wish.settings]
    where = f"table {table.name}, {' '.join(overrides)}"
    try:
        config = compose(overrides)
        plain = cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except Exception as error:
        from fedbench.config.messages import one_line

        raise ConfigError(f"{where}: {one_line(error) or error}") from error
    own = {_key(text) for text in wish.changed}  # what the user says stands against the scale
    scaled = [text for text in wish.scale.overrides(plain) if _key(text) not in own]
    config.merge_with(OmegaConf.from_dotlist(scaled))
    plain = cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    return [*overrides, *scaled], plain


def _without(overrides: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """The overrides but for choices in, and options of, the groups in which `chosen` chooses anew."""
    groups = {key for text in chosen if "." not in (key := _key(text))}
    return [text for text in overrides if _key(text).partition(".")[0] not in groups]


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
