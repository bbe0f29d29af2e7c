"""A figure as data (conf/figure/NAME.yaml), the runs that it needs, found by the tables' planner, and its files."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedbench import recorders
from fedbench.cli.list import Listing
from fedbench.config import groups
from fedbench.config.fields import typed
from fedbench.core.checked import Archive
from fedbench.core.errors import ConfigError, unknown
from fedbench.core.files import as_json, as_npz, checksum, make_folder, write_text
from fedbench.core.locks import held
from fedbench.core.tables import grouped
from fedbench.papers import plan as tables
from fedbench.papers import store
from fedbench.papers.plan import Job, Plan
from fedbench.papers.selection import Selection
from fedbench.papers.spec import ColumnSpec, MetricSpec, RowSpec, TableSpec, content_of
from fedbench.papers.text import PAPERS
from fedbench.plots import style
from fedbench.runs import execution

PAPER, OPEN, QUICK = "paper", "open", "quick"
SETTINGS = (PAPER, OPEN, QUICK)
ALONE = ({"label": "-"},)


@dataclass(frozen=True)
class Setting:
    """The runs' data, protocol and seeds at one scale."""

    overrides: tuple[str, ...] = ()
    seeds: int = 1
    rows: tuple[str, ...] = ()  # labels of the rows; (): all
    columns: tuple[str, ...] = ()
    data: str = ""  # the caption's words on data and protocol


@dataclass(frozen=True)
class FigureSpec:
    """A figure of a paper: rows and columns of runs, as a table's, and what is read of them."""

    name: str
    paper: str  # a key of PAPERS
    figure: str  # its number in the paper
    title: str
    claim: str  # the paper's claim about it
    settings: dict[str, Any]  # paper: as published; open: on data that anyone has; quick: minutes
    base: tuple[str, ...] = ()  # overrides of every run, before the column's and the row's
    rows: tuple[RowSpec, ...] = ()
    columns: tuple[ColumnSpec, ...] = ()
    reads: dict[str, Any] = field(default_factory=dict)  # fedbench.papers.figure_arrays
    runs: bool = True  # false: drawn from data and partitions, nothing is trained
    note: str = ""  # addition to the caption

    @property
    def mirrors(self) -> str:
        """The paper and the number there, as "FedSaC, Figure 1"."""
        return f"{PAPERS[self.paper]}, Figure {self.figure}"

    def setting(self, name: str) -> Setting:
        """Return the setting at a scale. Raises UnknownName if the figure has none."""
        if name not in self.settings:
            raise unknown(f"scale of figure {self.name}", name, self.settings)
        return cast("Setting", self.settings[name])

    def table(self, name: str) -> TableSpec:
        """Return the runs of a setting as a table, for the tables' planner."""
        setting, metrics = self.setting(name), (MetricSpec("acc"),)
        title, base = f"{self.mirrors}: {self.title}", (*self.base, *setting.overrides)
        whole = TableSpec(self.name, title, "", "", metrics, self.rows, self.columns, base, setting.seeds)
        return whole.only(setting.rows, setting.columns)


def load_figure_spec(name: str) -> FigureSpec:
    """Return the figure in conf/figure/`name`.yaml; fedsac-f1 is fedsac_f1.

    Raises:
        UnknownName: no such figure, or a key that does not exist.
        ConfigError: a value of the wrong type, or a missing setting.
    """
    name = name.replace("-", "_")
    return parse_figure_spec(content_of("figure", name), name)


