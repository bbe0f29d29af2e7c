"""A table as data: conf/table/NAME.yaml says which runs fill which cells, and which published values they mirror."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar, cast

from fedbench.config import groups
from fedbench.config.registry import typed
from fedbench.core.errors import ConfigError, unknown
from fedbench.tables import margins
from fedbench.tables.margins import Margin
from fedbench.tables.parts import ColumnSpec, Finding, MetricSpec, RowSpec
from fedbench.tables.published import Published, find

LineT = TypeVar("LineT", RowSpec, ColumnSpec)
PARTS: dict[str, type[Any]] = {"metrics": MetricSpec, "rows": RowSpec, "columns": ColumnSpec}


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
    # Keys of a run that the paper does not settle, or overrides that do what its authors did: they void no verdict.
    left_open: tuple[str, ...] = ()
    varies: str = ""  # the table whose published values stand here too, beside runs at other settings
    margins: dict[str, Margin] = field(default_factory=dict)  # metric -> in place of the default
    groups: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # name -> labels or globs of rows judged jointly
    exploratory: dict[str, str] = field(
        default_factory=dict
    )  # override of what is left open -> why it was chosen
    notes: tuple[str, ...] = ()  # what holds at every scale: settings, what the paper leaves open
    findings: tuple[Finding, ...] = ()

    def metric(self, name: str) -> MetricSpec:
        """The metric of this name. Raises KeyError if there is none."""
        return {metric.name: metric for metric in self.metrics}[name]

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
    return sorted(file.stem for file in (groups.conf_dir() / "table").glob("*.yaml"))


def load(name: str) -> TableSpec:
    """The table in conf/table/`name`.yaml.

    Raises:
        UnknownName: no such table, a key that does not exist, or a group of rows that are not there.
        ConfigError: a value of the wrong type.
    """
    from omegaconf import OmegaConf

    if name not in names():
        raise unknown("table", name, names())
    path = Path(groups.conf_dir()) / "table" / f"{name}.yaml"
    spec = parse(cast("dict[str, Any]", OmegaConf.to_container(groups.load_yaml(path), resolve=True)))
    labels = [row.label for row in spec.rows]
    for group, patterns in spec.groups.items():
        for pattern in patterns:
            if not any(fnmatchcase(label, pattern) for label in labels):
                raise unknown(f"row in group '{group}' of table '{name}'", pattern, labels)
    return spec


def parse(content: Mapping[str, Any]) -> TableSpec:
    """A table from the plain content of its YAML; metrics, rows and columns are lists of mappings.

    Raises:
        UnknownName: a key, metric or headline that there is none of.
        ConfigError: a value that cannot be, or an exploratory mark or a margin without a reason.
    """
    where = f"table '{content.get('name')}'"
    rest = {key: value for key, value in content.items() if key not in PARTS}
    fields = {f.name for f in dataclasses.fields(TableSpec)}
    for key in rest:
        if key not in fields:
            raise unknown(f"key of {where}", str(key), fields)
    parts: dict[str, Any] = {key: _parts(content, key, where) for key in PARTS}
    for key in ("base", "left_open", "notes", "findings"):
        if isinstance(rest.get(key), str):
            raise ConfigError(f"{where}: '{key}' must be a list")
        rest[key] = tuple(rest.get(key) or ())
    findings = ({"text": each} if isinstance(each, str) else each for each in rest["findings"])
    rest["findings"] = tuple(typed(Finding, each, f"{where}, findings") for each in findings)
    names = [metric.name for metric in parts["metrics"]]
    for key in ("margins", "groups", "exploratory"):
        rest[key] = rest.get(key) or {}
        if not isinstance(rest[key], Mapping):
            raise ConfigError(f"{where}: '{key}' must be a mapping")
    rest["margins"] = margins.parse(rest["margins"], names, where)
    rest["groups"] = {name: _group(name, rows, where) for name, rows in rest["groups"].items()}
    rest["exploratory"] = dict(rest["exploratory"])
    for override, reason in rest["exploratory"].items():
        _reason(reason, f"{where}: '{override}'")
    spec = TableSpec(**rest, **parts)
    if type(spec.published_seeds) is not int or spec.published_seeds < 1:
        raise ConfigError(
            f"{where}: published_seeds is {spec.published_seeds}; it must be a whole number of at least 1"
        )
    if spec.headline and spec.headline not in {row.label for row in spec.rows}:
        raise unknown(f"headline of {where}", spec.headline, [row.label for row in spec.rows])
    return spec


def _parts(content: Mapping[str, Any], key: str, where: str) -> tuple[Any, ...]:
    """The metrics, rows or columns."""
    entries = content.get(key) or ()
    if not entries:
        raise ConfigError(f"{where}: '{key}' must not be empty")
    found = tuple(typed(PARTS[key], entry, f"{where}, {key} {i}") for i, entry in enumerate(entries, 1))
    labels = [part.name if isinstance(part, MetricSpec) else part.label for part in found]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"{where}: two of its {key} have the same name")
    for entry, label in zip(entries, labels, strict=True):
        if (reason := entry.get("exploratory")) is not None:
            _reason(reason, f"{where}: {key.removesuffix('s')} '{label}'")
    return found


def _group(name: str, patterns: object, where: str) -> tuple[str, ...]:
    if not isinstance(patterns, list) or not patterns:
        raise ConfigError(f"{where}: group '{name}' must be a list of rows")
    return tuple(map(str, patterns))


def _reason(given: object, where: str) -> None:
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(
            f"{where} is marked exploratory without a reason; say what was seen before it was chosen"
        )


def _chosen(kind: str, lines: tuple[LineT, ...], wanted: Sequence[str]) -> tuple[LineT, ...]:
    labels = [line.label for line in lines]
    for name in wanted:
        if name not in labels and not (name.isdigit() and 1 <= int(name) <= len(lines)):
            raise unknown(kind, name, labels)
    if not wanted:
        return lines
    return tuple(line for i, line in enumerate(lines, 1) if line.label in wanted or str(i) in wanted)
