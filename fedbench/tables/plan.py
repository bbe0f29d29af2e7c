"""From a table to the runs that fill it: what is finished, what is to be run, what cannot be run and why."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbench.config import groups
from fedbench.core.errors import DataMissing, FedbenchError, Stale
from fedbench.runs import fingerprint
from fedbench.runs.config import RunConfig, from_plain, run_key
from fedbench.runs.execution import folder_of, labels_of, standing
from fedbench.runs.folder import RunFolder
from fedbench.runs.run import Run
from fedbench.tables.spec import ColumnSpec, MetricSpec, RowSpec, TableSpec, Wish, compose_cell
from fedbench.tables.store import PENDING, Circumstances, Recorded


@dataclass(frozen=True)
class Job:
    """One run, or study, with one seed."""

    overrides: tuple[str, ...]  # the command line that repeats it
    config: RunConfig
    study: str = ""

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.config.seed

    @cached_property
    def key(self) -> str:
        """Hash of what determines the result."""
        return run_key(self.config)

    @property
    def identity(self) -> str:
        """Tells runs and studies apart, and those of one configuration."""
        return f"{self.study} {self.key}"

    @cached_property
    def folder(self) -> RunFolder:
        """Where the result is kept."""
        if not self.study:
            return folder_of(self.config)
        runs = Path(self.config.settings.runs_dir) / "studies" / self.study
        return RunFolder(runs, self.key, labels_of(self.config), self.data)

    @cached_property
    def data(self) -> str:
        """Hash of the samples; "" if they are not on this machine."""
        try:
            return fingerprint.content(self.config.dataset)
        except FedbenchError:
            return ""

    @property
    def finished(self) -> bool:
        """Whether its result is there, and of today's code if the config wants no other."""
        return standing(self.config, self.folder, tell=False) == "finished"

    @property
    def run(self) -> Run:
        """The finished run.

        Raises:
            Damaged: its row is not as it was written.
            FedbenchError: its folder is of another configuration, or of other samples.
        """
        self.folder.result()
        return Run(self.folder.path)

    @property
    def failure(self) -> str:
        """Why it failed when it was last run; "" if it did not."""
        return self.folder.failure()


def local_twin(job: Job) -> Job:
    """The Local run that `job` is measured against; a Local run itself needs none other."""
    if job.config.local is None:
        return job
    values = job.config.local_values
    changed = {key: value for key, value in values.items() if job.config.plain.get(key) != value}
    kept = [text for text in job.overrides if re.split(r"[./=]", text.lstrip("+~"))[0] not in changed]
    return Job((*kept, *(f"{key}={_option(value)}" for key, value in changed.items())), job.config.local)


def _option(value: Any) -> str:
    """A value of a plain config as a command line gives it; of a group its name."""
    return str(value["name"]) if isinstance(value, Mapping) else json.dumps(value)


def unique(jobs: Sequence[Job]) -> list[Job]:
    """The first of each identity."""
    return list({job.identity: job for job in reversed(jobs)}.values())[::-1]


@dataclass(frozen=True)
class Entry:
    """The runs behind a row in a column: one a seed, and as many of the baseline where the row has one."""

    row: RowSpec
    column: ColumnSpec
    jobs: tuple[Job, ...] = ()
    baselines: tuple[Job, ...] = ()
    asked: frozenset[int] = frozenset()  # seeds to be run; the others are shown if there are results
    reason: str = ""  # why there are no jobs

    @property
    def pairs(self) -> list[tuple[Job, Job | None]]:
        """Each job with its baseline."""
        return [(job, self.baselines[i] if self.baselines else None) for i, job in enumerate(self.jobs)]

    def keys(self, job: Job) -> tuple[str, str]:
        """(run key of `job`, that of its baseline or, if it has none, its own): what its values depend on."""
        return job.key, next((each.key for each in self.baselines if each.seed == job.seed), job.key)


@dataclass(frozen=True)
class Plan:
    """All entries of a table, in the order of its rows and columns."""

    spec: TableSpec
    made: Circumstances
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    recorded: Recorded = field(default_factory=Recorded)

    @property
    def title(self) -> str:
        """The table's title, and what is not as published."""
        return self.made.named(self.spec.title)

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """Every run that is asked for, once: first the Local runs that others are measured against."""
        every: list[Job] = []
        for entry in self.entries:
            for job, baseline in entry.pairs:
                if job.seed in entry.asked:
                    every += [job] if baseline is None or self.stands(entry, job) else [baseline, job]
        return tuple(unique([*self._local(every), *every]))

    def missing(self) -> list[Job]:
        """The runs that are asked for and have no result."""
        local = {job.identity for job in self._local(self.jobs)}  # needed as runs, to be measured against
        return [
            job
            for job in self.jobs
            if not job.finished and (job.identity in local or job.identity not in self._standing)
        ]

    def stands(self, entry: Entry, job: Job) -> bool:
        """Whether the results of `job` are recorded in the table's folder, all of them."""
        return all(value is not None for value in self._values(entry, job))

    def has(self, entry: Entry, job: Job) -> bool:
        """Whether there is a result of `job`: its run, or a record of some of its metrics."""
        return job.finished or any(value is not None for value in self._values(entry, job))

    def value(self, entry: Entry, job: Job, metric: MetricSpec) -> float | None:
        """The recorded value of `metric` for `job`, nan if censored; None if none stands."""
        if self._unwanted(job):
            return None
        return self.recorded.value(entry.row, entry.column, metric, *entry.keys(job))

    def _values(self, entry: Entry, job: Job) -> list[float | None]:
        return [self.value(entry, job, each) for each in self.spec.metrics]

    def _unwanted(self, job: Job) -> bool:
        """Whether the record of `job` is of other samples than those here, or is outdated and that is not wanted.

        Raises:
            Stale: it is outdated, by its code or its Local, and stale=error.
        """
        if job.study:  # of which a table keeps no line: what is beside the runs tells
            return job.folder.status() == "finished" and not job.finished
        made = self.recorded.rows.get(job.key, {})
        if made.get("data") and job.data and made["data"] != job.data:
            return True
        rule = job.config.settings.stale
        if rule == "show":
            return False
        code = str(made.get("code") or "")
        parts = fingerprint.changed(code, fingerprint.code_of(job.config)) if code else ()
        why = f"by other code ({', '.join(parts)} changed since)" if parts else ""
        if job.key in self.recorded.apart:
            why = why or "against another result of Local than the table's, which was run again since"
        if why and rule == "error":
            raise Stale(
                f"{' '.join(job.overrides)} was recorded {why}; stale=rerun makes it again, stale=show keeps it"
            )
        return bool(why)

    @cached_property
    def _standing(self) -> set[str]:
        return {job.identity for entry in self.entries for job in entry.jobs if self.stands(entry, job)}

    def _local(self, jobs: Sequence[Job]) -> list[Job]:
        """The Local runs beside those of `jobs` that have no record."""
        alone = [job for job in jobs if not job.study and job.identity not in self._standing]
        return unique([local_twin(job) for job in alone])