def parse_figure_spec(content: Mapping[str, Any], name: str) -> FigureSpec:
    """Return a figure from the plain content of its YAML.

    Raises:
        UnknownName: an unknown key, paper or scale.
        ConfigError: no quick setting.
    """
    where = f"figure '{name}'"
    content = {"rows": ALONE, "columns": ALONE, **content, "name": name}
    lists = {"rows": RowSpec, "columns": ColumnSpec}
    made: dict[str, Any] = {
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
    spec = replace(typed(FigureSpec, {**rest, "settings": {}}, where), **made, settings=settings)
    if spec.paper not in PAPERS:
        raise unknown(f"paper of {where}", spec.paper, PAPERS)
    return spec


def ordered_specs() -> list[FigureSpec]:
    """Return all figures, in the order of the papers and of numbers."""
    papers = list(PAPERS)
    return sorted(map(load_figure_spec, groups.names("figure")), key=lambda s: (papers.index(s.paper), int(s.figure)))


def listed_figures() -> Listing:
    """List the figures of the papers."""
    rows = [
        {"figure": s.name, "mirrors": s.mirrors, "shows": s.title, "scales": ", ".join(s.settings)}
        for s in ordered_specs()
    ]
    return Listing("Figures of the papers", rows)


@dataclass(frozen=True)
class FigurePlan:
    """A figure's runs at one of its settings."""

    spec: FigureSpec
    scale: str
    runs: Plan
    selection: Selection
    substituted: str = ""  # why it is not at the requested setting of the paper

    def missing(self) -> list[Job]:
        """Return the runs to make; a finished run that lacks a recorded array is made again."""
        if not self.spec.runs:
            return []
        without = [job for job in self.runs.jobs if job.finished and execution.lacking(job.config, job.run.arrays)]
        again = [with_recorders(job, job.run.arrays, force=True) for job in without]
        return [*self.runs.missing(), *again]

    def keys(self) -> str:
        """Return a checksum of the keys of its runs, in whatever order the plan has them."""
        return checksum(" ".join(sorted(job.key for job in self.runs.jobs)).encode())

    def command(self) -> str:
        """Return the command line that makes the figure."""
        given = [f"scale={self.scale}"]
        given += [f"seeds={list(self.runs.seeds)}".replace(" ", "")] if self.selection.seeds else []
        return " ".join(["python -m fedbench figure", self.spec.name, *given, *self.selection.changed])


def make_plan(spec: FigureSpec, selection: Selection) -> FigurePlan:
    """Compose the runs of a figure; nothing is trained or loaded.

    Without the paper's data on this machine, `scale=paper` is the figure's open setting, if it has one.

    Raises:
        UnknownName: a scale that the figure does not have.
        ConfigError: its overrides do not compose, or there are no data for it and no open setting.
    """
    scale, why = selection.scale, "the paper's setting is not given"
    if scale != PAPER or scale in spec.settings:
        runs = _plan(spec, scale, selection)
        why = next((cell.reason for cell in runs.cells if cell.reason), "") if scale == PAPER else ""
    if why:
        if OPEN not in spec.settings:
            raise ConfigError(f"figure {spec.name}: {why}; scale=quick draws it on other data")
        scale, runs = OPEN, _plan(spec, OPEN, selection)
    return FigurePlan(spec, scale, runs, selection, why)


def _plan(spec: FigureSpec, scale: str, selection: Selection) -> Plan:
    """Plan the runs of a setting; the table that stands for it is itself at the paper's scale."""
    seeds = selection.seeds[:1] if spec.setting(scale).seeds == 1 else selection.seeds  # it shows no mean, but one
    return tables.make(spec.table(scale), Selection(seeds=seeds, overrides=selection.overrides))


def with_recorders(job: Job, kept: Mapping[str, np.ndarray], *others: Job, force: bool = False) -> Job:
    """Return `job` with all that it, `others` of its key, and arrays `kept` record."""
    run = job.config
    wanted = [recorder for each in (job, *others) for recorder in each.config.recorders]
    entries = recorders.listed(wanted, kept, run.protocol.rounds)
    return Job(job.overrides, run.changed(record=entries, force=force or run.settings.force))


def merged_jobs(jobs: Sequence[Job]) -> list[Job]:
    """Return each run of several figures once, with the recorders of all of them."""
    alike = grouped((job.identity, job) for job in jobs)
    return [
        with_recorders(first, first.run.arrays if first.finished else {}, *rest)
        if any(each.config.recorders for each in (first, *rest))
        else first
        for first, *rest in alike.values()
    ]


# The files of drawn figures: SCALE/NAME.svg and .png; SCALE/figures.zip with NAME.npz (arrays) and NAME.json (what is
# said of it); README.md of all.

Arrays = Mapping[str, np.ndarray]
HEAD = """# Figures of the papers

`make figures scale=quick` makes all figures. `make figure-NAME` makes one, at the paper's setting if its data are on
the machine. `make tables` draws them again from the arrays in `SCALE/figures.zip`. A claim is the paper's, about its
own data and settings. Only a figure at the paper's setting can support or refute it. The other figures show the same
quantities on other data.
"""
RUN = {PAPER: "at the paper's setting", OPEN: "on open data", QUICK: "at a small scale"}


@dataclass(frozen=True)
class Drawn:
    """A drawn figure and its description."""

    name: str
    scale: str
    mirrors: str  # as "FedSaC, Figure 1"
    title: str
    data: str
    seeds: tuple[int, ...]
    command: str
    claim: str  # the paper's claim about its figure
    note: str = ""
    runs: str = ""  # FigurePlan.keys, which show whether the figure has today's settings

    @property
    def caption(self) -> str:
        """Data, protocol, seeds and command."""
        count = len(self.seeds)
        seeds = f"seed {self.seeds[0]}" if count == 1 else f"{count} seeds, mean and one standard deviation"
        note = f" {self.note}" if self.note else ""
        return f"{self.mirrors}: {self.title}. {self.data}; {seeds}.{note} {self.command}"


def save_figure(folder: Path, plan: FigurePlan, arrays: Arrays, formats: Sequence[str] = ("svg", "png")) -> Drawn:
    """Write the arrays of a figure in single precision, which is enough to draw, with its description, and draw it."""
    spec = plan.spec
    changed = f" with {' '.join(plan.selection.changed)}" if plan.selection.changed else ""
    drawn = Drawn(
        spec.name, plan.scale, spec.mirrors, spec.title, spec.setting(plan.scale).data + changed,
        tuple(plan.runs.seeds), plan.command(), spec.claim, spec.note, plan.keys(),
    )  # fmt: skip
    place = folder / plan.scale / spec.name
    make_folder(place.parent)
    exact = {key: np.asarray(array) for key, array in arrays.items()}
    kept = {key: each.astype(np.float32) if each.dtype == np.float64 else each for key, each in exact.items()}
    with held(place.parent):  # the figures of a scale share an archive
        files_of_figure(place).write({f"{place.name}.npz": as_npz(kept), f"{place.name}.json": as_json(asdict(drawn))})
    draw_figure(place, drawn, arrays, formats)
    return drawn


def draw_figure(place: Path, drawn: Drawn, arrays: Arrays, formats: Sequence[str] = ("svg", "png")) -> None:
    """Draw a figure from its arrays, without any run."""
    paper, _, number = drawn.name.rpartition("_")
    function = getattr(importlib.import_module(f"fedbench.papers.plots.{paper}"), number)
    with style.styled(drawn.name, math=True):
        style.save_as(function(arrays), place, drawn.caption, formats)


def redraw(place: Path, formats: Sequence[str] = ("svg", "png")) -> Drawn:
    """Draw the figure kept at `place` (no suffix) again, with the words of today's YAML."""
    drawn, arrays = load_figure(place)
    spec = load_figure_spec(drawn.name)
    drawn = replace(drawn, title=spec.title, claim=spec.claim, note=spec.note, mirrors=spec.mirrors)
    with held(place.parent):
        files_of_figure(place).write({f"{place.name}.json": as_json(asdict(drawn))})
    draw_figure(place, drawn, arrays, formats)
    return drawn


def load_figure(place: Path) -> tuple[Drawn, Arrays]:
    """Return the figure that `save_figure` kept at `place` (no suffix).

    Raises:
        Damaged: it is not as it was written.
    """
    files = files_of_figure(place)
    content, arrays = files.json(f"{place.name}.json"), files.npz(f"{place.name}.npz")
    try:
        said = {each.name: content[each.name] for each in fields(Drawn) if each.name in content}
        return Drawn(**{**said, "seeds": tuple(content["seeds"])}), arrays
    except (TypeError, KeyError) as error:
        raise files.damaged(f"{place.name}.json", "it is of another version") from error


def files_of_figure(place: Path) -> Archive:
    """Return the files that are read back of the figure at `place` (no suffix) and of those beside it."""
    return store.files_of(place.parent, "figures")


def drawn_places(folder: Path) -> list[Path]:
    """Return where every drawn figure is kept (no suffix), at the scale nearest the paper's, by paper."""
    found = dict[str, Path]()
    for spec, scale in itertools.product(ordered_specs(), SETTINGS):
        if files_of_figure(place := folder / scale / spec.name).has(f"{spec.name}.json"):
            found.setdefault(spec.name, place)
    return [*found.values()]


def write_overview(folder: Path) -> None:
    """Write README.md of a folder of figures."""
    if found := [load_figure(place)[0] for place in drawn_places(folder)]:
        write_text(folder / "README.md", overview_text(found))


def overview_text(found: Sequence[Drawn]) -> str:
    """Return the page with a line for each figure: the paper's claim and the setting of the runs."""
    lacking = sorted(set(groups.names("figure")) - {each.name for each in found})
    counts = ", ".join(f"{sum(each.scale == scale for each in found)} {words}" for scale, words in RUN.items())
    lines = [HEAD, f"{len(found)} figures: {counts}."]
    if lacking:
        lines.append(f"Not made yet: {', '.join(lacking)}.")
    lines += ["", "| figure | file | claim of the paper | run | data |", "|---|---|---|---|---|"]
    lines += [
        f"| {each.mirrors} | `{each.scale}/{each.name}` | {each.claim} | {RUN[each.scale]} "
        f"| {each.data}; {len(each.seeds)} seed{'s' * (len(each.seeds) > 1)} |"
        for each in found
    ]
    return "\n".join(lines) + "\n"
