"""A table as data: conf/table/NAME.yaml says which runs fill which cells, and which published values they mirror.

Beside it: margins, published values, scales, and what a command line selects.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any, TypeVar, cast

from fedbench.config import groups, schema
from fedbench.config.compose import compose, is_setting, key_of
from fedbench.config.fields import positive, typed
from fedbench.core.errors import ConfigError, Damaged, unknown

# How far ours may be from a published value and still agree for practical purposes, in the metric's own unit.
#
# Fixed before any number is looked at. By default one point of accuracy or of RSD, one client of all for IPR, and ten
# per cent of the published value for ratios, times and counts. A table's YAML may set another margin for a metric,
# with the reason: `margins: {acc: {value: 2, why: "accuracy is of 50 test images"}}`.


@dataclass(frozen=True)
class Margin:
    """A margin of the table's own."""

    value: float
    why: str = ""
    relative: bool = False  # `value` is in per cent of the published mean


POINT = Margin(1.0)  # accuracy, RSD
TENTH = Margin(10.0, relative=True)


def width(metric: str, own: Mapping[str, Margin], published: float, clients: int | None) -> float | None:
    """Return the margin around a published value; None if it cannot be told (IPR without N, a share of 0).

    `own` holds the table's margins by metric, `published` is the mean, `clients` the number of clients.
    """
    if metric == "ipr" and metric not in own:
        return 100 / clients if clients else None
    margin = own.get(metric) or default(metric)
    return (abs(published) * margin.value / 100 or None) if margin.relative else margin.value


def default(metric: str) -> Margin:
    """Return the margin of a metric, other than IPR, for which a table sets none."""
    return POINT if metric == "rsd" or "acc" in metric.split("_") else TENTH


def parse_margins(content: Mapping[str, Any], metrics: list[str], where: str) -> dict[str, Margin]:
    """Return the margins of a YAML by metric.

    Raises:
        UnknownName: of a metric that the table lacks.
        ConfigError: a margin that is no positive number, or one without a reason.
    """
    found = {}
    for metric, entry in content.items():
        if metric not in metrics:
            raise unknown(f"metric in the margins of {where}", str(metric), metrics)
        margin = typed(Margin, entry, f"{where}, margin of {metric}")
        if not 0 < margin.value < math.inf:
            raise ConfigError(f"{where}: the margin of {metric} is {margin.value:g}; it must be above 0, and finite")
        if not margin.why.strip():
            raise ConfigError(f"{where}: say why the margin of {metric} is {margin.value:g} (margins.{metric}.why)")
        found[metric] = margin
    return found


@dataclass(frozen=True)
class MetricSpec:
    """One number of a cell: how it is measured on a finished run (fedbench.papers.measures)."""

    name: str  # as in published.csv: acc, ipr, rsd, acc_global, ...
    label: str = "Acc %"
    better: str = "higher"  # higher | lower | neither: which end is printed bold and ranks first
    decimals: int = 2
    timing: bool = False  # seconds: they depend on the machine, so they get no verdict
    measure: dict[str, Any] = field(default_factory=lambda: {"name": "result"})  # the protocol's accuracy

    def measured(self, row: RowSpec, column: ColumnSpec) -> dict[str, Any]:
        """Return how it is measured in a cell: `measure`, and what the column's and the row's own say otherwise."""
        own = [line.measures.get(self.name) or {} for line in (column, row)]
        return {**self.measure, **own[0], **own[1]}


