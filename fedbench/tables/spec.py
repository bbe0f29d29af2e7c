"""A table as data: conf/table/NAME.yaml says which runs fill which cells, and which published values they mirror."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar, cast

from fedbench.config import compose, yaml_files
from fedbench.config.registry import typed
from fedbench.core.errors import ConfigError, unknown
from fedbench.tables.published import Published, find

LineT = TypeVar("LineT", "RowSpec", "ColumnSpec")


@dataclass(frozen=True)
class MetricSpec:
    """One number of a cell: how it is measured on a finished run (fedbench.tables.measures)."""

    name: str  # as in published.csv: acc, ipr, rsd, acc_global, ...
    label: str = "Acc %"
    better: str = "higher"  # higher | lower | neither: which end is printed bold and ranks first
    decimals: int = 2
    timing: bool = False  # seconds: they depend on the machine, so they get no verdict
    measure: dict[str, Any] = field(default_factory=lambda: {"name": "result"})  # the protocol's accuracy

    def measured(self, row: RowSpec, column: ColumnSpec) -> dict[str, Any]:
        """How it is measured in a cell: `measure`, and what the column's and the row's own say otherwise."""
        own = [line.measures.get(self.name) or {} for line in (column, row)]
        return {**self.measure, **own[0], **own[1]}


@dataclass(frozen=True)
class RowSpec:
    """A row: usually a method."""

    label: str
    overrides: tuple[str, ...] = ()  # of the run's config, after the column's
    published: dict[str, str] = field(default_factory=dict)  # filter; method: the label by default
    baseline: tuple[str, ...] = ()  # overrides instead of `overrides`: the run that a ratio is taken to
    study: str = ""  # what fills the cell instead of a training run (fedbench.tables.studies)
    measures: dict[str, Any] = field(default_factory=dict)  # metric -> a measure of this row's own
    unsupported: str = ""  # why the row cannot be run
    note: str = ""


@dataclass(frozen=True)
class ColumnSpec:
    """A column: usually a data set and a partition."""

    label: str
    group: str = ""  # heading over several columns
    overrides: tuple[str, ...] = ()
    published: dict[str, str] = field(default_factory=dict)  # filter: dataset, partition, setting
    # Further overrides when another data set takes the place of the column's; a choice among them, as model=lenet5,
    # drops the earlier options of its group.
    substitute: tuple[str, ...] = ()
    measures: dict[str, Any] = field(default_factory=dict)  # metric -> a measure of this column's own
    rows: dict[str, Any] = field(default_factory=dict)  # label of rows, or a glob -> further overrides there
    unsupported: str = ""
    note: str = ""

    def own(self, row: str) -> tuple[str, ...]:
        """The overrides that only the row labelled `row` has in this column (after the row's)."""
        return tuple(text for names, texts in self.rows.items() if fnmatchcase(row, names) for text in texts)


@dataclass(frozen=True)
class TableSpec:
    """A table of a paper."""

    name: str
    title: str
    paper: str  # as in published.csv; "" for a table of our own, which mirrors nothing
    table: str  # T1, ...
    metrics: tuple[MetricSpec, ...]
    rows: tuple[RowSpec, ...]
    columns: tuple[ColumnSpec, ...]
    base: tuple[str, ...] = ()  # overrides of every run, before the column's and the row's
    seeds: int = 5
    published_seeds: int = 1  # seeds behind a published mean, as far as the paper says
    headline: str = ""  # label of the row that the paper claims to be best
    # Keys of a run that the paper does not settle: changing them voids no verdict.
    left_open: tuple[str, ...] = ()
    varies: str = ""  # the table whose published values stand here too, beside runs at other settings
    notes: tuple[str, ...] = ()

    def published(self, row: RowSpec, column: ColumnSpec, metric: MetricSpec) -> Published | None:
        """What the paper prints in this cell; None if nothing."""
        where = {"method": row.label, "metric": metric.name, **column.published, **row.published}
        settings = (line.published.get("setting", "") for line in (column, row))
        return find(self.paper, self.table, {**where, "setting": " ".join(settings).strip()})

    def only(self, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> TableSpec:
        """The table with only the rows and columns whose label, or number from 1, is given (nothing: all).

        Raises:
            UnknownName: no such row or column.
        """
        chosen = _chosen("row", self.rows, rows)
        return dataclasses.replace(
            self,
            rows=chosen,
            columns=_chosen("column", self.columns, columns),
            headline=self.headline if self.headline in {row.label for row in chosen} else "",
        )


def names() -> list[str]:
    """Every table that has a YAML."""
    return sorted(file.stem for file in (compose.conf_dir() / "table").glob("*.yaml"))


def load(name: str) -> TableSpec:
    """The table in conf/table/`name`.yaml.

    Raises:
        UnknownName: no such table, or a key that does not exist.
        ConfigError: a value of the wrong type.
    """
    from omegaconf import OmegaConf

    if name not in names():
        raise unknown("table", name, names())
    path = Path(compose.conf_dir()) / "table" / f"{name}.yaml"
    return parse(cast("dict[str, Any]", OmegaConf.to_container(yaml_files.load(path), resolve=True)))


def parse(content: Mapping[str, Any]) -> TableSpec:
    """A table from the plain content of its YAML; metrics, rows and columns are lists of mappings."""
    where = f"table '{content.get('name')}'"
    parts: dict[str, Any] = {}
    for key, cls in (("metrics", MetricSpec), ("rows", RowSpec), ("columns", ColumnSpec)):
        entries = content.get(key) or ()
        if not entries:
            raise ConfigError(f"{where}: '{key}' must not be empty")
        parts[key] = tuple(typed(cls, entry, f"{where}, {key} {i}") for i, entry in enumerate(entries, 1))
        labels = [getattr(part, "label" if key != "metrics" else "name") for part in parts[key]]
        if len(set(labels)) < len(labels):
            raise ConfigError(f"{where}: two of its {key} have the same name")
    rest = {key: value for key, value in content.items() if key not in parts}
    fields = {f.name for f in dataclasses.fields(TableSpec)}
    for key in rest:
        if key not in fields:
            raise unknown(f"key of {where}", str(key), fields)
    for key in ("base", "left_open", "notes"):
        if isinstance(rest.get(key), str):
            raise ConfigError(f"{where}: '{key}' must be a list")
    lists: dict[str, Any] = {key: tuple(rest[key]) for key in ("base", "left_open", "notes") if key in rest}
    spec = TableSpec(**{**rest, **lists}, **parts)
    if spec.headline and spec.headline not in {row.label for row in spec.rows}:
        raise unknown(f"headline of {where}", spec.headline, [row.label for row in spec.rows])
    return spec


def _chosen(kind: str, lines: tuple[LineT, ...], wanted: Sequence[str]) -> tuple[LineT, ...]:
    labels = [line.label for line in lines]
    for name in wanted:
        if name not in labels and not (name.isdigit() and 1 <= int(name) <= len(lines)):
            raise unknown(kind, name, labels)
    if not wanted:
        return lines
    return tuple(line for i, line in enumerate(lines, 1) if line.label in wanted or str(i) in wanted)
