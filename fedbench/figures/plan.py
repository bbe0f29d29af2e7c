"""A figure as data (conf/figure/NAME.yaml), and the runs that it needs, found by the tables' planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedbench import recorders
from fedbench.config import groups
from fedbench.config.fields import typed
from fedbench.core.errors import ConfigError, unknown
from fedbench.runs import execution
from fedbench.tables import plan as tables
from fedbench.tables.plan import Job, Plan
from fedbench.tables.spec import ColumnSpec, MetricSpec, RowSpec, Scale, TableSpec, Wish
from fedbench.tables.text import PAPERS

PAPER, OPEN, QUICK = "paper", "open", "quick"
SETTINGS = (PAPER, OPEN, QUICK)
ALONE = ({"label": "-"},)


@dataclass(frozen=True)
class Setting:
    """The runs' data, protocol and seeds at one scale."""

    overrides: tuple[str, ...] = ()
    seeds: int = 1
    rows: tuple[str, ...] = ()  # labels; none: all
    columns: tuple[str, ...] = ()
    data: str = ""  # what the caption says of data and protocol


@dataclass(frozen=True)
class FigureSpec:
    """A figure of a paper: rows and columns of runs, as a table's, and what is read of them."""

    name: str
    paper: str  # a key of PAPERS
    figure: str  # its number there
    title: str
    claim: str  # what the paper says that it shows
    settings: dict[str, Any]  # paper: as published; open: on data that anyone has; quick: minutes
    base: tuple[str, ...] = ()  # overrides of every run, before the column's and the row's
    rows: tuple[RowSpec, ...] = ()
    columns: tuple[ColumnSpec, ...] = ()
    reads: dict[str, Any] = field(default_factory=dict)  # fedbench.figures.arrays
    runs: bool = True  # false: drawn from data and partitions, nothing is trained
    note: str = ""  # what the caption adds

    @property
    def mirrors(self) -> str:
        """The paper and the number there, as "FedSaC, Figure 1"."""
        return f"{PAPERS[self.paper]}, Figure {self.figure}"

    def setting(self, name: str) -> Setting:
        """Return the setting at a scale.

        Raises:
            UnknownName: the figure has no such setting.
        """
        if name not in self.settings:
            raise unknown(f"scale of figure {self.name}", name, self.settings)
        return cast("Setting", self.settings[name])

    def table(self, name: str) -> TableSpec:
        """Return the runs of a setting as a table, for the tables' planner."""
        setting = self.setting(name)
        whole = TableSpec(
            self.name,
            f"{self.mirrors}: {self.title}",
            "",
            "",
            (MetricSpec("acc"),),
            self.rows,
            self.columns,
            (*self.base, *setting.overrides),
            setting.seeds,
        )
        return whole.only(setting.rows, setting.columns)


def spec_names() -> list[str]:
    """Return the names of all figures, those that have a YAML."""
    return sorted(file.stem for file in (groups.conf_dir() / "figure").glob("*.yaml"))


def load_spec(name: str) -> FigureSpec:
    """Return the figure in conf/figure/`name`.yaml; fedsac-f1 is fedsac_f1.

    Raises:
        UnknownName: no such figure, or a key that does not exist.
        ConfigError: a value of the wrong type, or a setting that is lacking.
    """
    from omegaconf import OmegaConf

    name = name.replace("-", "_")
    if name not in spec_names():
        raise unknown("figure", name, spec_names())
    path = Path(groups.conf_dir()) / "figure" / f"{name}.yaml"
    return parse_spec(
        cast("dict[str, Any]", OmegaConf.to_container(groups.load_yaml(path), resolve=True)), name
    )


def parse_spec(content: Mapping[str, Any], name: str) -> FigureSpec:
    """Return a figure from the plain content of its YAML.

    Raises:
        UnknownName: a key, paper or scale that there is none of.
        ConfigError: no quick setting.
    """
    where = f"figure '{name}'"
    content = {"rows": ALONE, "columns": ALONE, **content, "name": name}
    lists = {"rows": RowSpec, "columns": ColumnSpec}
    made: dict[str, tuple[Any, ...]] = {
        key: tuple(typed(cls, each, f"{where}, {key}") for each in content[key]) for key, cls in lists.items()
    }
    settings = {}
    for scale, values in (content.get("settings") or {}).items():
        if scale not in SETTINGS:
            raise unknown(f"scale of {where}", scale, SETTINGS)
        settings[scale] = typed(Setting, values, f"{where}, {scale}")
    if QUICK not in settings:
        raise ConfigError(f"{where} needs settings.quick")
    rest = {key: value for key, value in content.items() if key not in (*lists, "settings")}
    spec = typed(FigureSpec, {**rest, "settings": {}}, where)
    if spec.paper not in PAPERS:
        raise unknown(f"paper of {where}", spec.paper, PAPERS)
    return FigureSpec(**{**{k: getattr(spec, k) for k in rest}, **made, "settings": settings})