@dataclass(frozen=True)
class RowSpec:
    """A row: usually a method."""

    label: str
    overrides: tuple[str, ...] = ()  # of the run's config, after the column's
    published: dict[str, str] = field(default_factory=dict)  # filter; method: the label by default
    baseline: tuple[str, ...] = ()  # overrides instead of `overrides`: the run that a ratio is taken to
    study: str = ""  # what fills the cell instead of a training run (fedbench.papers.studies)
    measures: dict[str, Any] = field(default_factory=dict)  # metric -> a measure of this row's own
    # Why its verdicts are counted apart: its setting was chosen after seeing outcomes.
    exploratory: str | None = None
    exploratory_with: tuple[str, ...] = ()  # the overrides with which alone that choice decides something; none: always


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
    exploratory: str | None = None  # as a row's
    # Label of rows, or a glob -> why their inputs would not be the paper's here: such a cell is not run.
    unlike: dict[str, str] = field(default_factory=dict)
    unlike_with: tuple[str, ...] = ()  # the keys, or dataset, with whose change alone that is so; none: always

    def own(self, row: str) -> tuple[str, ...]:
        """Return the overrides that only the row labelled `row` has in this column (after the row's)."""
        return tuple(text for names, texts in self.rows.items() if fnmatchcase(row, names) for text in texts)

    def unlike_paper(self, row: str, selection: Selection) -> str:
        """Return why the cell of the row labelled `row` would not have the paper's inputs; "" if it would."""
        changed = {key_of(text) for text in selection.changed} | ({"dataset"} if selection.substitute else set())
        if self.unlike_with and changed.isdisjoint(self.unlike_with):
            return ""
        return next((why for names, why in self.unlike.items() if fnmatchcase(row, names)), "")


@dataclass(frozen=True)
class Finding:
    """What came out, in words; said only below a table that was made so."""

    text: str
    changed: tuple[str, ...] = ()  # overrides of the command line with which it holds; none: the paper's setting


# The published values, 984 of them, as the papers print them (published.csv beside this file).
#
# Columns: paper, table, dataset, partition, method, metric, mean, std (empty: none printed), and setting (what else a
# value depends on, as "lambda=0.05" or "model=simple_cnn baseline=FedAvg"; empty: nothing).

ACCURACY = ("acc", "score")  # metrics that are the protocol's accuracy where nothing else is said
FILE = Path(__file__).with_name("published.csv")
FILTERS = ("dataset", "partition", "method", "metric", "setting")


@dataclass(frozen=True)
class Published:
    """One value of a paper's table; percent for accuracies, IPR and RSD."""

    paper: str
    table: str
    dataset: str
    partition: str
    method: str
    metric: str
    setting: str
    mean: float
    std: float | None
    decimals: int  # digits printed after the point
    bound: str = ""  # ">": the paper prints only that it is more than `mean`

    @property
    def text(self) -> str:
        """The value as printed: mean, and ± std where there is one."""
        spread = "" if self.std is None else f" ± {self.std:.{self.decimals}f}"
        return f"{self.bound}{self.mean:.{self.decimals}f}{spread}"


@functools.cache
def published() -> tuple[Published, ...]:
    """Return all published values, in the order of the file."""
    return read(FILE)


def read(path: Path) -> tuple[Published, ...]:
    """Return the values in a file of this form.

    Raises:
        Damaged: it is no such file; says which line.
    """
    line = 1
    try:
        rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline=""), strict=True)
        found = []
        for row in rows:
            line = rows.line_num
            found.append(_value(row))
    except (ValueError, LookupError, TypeError, AttributeError, csv.Error) as error:
        raise Damaged(
            f"{path} is damaged in line {line}; bring it back: git restore, or install fedbench again"
        ) from error
    return tuple(found)


def find(paper: str, table: str, where: Mapping[str, str]) -> Published | None:
    """Return the value of `paper`'s `table` that agrees with `where` in dataset, partition, method, metric and setting.

    A setting is compared as a set of words; `where` without one asks for values that have none.

    Returns:
        None if the table has no such value (the papers leave cells blank).

    Raises:
        ConfigError: several values agree.
    """
    wanted = {key: where[key] for key in FILTERS if key in where and key != "setting"}
    words = set(where.get("setting", "").split())
    found = [
        value
        for value in published()
        if (value.paper, value.table) == (paper, table)
        and all(getattr(value, key) == text for key, text in wanted.items())
        and set(value.setting.split()) == words
    ]
    if len(found) > 1:
        raise ConfigError(f"{paper} {table}: {dict(where)} means {len(found)} published values, not one")
    return found[0] if found else None


