"""A table as data: conf/table/NAME.yaml says which runs fill which cells, and which published values they mirror."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import product
from typing import Any, TypeVar, cast

from omegaconf import OmegaConf

from fedbench.cli.list import Listing
from fedbench.config import groups
from fedbench.config.fields import typed
from fedbench.core.errors import ConfigError, unknown
from fedbench.papers.published import ACCURACY, Published, find_published


@dataclass(frozen=True)
class MetricSpec:
    """One number of a cell: how it is measured on a finished run (fedbench.papers.measures)."""

    name: str  # as in published.csv: acc, ipr, rsd, acc_global, ...
    label: str = "Acc %"
    better: str = "higher"  # higher | lower | neither: the better end, which is bold and ranks first
    decimals: int = 2
    timing: bool = False  # seconds: they depend on the machine, so they get no verdict
    measure: dict[str, Any] = field(default_factory=lambda: {"name": "result"})  # the protocol's accuracy

    def measured(self, row: RowSpec, column: ColumnSpec) -> dict[str, Any]:
        """Return its measure in a cell: `measure` with the changes of the column and the row."""
        own = [line.measures.get(self.name) or {} for line in (column, row)]
        return {**self.measure, **own[0], **own[1]}


@dataclass(frozen=True)
class RowSpec:
    """A row: usually a method."""

    label: str
    overrides: tuple[str, ...] = ()  # of the run's config, after the column's
    published: dict[str, str] = field(default_factory=dict)  # filter; method: the label by default
    baseline: tuple[str, ...] = ()  # overrides of the baseline run of a ratio, instead of `overrides`
    study: str = ""  # what fills the cell instead of a training run (fedbench.papers.studies)
    measures: dict[str, Any] = field(default_factory=dict)  # metric -> this row's own measure
    # Why its verdicts are counted separately: its setting was chosen after an outcome. A mapping says it by override of
    # what is left open: the choice decides something there alone.
    exploratory: Any = None


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
    measures: dict[str, Any] = field(default_factory=dict)  # metric -> this column's own measure
    rows: dict[str, Any] = field(default_factory=dict)  # label of rows, or a glob -> their additional overrides
    exploratory: Any = None  # as a row's
    # Label of rows, or a glob -> why their inputs would not be the paper's here: such a cell is not run.
    unlike: dict[str, str] = field(default_factory=dict)
    unlike_with: tuple[str, ...] = ()  # the keys, or dataset, with whose change alone that is so; none: always
    mean: tuple[str, ...] = ()  # labels of other columns; its values are their means, seed by seed, and it has no runs

    def own(self, row: str) -> tuple[str, ...]:
        """Return the overrides that only the row labelled `row` has in this column (after the row's)."""
        return tuple(text for names, texts in self.rows.items() if fnmatchcase(row, names) for text in texts)


def exploratory_reasons(mark: object) -> dict[str, Any]:
    """Return override -> reason of a table's, row's or column's `exploratory`; the override "" stands for always."""
    if mark is None:
        return {}
    return {str(key): reason for key, reason in mark.items()} if isinstance(mark, Mapping) else {"": mark}


@dataclass(frozen=True)
class Finding:
    """A finding in words, printed only below a table with that setting."""

    text: str
    changed: tuple[str, ...] = ()  # overrides of the command line with which it holds; none: the paper's setting


LineT = TypeVar("LineT", RowSpec, ColumnSpec)
PARTS: dict[str, type[Any]] = {"metrics": MetricSpec, "rows": RowSpec, "columns": ColumnSpec}


@dataclass(frozen=True)
class TableSpec:
    """A table of a paper."""

    name: str
    title: str
    paper: str  # as in published.csv; "" for a table of our own without published values
    table: str  # T1, ...
    metrics: tuple[MetricSpec, ...]
    rows: tuple[RowSpec, ...]
    columns: tuple[ColumnSpec, ...]
    base: tuple[str, ...] = ()  # overrides of every run, before the column's and the row's
    seeds: int = 5
    published_seeds: int = 1  # seeds behind a published mean, as stated in the paper
    published_over_k: bool = False  # true: published deviations divide by the seeds, not by one less
    clients: int = 0  # the paper's number of clients, if it prints shares of them; else 0
    headline: str = ""  # label of the paper's best row by its claim
    # Keys of a run that the paper does not settle, or overrides that do what its authors did: they void no verdict.
    left_open: tuple[str, ...] = ()
    varies: str = ""  # the table whose published values this one compares with runs at other settings
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # name -> labels or globs of rows judged jointly
    exploratory: Any = None  # as a row's, of all rows
    notes: tuple[str, ...] = ()  # notes that hold at every scale: settings, open points of the paper
    findings: tuple[Finding, ...] = ()

    def places(self) -> Iterator[tuple[RowSpec, ColumnSpec, MetricSpec]]:
        """Yield the place of every cell, row by row."""
        return product(self.rows, self.columns, self.metrics)

    def datasets(self, column: ColumnSpec) -> list[str]:
        """Return the data sets that the overrides of a column name; the last one is run."""
        return [text.partition("=")[2] for text in (*self.base, *column.overrides) if text.startswith("dataset=")]

    def metric(self, name: str) -> MetricSpec:
        """Return the metric of this name. Raises KeyError if there is none."""
        return {metric.name: metric for metric in self.metrics}[name]

    @cached_property
    def parts(self) -> frozenset[str]:
        """Labels of the columns of which another is the mean."""
        return frozenset(label for column in self.columns for label in column.mean)

    def published(self, row: RowSpec, column: ColumnSpec, metric: MetricSpec) -> Published | None:
        """Return what the paper prints in this cell; None if nothing."""
        if column.label in self.parts:
            return None
        where = {"method": row.label, "metric": metric.name, **column.published, **row.published}
        settings = (line.published.get("setting", "") for line in (column, row))
        return find_published(self.paper, self.table, {**where, "setting": " ".join(settings).strip()})

    def only(self, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> TableSpec:
        """Return the table with only the rows and columns whose label, or number from 1, is given (nothing: all).

        With a column that is a mean come those that it is of.

        Raises:
            UnknownName: no such row or column.
        """
        chosen, places = _chosen("row", self.rows, rows), _chosen("column", self.columns, columns)
        labels = {label for column in places for label in (column.label, *column.mean)}
        return dataclasses.replace(
            self,
            rows=chosen,
            columns=tuple(column for column in self.columns if column.label in labels),
            headline=self.headline if self.headline in {row.label for row in chosen} else "",
        )


def todo(name: str) -> int:
    """Return how many TODO are left in conf/table/`name`.yaml, as `new` writes them; 0 without the file."""
    file = groups.find("table", name)
    return file.read_text(encoding="utf-8").count("TODO") if file else 0


def content_of(group: str, name: str) -> dict[str, Any]:
    """Return the plain content of conf/`group`/`name`.yaml, a table's or what is declared beside them.

    Raises:
        UnknownName: there is no such file.
        ConfigError: it has the name of another.
    """
    file = groups.file_of(group, name)
    content = cast("dict[str, Any]", OmegaConf.to_container(groups.load_yaml(file), resolve=True))
    if (said := content.get("name", name)) != name:
        raise ConfigError(f"{file}: its name is {said!r}, so it would overwrite the results of {said}; write {name}")
    return content


def load_spec(name: str) -> TableSpec:
    """Return the table in conf/table/`name`.yaml.

    Raises:
        UnknownName: no such table, key or row.
        ConfigError: a value of the wrong type, or a metric without a definition.
    """
    content = content_of("table", name)
    spec = parse_spec(content)
    for metric, entry in zip(spec.metrics, content["metrics"], strict=True):
        told = entry.get("measure") or any(
            all(metric.name in line.measures for line in lines) for lines in (spec.columns, spec.rows)
        )
        if metric.name not in ACCURACY and not told:
            raise ConfigError(
                f"table '{name}': metric '{metric.name}' has no measure and would show the accuracy; add measure: "
                f"{{name: result, column: {metric.name}}}, or another"
            )
    labels = [row.label for row in spec.rows]
    for group, patterns in spec.groups.items():
        for pattern in patterns:
            if not any(fnmatchcase(label, pattern) for label in labels):
                raise unknown(f"row in group '{group}' of table '{name}'", pattern, labels)
    return spec


def parse_spec(content: Mapping[str, Any]) -> TableSpec:
    """Return a table from the plain content of its YAML; metrics, rows and columns are lists of mappings.

    Raises:
        UnknownName: an unknown key, metric or headline.
        ConfigError: an impossible value, or an exploratory mark without a reason.
    """
    where = f"table '{content.get('name')}'"
    made: dict[str, Any] = {key: _parts(content, key, where) for key in PARTS}
    for key in ("base", "left_open", "notes", "findings"):
        given = content.get(key) or []
        if isinstance(given, str) or (key != "findings" and not all(isinstance(each, str) for each in given)):
            raise ConfigError(f"{where}: '{key}' must be a list of texts; put a text with ': ' in quotes")
    findings = ({"text": each} if isinstance(each, str) else each for each in content.get("findings") or ())
    made["findings"] = tuple(typed(Finding, each, f"{where}, findings") for each in findings)
    if not isinstance(given := content.get("groups") or {}, Mapping):
        raise ConfigError(f"{where}: 'groups' must be a mapping")
    if bad := [name for name, rows in given.items() if not isinstance(rows, list) or not rows]:
        raise ConfigError(f"{where}: group '{bad[0]}' must be a list of rows")
    made["groups"] = {name: tuple(map(str, rows)) for name, rows in given.items()}
    _check_reasons(content, where)
    for name, least in (("published_seeds", 1), ("clients", 0)):
        if type(given := content.get(name, least)) is not int or given < least:
            raise ConfigError(f"{where}: {name} is {given}; it must be a whole number of at least {least}")
    # OmegaConf, which checks the rest, would make mappings of the parts.
    rest = {key: value for key, value in content.items() if key not in made and value is not None}
    spec = dataclasses.replace(typed(TableSpec, {**rest, **dict.fromkeys(PARTS, ())}, where), **made)
    with_runs = [column.label for column in spec.columns if not column.mean]
    for label in spec.parts.difference(with_runs):
        raise unknown(f"column with runs of {where}", label, with_runs)
    if spec.headline and spec.headline not in {row.label for row in spec.rows}:
        raise unknown(f"headline of {where}", spec.headline, [row.label for row in spec.rows])
    return spec


def _parts(content: Mapping[str, Any], key: str, where: str) -> tuple[Any, ...]:
    """Return the metrics, rows or columns."""
    entries = content.get(key) or ()
    if not entries:
        raise ConfigError(f"{where}: '{key}' must not be empty")
    found = tuple(typed(PARTS[key], entry, f"{where}, {key} {i}") for i, entry in enumerate(entries, 1))
    labels = [part.name if isinstance(part, MetricSpec) else part.label for part in found]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"{where}: two of its {key} have the same name")
    for entry, label in zip(entries, labels, strict=True):
        _check_reasons(entry, f"{where}: {key.removesuffix('s')} '{label}'")
    return found


def _check_reasons(line: Mapping[str, Any], where: str) -> None:
    for override, reason in exploratory_reasons(line.get("exploratory")).items():
        if not isinstance(reason, str) or not reason.strip():
            place = f"{where}: '{override}'" if override else where
            raise ConfigError(f"{place} is exploratory without a reason; say which outcome was seen before the choice")


def _chosen(kind: str, lines: tuple[LineT, ...], wanted: Sequence[str]) -> tuple[LineT, ...]:
    labels: list[str] = [line.label for line in lines]
    for name in wanted:
        if name not in labels and not (name.isdigit() and 1 <= int(name) <= len(lines)):
            raise unknown(kind, name, labels)
    numbers = {*wanted} - {*labels}  # a label goes before a number
    return tuple(each for i, each in enumerate(lines, 1) if not wanted or each.label in wanted or str(i) in numbers)


def listed_tables() -> Listing:
    """List the tables, with what they publish and which of their data are here."""
    rows = []
    for name in groups.names("table"):
        table = load_spec(name)
        published = sum(table.published(*place) is not None for place in table.places())
        used = dict.fromkeys(name for column in table.columns for name in table.datasets(column))
        ready = [d for d in used if groups.registry("dataset").build(groups.plain_option("dataset", d)).state().ready]
        rows.append(
            {
                "table": name,
                "content": table.title,
                "rows × columns": f"{len(table.rows)} × {len(table.columns)}",
                "published values": str(published),
                "seeds": str(table.seeds),
                "data": ", ".join(used),
                "ready": ", ".join(ready) or "-",
            }
        )
    return Listing("Tables: make reproduce-NAME, - for _", rows, local=("ready",))