def ordered_specs() -> list[FigureSpec]:
    """Return all figures, in the order of the papers and of numbers."""
    papers = list(PAPERS)
    return sorted(map(load_spec, spec_names()), key=lambda s: (papers.index(s.paper), int(s.figure)))


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for, besides the figure."""

    scale: str = PAPER
    seeds: tuple[int, ...] = ()  # none: as many as the setting says
    changed: tuple[str, ...] = ()  # overrides of every run that change results
    settings: tuple[str, ...] = ("progress=none",)  # overrides that do not


@dataclass(frozen=True)
class FigurePlan:
    """A figure's runs at one of its settings."""

    spec: FigureSpec
    scale: str
    runs: Plan
    wanted: Wanted

    @property
    def setting(self) -> Setting:
        """Data, protocol and seeds."""
        return self.spec.setting(self.scale)

    @property
    def substituted(self) -> str:
        """Why it is not at the paper's setting although that was asked for; "" if it is, or was not."""
        return "" if self.scale == self.wanted.scale else why_not_paper(self.spec, self.wanted)

    def missing(self) -> list[Job]:
        """Return the runs to be made; one that is there without what is to be recorded is made again."""
        if not self.spec.runs:
            return []
        without = [job for job in self.runs.jobs if job.finished and execution.lacking(job.config)]
        return [*self.runs.missing(), *(rerun(job) for job in without)]

    def command(self) -> str:
        """Return the command line that makes the figure."""
        given = [f"scale={self.scale}"]
        given += [f"seeds={list(self.wanted.seeds)}".replace(" ", "")] if self.wanted.seeds else []
        return " ".join(["python -m fedbench figure", self.spec.name, *given, *self.wanted.changed])


def make_plan(spec: FigureSpec, wanted: Wanted) -> FigurePlan:
    """Compose the runs of a figure; nothing is trained or loaded.

    Where the paper's data are not on this machine, `scale=paper` is the figure's open setting, if it has one.

    Raises:
        UnknownName: a scale that the figure does not have.
        ConfigError: its overrides do not compose, or there are no data for it and no open setting.
    """
    scale = wanted.scale
    if scale == PAPER and why_not_paper(spec, wanted):
        if OPEN not in spec.settings:
            raise ConfigError(
                f"figure {spec.name}: {why_not_paper(spec, wanted)}; scale=quick draws it on other data"
            )
        scale = OPEN
    return FigurePlan(spec, scale, _plan(spec, scale, wanted), wanted)


def why_not_paper(spec: FigureSpec, wanted: Wanted) -> str:
    """Say why the paper's setting cannot be run here; "" if it can."""
    if PAPER not in spec.settings:
        return "the paper's setting is not given"
    reasons = _plan(spec, PAPER, wanted).entries
    return next((entry.reason for entry in reasons if entry.reason), "")


def _plan(spec: FigureSpec, scale: str, wanted: Wanted) -> Plan:
    wish = Wish(Scale(scale), wanted.seeds, "", wanted.changed, wanted.settings)
    return tables.make(spec.table(scale), wish)


def rerun(job: Job) -> Job:
    """Return a finished run to be made anew, with what is to be recorded beside what it has."""
    return with_recorders(job, execution.kept(job.folder), force=True)


def with_recorders(job: Job, kept: Mapping[str, np.ndarray], *others: Job, force: bool = False) -> Job:
    """Return `job` with all that it, `others` of its key, and arrays `kept` record."""
    run = job.config
    wanted = [recorder for each in (job, *others) for recorder in each.config.recorders]
    entries = recorders.listed(wanted, kept, run.protocol.rounds)
    return Job(job.overrides, run.changed(record=entries, force=force or run.settings.force))


def merged(jobs: Sequence[Job]) -> list[Job]:
    """Return each run of several figures once, with what any of them records."""
    alike: dict[str, list[Job]] = {}
    for job in jobs:
        alike.setdefault(job.identity, []).append(job)
    return [
        with_recorders(first, execution.kept(first.folder) if first.finished else {}, *rest)
        if any(each.config.recorders for each in (first, *rest))
        else first
        for first, *rest in alike.values()
    ]