def _value(row: Mapping[str, str]) -> Published:
    number = row["mean"].removeprefix(">")
    if not all(math.isfinite(float(text or 0)) for text in (number, row["std"])):
        raise ValueError("a value that is not finite")
    names = ("paper", "table", "dataset", "partition", "method", "metric", "setting")
    return Published(
        **{name: row[name] for name in names},
        mean=float(number),
        std=float(row["std"]) if row["std"] else None,
        decimals=max(0, -int(Decimal(number).as_tuple().exponent)),
        bound=">" if number != row["mean"] else "",
    )


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
    published_over_k: bool = False  # published deviations are over the seeds, not over one less
    clients: int = 0  # of the paper, where it prints shares of them; 0: it does not
    headline: str = ""  # label of the row that the paper claims to be best
    # Keys of a run that the paper does not settle, or overrides that do what its authors did: they void no verdict.
    left_open: tuple[str, ...] = ()
    varies: str = ""  # the table whose published values stand here too, beside runs at other settings
    margins: dict[str, Margin] = field(default_factory=dict)  # metric -> in place of the default
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # name -> labels or globs of rows judged jointly
    exploratory: dict[str, str] = field(default_factory=dict)  # override of what is left open -> why it was chosen
    notes: tuple[str, ...] = ()  # what holds at every scale: settings, what the paper leaves open
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

    def published(self, row: RowSpec, column: ColumnSpec, metric: MetricSpec) -> Published | None:
        """Return what the paper prints in this cell; None if nothing."""
        where = {"method": row.label, "metric": metric.name, **column.published, **row.published}
        settings = (line.published.get("setting", "") for line in (column, row))
        return find(self.paper, self.table, {**where, "setting": " ".join(settings).strip()})

    def only(self, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> TableSpec:
        """Return the table with only the rows and columns whose label, or number from 1, is given (nothing: all).

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
    from omegaconf import OmegaConf

    file = groups.file_of(group, name)
    content = cast("dict[str, Any]", OmegaConf.to_container(groups.load_yaml(file), resolve=True))
    if (said := content.get("name", name)) != name:
        raise ConfigError(
            f"{file}: its name is {said!r}, so its results would go where those of {said} are; write {name}"
        )
    return content


def load(name: str) -> TableSpec:
    """Return the table in conf/table/`name`.yaml.

    Raises:
        UnknownName: no such table, a key that does not exist, or a group of rows that are not there.
        ConfigError: a value of the wrong type, or a metric of which nothing says what it is.
    """
    content = content_of("table", name)
    spec = parse(content)
    for metric, entry in zip(spec.metrics, content["metrics"], strict=True):
        told = entry.get("measure") or any(
            all(metric.name in line.measures for line in lines) for lines in (spec.columns, spec.rows)
        )
        if metric.name not in ACCURACY and not told:
            raise ConfigError(
                f"table '{name}': metric '{metric.name}' says no measure, and would be the accuracy; add measure: "
                f"{{name: result, column: {metric.name}}}, or what else it is"
            )
    labels = [row.label for row in spec.rows]
    for group, patterns in spec.groups.items():
        for pattern in patterns:
            if not any(fnmatchcase(label, pattern) for label in labels):
                raise unknown(f"row in group '{group}' of table '{name}'", pattern, labels)
    return spec


def parse(content: Mapping[str, Any]) -> TableSpec:
    """Return a table from the plain content of its YAML; metrics, rows and columns are lists of mappings.

    Raises:
        UnknownName: a key, metric or headline that there is none of.
        ConfigError: a value that cannot be, or an exploratory mark or a margin without a reason.
    """
    where = f"table '{content.get('name')}'"
    made: dict[str, Any] = {key: _parts(content, key, where) for key in PARTS}
    for key in ("base", "left_open", "notes", "findings"):
        if isinstance(content.get(key), str):
            raise ConfigError(f"{where}: '{key}' must be a list")
    findings = ({"text": each} if isinstance(each, str) else each for each in content.get("findings") or ())
    made["findings"] = tuple(typed(Finding, each, f"{where}, findings") for each in findings)
    mappings = {key: content.get(key) or {} for key in ("margins", "groups", "exploratory")}
    for key, given in mappings.items():
        if not isinstance(given, Mapping):
            raise ConfigError(f"{where}: '{key}' must be a mapping")
    made["margins"] = parse_margins(mappings["margins"], [metric.name for metric in made["metrics"]], where)
    made["groups"] = {name: _group(name, rows, where) for name, rows in mappings["groups"].items()}
    made["exploratory"] = dict(mappings["exploratory"])
    for override, reason in made["exploratory"].items():
        _reason(reason, f"{where}: '{override}'")
    for name, least in (("published_seeds", 1), ("clients", 0)):
        if type(given := content.get(name, least)) is not int or given < least:
            raise ConfigError(f"{where}: {name} is {given}; it must be a whole number of at least {least}")
    # OmegaConf, which checks the rest, would make mappings of the parts.
    rest = {key: value for key, value in content.items() if key not in made and value is not None}
    spec = dataclasses.replace(typed(TableSpec, {**rest, **dict.fromkeys(PARTS, ())}, where), **made)
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
        if (reason := entry.get("exploratory")) is not None:
            _reason(reason, f"{where}: {key.removesuffix('s')} '{label}'")
    return found


def _group(name: str, patterns: object, where: str) -> tuple[str, ...]:
    if not isinstance(patterns, list) or not patterns:
        raise ConfigError(f"{where}: group '{name}' must be a list of rows")
    return tuple(map(str, patterns))


def _reason(given: object, where: str) -> None:
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(f"{where} is marked exploratory without a reason; say what was seen before it was chosen")


def _chosen(kind: str, lines: tuple[LineT, ...], wanted: Sequence[str]) -> tuple[LineT, ...]:
    labels: list[str] = [line.label for line in lines]
    for name in wanted:
        if name not in labels and not (name.isdigit() and 1 <= int(name) <= len(lines)):
            raise unknown(kind, name, labels)
    if not wanted:
        return lines
    numbers = {*wanted} - {*labels}  # a label goes before a number
    return tuple(line for i, line in enumerate(lines, 1) if line.label in wanted or str(i) in numbers)


LEAST_ROUNDS = 2  # so that what crosses the network between rounds is exercised


@dataclass(frozen=True)
class Scale:
    """What to change in a run's config; the defaults change nothing."""

    name: str
    rounds: float = 1.0  # factor
    epochs: int | None = None  # at most so many a round
    iterations: int | None = None  # at most so many a round, where the protocol counts iterations
    evaluations: int | None = None  # at most so many, evenly spread
    seeds: int | None = None  # instead of the table's
    limit: int | None = None  # training samples of the data set
    clients: int | None = None  # at most so many; a cohort that is a count shrinks with them
    trained: bool = True  # false: too little for the methods' order to mean anything
    partition: dict[str, Any] = field(default_factory=dict)  # name -> fields, for partitions of fixed sizes
    method: dict[str, Any] = field(default_factory=dict)  # name -> fields, for methods of fixed local work

    def __post_init__(self) -> None:
        if not 0 <= self.rounds <= 1:
            raise ConfigError(f"scale.rounds is a share of the rounds in [0, 1], got {self.rounds}")

    @property
    def words(self) -> str:
        """Return what it changes, in a sentence; "" if nothing."""
        limits = {
            "epochs a round": self.epochs,
            "mini-batches a round, where they are counted": self.iterations,
            "training samples": self.limit,
            "clients": self.clients,
        }
        parts = [f"{self.rounds:.0%} of the rounds but at least {LEAST_ROUNDS}"] if self.rounds < 1 else []
        parts += [f"{what} at most {most}" for what, most in limits.items() if most is not None]
        return f"Scale {self.name}: {'; '.join(parts)}." if parts else ""

    def overrides(self, plain: Mapping[str, Any]) -> list[str]:
        """Return overrides that bring the resolved config `plain` to this scale."""
        protocol, local = plain["protocol"], plain["protocol"]["local"]
        rounds = max(min(LEAST_ROUNDS, protocol["rounds"]), math.ceil(self.rounds * protocol["rounds"]))
        found = [] if rounds == protocol["rounds"] else [f"protocol.rounds={rounds}"]
        if self.evaluations is not None:
            every = max(protocol["eval_every"], math.ceil(rounds / self.evaluations))
            found += [] if every == protocol["eval_every"] else [f"protocol.eval_every={every}"]
        kind = "iterations" if local["iterations"] else "epochs"
        most = getattr(self, kind)
        if most is not None and local[kind] > most:
            found.append(f"protocol.local.{kind}={most}")
        limit = plain["dataset"].get("limit")
        if self.limit is not None and (limit is None or limit > self.limit):
            found.append(f"dataset.limit={self.limit}")
        clients = plain["partition"].get("num_clients")
        if self.clients is not None and clients and clients > self.clients:
            found.append(f"partition.num_clients={self.clients}")
            drawn = schema.parse_cohort(str(protocol["cohort"]))
            if isinstance(drawn, int):
                found.append(f"protocol.cohort={max(1, drawn * self.clients // clients)}")
        for group in ("partition", "method"):
            fields = getattr(self, group).get(plain[group]["name"], {})
            found += [f"{group}.{key}={value}" for key, value in fields.items()]
        return found


@functools.cache
def load_scale(name: str) -> Scale:
    """Return the scale in conf/scale/`name`.yaml.

    Raises:
        UnknownName: no such scale, or an unknown key.
    """
    return typed(Scale, content_of("scale", name), f"scale '{name}'")


@dataclass(frozen=True)
class Selection:
    """What a command line selects: a table, figures or a board, which part of it, and how its runs are made."""

    table: str = ""
    figures: tuple[str, ...] = ()
    board: str = ""
    scale: str = "paper"
    rows: tuple[str, ...] = ()  # labels of those to be run; none: all
    columns: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()  # none: 0, 1, ... as many as the scale, the table or the figure says
    substitute: str = ""  # data set in place of the table's own
    overrides: tuple[str, ...] = ()  # of every run, and of Hydra
    jobs: int = 0  # runs at once; 0: one a core, on a GPU one
    hours: float = positive(1.0)  # of `evidence`, after which it stops
    results: str = "results"
    retry: bool = False
    dry_run: bool = False
    render: bool = False
    formats: tuple[str, ...] = ()  # none: svg and png of a figure, Markdown alone of a table

    def selects(self, row: RowSpec, column: ColumnSpec) -> bool:
        """Return whether the cell is to be run."""
        labels = ((row.label, self.rows), (column.label, self.columns))
        return all(not chosen or label in chosen for label, chosen in labels)

    @property
    def launcher(self) -> tuple[str, ...]:
        """The overrides of Hydra, which choose where runs are made."""
        return tuple(text for text in self.overrides if text.lstrip("+~").startswith("hydra"))

    @property
    def settings(self) -> tuple[str, ...]:
        """The overrides of every run that change no result, as runs_dir=DIR."""
        kept = (text for text in self.overrides if text not in self.launcher and is_setting(key_of(text)))
        return ("progress=none", *kept)

    @property
    def changed(self) -> tuple[str, ...]:
        """The overrides of every run that change results, as model=lenet5."""
        others = (*self.launcher, *self.settings)
        return tuple(text for text in self.overrides if text not in others)


def compose_cell(
    table: TableSpec, column: ColumnSpec, row: Sequence[str], selection: Selection
) -> tuple[list[str], dict[str, Any]]:
    """Return (overrides, plain config) of a cell: table, column, row, substitute, the user's changes, scale."""
    from omegaconf import OmegaConf

    overrides = [*table.base, *column.overrides, *row]
    if selection.substitute:
        chosen = [f"dataset={selection.substitute}", *column.substitute]
        overrides = [*_without(overrides, chosen), *chosen]
    overrides += [*selection.changed, *selection.settings]
    where = f"table {table.name}, {' '.join(overrides)}"
    try:
        config = compose(overrides)
        plain = cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except Exception as error:
        from fedbench.config.messages import one_line

        raise ConfigError(f"{where}: {one_line(error) or error}") from error
    own = {key_of(text) for text in selection.changed}  # what the user says stands against the scale
    scaled = [text for text in load_scale(selection.scale).overrides(plain) if key_of(text) not in own]
    config.merge_with(OmegaConf.from_dotlist(scaled))
    plain = cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    return [*overrides, *scaled], plain


def _without(overrides: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """Return the overrides but for choices in, and options of, the groups in which `chosen` chooses anew."""
    chosen_anew = {key for text in chosen if "." not in (key := key_of(text))}
    return [text for text in overrides if key_of(text).partition(".")[0] not in chosen_anew]