def circumstances(table: TableSpec, wish: Wish) -> Circumstances:
    """What of the wish a reader of the table must know."""
    varied = tuple(
        text for text in wish.changed if text in table.left_open or text.partition("=")[0] in table.left_open
    )
    changed = tuple(text for text in wish.changed if text not in varied)
    return Circumstances(wish.scale.name, wish.substitute, changed, varied, trained=wish.scale.trained)


def make(table: TableSpec, wish: Wish, recorded: Recorded | None = None) -> Plan:
    """Compose the cells of `table` that are asked for or `recorded`; nothing is trained or loaded.

    Raises:
        ConfigError: the table's own overrides do not compose, or those of the wish.
    """
    seeds = wish.seeds or tuple(range(wish.scale.seeds or table.seeds))
    recorded = recorded or Recorded()
    lacking = {
        column.label: _lacking(table, column, wish)
        for column in table.columns
        if any(wish.wants(row, column) for row in table.rows)
    }
    entries = [
        _entry(table, row, column, wish, seeds, row.unsupported or lacking.get(column.label, ""), recorded)
        for row in table.rows
        for column in table.columns
    ]
    return Plan(table, circumstances(table, wish), tuple(entries), seeds, recorded)


def _lacking(table: TableSpec, column: ColumnSpec, wish: Wish) -> str:
    """Why nothing in the column can be run; "" if it can."""
    if column.unsupported:
        return column.unsupported
    _, plain = compose_cell(table, column, (), wish)
    try:  # the data and the network alone: not every method could train it
        dataset, model = (groups.registry(name).build(plain[name]) for name in ("dataset", "model"))
    except DataMissing as error:  # a file of weights that was named
        return f"weights missing ({error})"
    state = dataset.state()
    if not state.ready:
        return f"data missing ({state.how})"
    weights = model.lacking()
    return f"weights missing ({weights})" if weights else ""


def _entry(
    table: TableSpec,
    row: RowSpec,
    column: ColumnSpec,
    wish: Wish,
    seeds: Sequence[int],
    lacking: str,
    recorded: Recorded,
) -> Entry:
    wanted = wish.wants(row, column) and not lacking
    shown = recorded.seeds(row, column)
    if not wanted and not shown:
        return Entry(row, column, reason=f"not run: {lacking}" if lacking else PENDING)
    every = sorted({*shown, *(seeds if wanted else ())})
    overrides = (*row.overrides, *column.own(row.label))
    jobs = _jobs(*compose_cell(table, column, overrides, wish), every, row.study)
    baselines = _jobs(*compose_cell(table, column, row.baseline, wish), every, "") if row.baseline else ()
    return Entry(row, column, jobs, baselines, frozenset(seeds if wanted else ()))


def _jobs(
    overrides: Sequence[str], plain: dict[str, Any], seeds: Sequence[int], study: str
) -> tuple[Job, ...]:
    config = from_plain(plain)
    return tuple(Job((*overrides, f"seed={seed}"), config.changed(seed=seed), study) for seed in seeds)


# Cells of a plan in words: as whole columns where every row that is asked for is among them.

MOST = 4  # cells that are named one by one


def named(plan: Plan, entries: Sequence[Entry]) -> str:
    """`5 cells (all of C10 dir0.1; FedRep / EMNIST dir0.5)`."""
    concerned = set(map(id, entries))
    asked = [entry for entry in plan.entries if entry.asked or id(entry) in concerned]
    if len(entries) == len(asked):
        return f"all {len(asked)} cells" if len(asked) > 1 else "the one cell"
    columns = []
    for column in plan.spec.columns:
        here = [entry for entry in asked if entry.column is column]
        if len(here) > 1 and all(id(entry) in concerned for entry in here):
            columns.append(column)
    alone = [f"{entry.row.label} / {entry.column.label}" for entry in entries if entry.column not in columns]
    words = [f"all of {', '.join(column.label for column in columns)}"] if columns else []
    words += alone[:MOST] + ([f"{len(alone) - MOST} more"] if len(alone) > MOST else [])
    count = f"{len(entries)} cells" if len(entries) > 1 else "1 cell"
    return f"{count} ({'; '.join(words)})"


def of_runs(plan: Plan, identities: Collection[str]) -> str:
    """The cells that runs with these identities fill."""
    return named(
        plan,
        [
            entry
            for entry in plan.entries
            if any(job.identity in identities for job in (*entry.jobs, *entry.baselines))
        ],
    )
