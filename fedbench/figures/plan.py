"""From a figure to the runs that it needs, by the tables' planner: which are there, which must be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedbench import recorders
from fedbench.core.errors import ConfigError
from fedbench.figures.spec import OPEN, PAPER, FigureSpec, Setting
from fedbench.runs import recorded
from fedbench.tables import plan as tables
from fedbench.tables.cell_config import Wish
from fedbench.tables.job import Job
from fedbench.tables.plan import Plan
from fedbench.tables.scale import Scale


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
        return "" if self.scale == self.wanted.scale else lack(self.spec, self.wanted)

    def missing(self) -> list[Job]:
        """The runs to be made; one that is there without what is to be recorded is made again."""
        if not self.spec.runs:
            return []
        without = [job for job in self.runs.jobs if job.finished and recorded.lacking(job.config)]
        return [*self.runs.missing(), *(again(job) for job in without)]

    def command(self) -> str:
        """The command line that makes the figure."""
        given = [f"scale={self.scale}"]
        given += [f"seeds={list(self.wanted.seeds)}".replace(" ", "")] if self.wanted.seeds else []
        return " ".join(["python -m fedbench.figure", self.spec.name, *given, *self.wanted.changed])


def make(spec: FigureSpec, wanted: Wanted) -> FigurePlan:
    """Compose the runs of a figure; nothing is trained or loaded.

    Where the paper's data are not on this machine, `scale=paper` is the figure's open setting, if it has one.

    Raises:
        UnknownName: a scale that the figure does not have.
        ConfigError: its overrides do not compose, or there are no data for it and no open setting.
    """
    scale = wanted.scale
    if scale == PAPER and lack(spec, wanted):
        if OPEN not in spec.settings:
            raise ConfigError(f"figure {spec.name}: {lack(spec, wanted)}; scale=quick draws it on other data")
        scale = OPEN
    return FigurePlan(spec, scale, _plan(spec, scale, wanted), wanted)


def lack(spec: FigureSpec, wanted: Wanted) -> str:
    """Why the paper's setting cannot be run here; "" if it can."""
    if PAPER not in spec.settings:
        return "the paper's setting is not given"
    reasons = _plan(spec, PAPER, wanted).entries
    return next((entry.reason for entry in reasons if entry.reason), "")


def _plan(spec: FigureSpec, scale: str, wanted: Wanted) -> Plan:
    wish = Wish(Scale(scale), wanted.seeds, "", wanted.changed, wanted.settings)
    return tables.make(spec.table(scale), wish)


def again(job: Job) -> Job:
    """A finished run made anew, with what is to be recorded beside what it has."""
    return recording(job, recorded.kept(job.folder), force=True)


def recording(job: Job, kept: Mapping[str, np.ndarray], *others: Job, force: bool = False) -> Job:
    """`job` with all that it, `others` of its key, and arrays `kept` record."""
    run = job.config
    wanted = [recorder for each in (job, *others) for recorder in each.config.recorders]
    entries = recorders.listed(wanted, kept, run.protocol.rounds)
    return Job(job.overrides, run.changed(record=entries, force=force or run.settings.force))


def together(jobs: Sequence[Job]) -> list[Job]:
    """Each run of several figures once, with what any of them records."""
    alike: dict[str, list[Job]] = {}
    for job in jobs:
        alike.setdefault(job.identity, []).append(job)
    return [
        recording(first, recorded.kept(first.folder) if first.finished else {}, *rest)
        if any(each.config.recorders for each in (first, *rest))
        else first
        for first, *rest in alike.values()
    ]
