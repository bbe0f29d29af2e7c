"""From a table to its runs and back: which are finished, missing or impossible, and their values."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from fedbench.config import groups
from fedbench.config.compose import key_of
from fedbench.core.errors import ConfigError, DataMissing, FedbenchError, Stale
from fedbench.core.tables import grouped
from fedbench.papers import measures
from fedbench.papers.recorded import StoredTable
from fedbench.papers.selection import Selection, compose_cell, load_scale
from fedbench.papers.spec import ColumnSpec, MetricSpec, RowSpec, TableSpec, todo
from fedbench.papers.store import PENDING, Provenance
from fedbench.runs import execution, fingerprint
from fedbench.runs.config import RunConfig, from_plain
from fedbench.runs.execution import is_compared
from fedbench.runs.folder import MODEL, RunFolder, folder_of, labels_of, run_status
from fedbench.runs.progress import amount
from fedbench.runs.run import Run

MOST = 4  # cells that a line names one by one


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
        return self.config.key

    @property
    def identity(self) -> str:
        """A name that distinguishes runs and studies, also those of one configuration."""
        return f"{self.study} {self.key}"

    @cached_property
    def folder(self) -> RunFolder:
        """The folder in which the result is kept."""
        if not self.study:
            return folder_of(self.config)
        from fedbench.papers.studies import roots  # which knows methods

        runs = Path(self.config.settings.runs_dir) / "studies" / self.study
        today = fingerprint.code_of(self.config, roots(self.study))
        return RunFolder(runs, self.key, labels_of(self.config), self.data, today=today)

    @cached_property
    def data(self) -> str:
        """Hash of the samples; "" if they are not on this machine."""
        try:
            return fingerprint.content(self.config.dataset)
        except FedbenchError:
            return ""

    @property
    def finished(self) -> bool:
        """Return whether its result exists as the config asks, with today's code if the config accepts no other."""
        there = run_status(self.config, self.folder, tell=False) == "finished"
        return there and (bool(self.study) or is_compared(self.config, self.folder))

    @property
    def run(self) -> Run:
        """The finished run.

        Raises:
            Damaged: its row is not as it was written.
            FedbenchError: its folder belongs to another configuration or to other samples.
        """
        self.folder.result()
        return Run(self.folder.path)

    @property
    def unkept(self) -> list[str]:
        """Which of `record` and `save_models` its config asks for and its result, made earlier, lacks."""
        if self.study:
            return []
        arrays = self.run.arrays if self.config.recorders and self.finished else {}
        lost = [f"record={name}" for name in execution.lacking(self.config, arrays)]
        models = self.config.settings.save_models and not (self.folder.path / MODEL).is_file()
        return [*lost, "save_models=true"] if models else lost

    @property
    def failure(self) -> str:
        """Return why its last try failed; "" if it did not."""
        return self.folder.failure()


def local_reference(job: Job) -> Job:
    """Return the Local run that `job` is compared with; a Local run itself."""
    if job.config.local is None:
        return job
    values = job.config.local_values
    changed = {key: value for key, value in values.items() if job.config.plain.get(key) != value}
    if (protocol := changed.pop("protocol", None)) is not None:  # with `reference_lr`: all but its rate is the job's
        changed["protocol.optimizer.lr"] = protocol["optimizer"]["lr"]
    kept = [text for text in job.overrides if re.split(r"[./=]", text.lstrip("+~"))[0] not in changed]
    given = {key: value["name"] if isinstance(value, Mapping) else json.dumps(value) for key, value in changed.items()}
    return Job((*kept, *(f"{key}={text}" for key, text in given.items())), job.config.local)


def unique(jobs: Sequence[Job]) -> list[Job]:
    """Return the first of each identity."""
    return [first for first, *_ in grouped((job.identity, job) for job in jobs).values()]


@dataclass(frozen=True)
class CellRuns:
    """The runs behind a row in a column: one for each seed, and as many of the baseline if the row has one."""

    row: RowSpec
    column: ColumnSpec
    jobs: tuple[Job, ...] = ()
    baselines: tuple[Job, ...] = ()
    seeds: frozenset[int] = frozenset()  # seeds to run; other jobs are shown if they have results
    selected: bool = True  # the command line selects it, even if it cannot run
    reason: str = ""  # why there are no jobs, or none for requested seeds
    parts: tuple[CellRuns, ...] = ()  # the averaged cells of a column that is a mean

    @property
    def asked(self) -> tuple[Job, ...]:
        """The requested runs."""
        own = tuple(job for job in self.jobs if job.seed in self.seeds)
        return (*own, *(job for part in self.parts for job in part.asked))

    @property
    def needed(self) -> tuple[Job, ...]:
        """The runs and baselines behind its values, or behind those that it averages."""
        return (*self.jobs, *self.baselines, *(job for part in self.parts for job in part.needed))

    def baseline_of(self, job: Job) -> Job | None:
        """Return the baseline run of `job`; None if there is none."""
        return next((each for each in self.baselines if each.seed == job.seed), None)

    def keys(self, job: Job) -> tuple[str, str]:
        """Return the keys that its values depend on: (run key of `job`, that of its baseline or else its own)."""
        return job.key, (self.baseline_of(job) or job).key


@dataclass(frozen=True)
class Plan:
    """All cells of a table, in the order of its rows and columns."""

    spec: TableSpec
    provenance: Provenance
    cells: tuple[CellRuns, ...]
    seeds: tuple[int, ...]
    stored: StoredTable = field(default_factory=StoredTable)

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """Every requested run, once; the Local runs that others are compared with come first."""
        every: list[Job] = []
        for cell in self.cells:
            for job in (each for each in cell.jobs if each.seed in cell.seeds):
                baseline = None if self.is_stored(cell, job) else cell.baseline_of(job)
                every += [job] if baseline is None else [baseline, job]
        return tuple(unique([*self._local(every), *every]))

    def missing(self) -> list[Job]:
        """Return the requested runs without a result."""
        local = {job.identity for job in self._local(self.jobs)}  # needed as runs, to be measured against
        return [
            job
            for job in self.jobs
            if not job.finished and (job.identity in local or job.identity not in self._stored_identities)
        ]

    def is_stored(self, cell: CellRuns, job: Job) -> bool:
        """Return whether all results of `job` are recorded in the table's folder, by code that is accepted."""
        return not self.outdated(cell, job) and None not in self._values(cell, job)

    def has(self, cell: CellRuns, job: Job) -> bool:
        """Return whether `job` has a result: its run, or a record of some of its metrics."""
        return job.finished or any(value is not None for value in self._values(cell, job))

    def value(self, cell: CellRuns, job: Job, metric: MetricSpec) -> float | None:
        """Return the recorded value of `metric` for `job`, nan if censored; None if no valid one exists.

        A value of other samples than those here is not valid. One of other code is, until a finished run replaces it.
        """
        data = None if job.study else self.stored.rows.get(job.key, {}).get("data")  # of a study there is no line
        if data and job.data and data != job.data:
            return None
        return self.stored.value(cell.row, cell.column, metric, *cell.keys(job))

    def _values(self, cell: CellRuns, job: Job) -> list[float | None]:
        return [self.value(cell, job, each) for each in self.spec.metrics]

    def outdated(self, cell: CellRuns, job: Job) -> bool:
        """Return whether the record of `job` is of other code, which the config does not accept.

        Raises:
            Stale: it is outdated, by its code, that of its baseline or its Local, and stale=error.
        """
        if job.study:  # of which a table keeps no line: what is beside the runs tells
            return job.folder.status() == "finished" and not job.finished
        rule = job.config.settings.stale
        if rule == "show":
            return False
        why = ""
        if job.key in self.stored.apart:
            why = "against another run of Local than the table's"
        for how, run in (("against a baseline of", cell.baseline_of(job)), ("by", job)):
            code = self.stored.rows.get(run.key, {}).get("code") if run else ""
            if run and (parts := fingerprint.changed(code or "", run.folder.today)):
                why = f"{how} other code ({', '.join(parts)} changed since)"
        if why and rule == "error":
            raise Stale(
                f"{' '.join(job.overrides)} was recorded {why}; stale=rerun makes it again, stale=show keeps it"
            )
        return bool(why)

    @cached_property
    def _stored_identities(self) -> set[str]:
        """The runs whose results are recorded, and that no requested cell reads more from."""
        placed = [(cell, job, self.is_stored(cell, job)) for cell in self.cells for job in cell.jobs]
        asked = [(cell, job) for cell, job, stored in placed if job.seed in cell.seeds and not stored]
        needed = {each.identity for cell, job in asked for each in (job, cell.baseline_of(job) or job)}
        return {job.identity for _, job, stored in placed if stored} - needed

    def _local(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the Local runs, besides those of `jobs`, without a record."""
        alone = [job for job in jobs if not job.study and job.identity not in self._stored_identities]
        return unique([local_reference(job) for job in alone])

    def named(self, cells: Sequence[CellRuns]) -> str:
        """Return `5 cells (all of C10 dir0.1; FedRep / EMNIST dir0.5)`: as whole columns where no cell of one lacks."""
        concerned = set(map(id, cells))
        planned = [cell for cell in self.cells if cell.selected or id(cell) in concerned]
        if len(cells) == len(planned):
            return f"all {len(planned)} cells" if len(planned) > 1 else "the one cell"
        columns = []
        for column in self.spec.columns:
            here = [cell for cell in planned if cell.column is column]
            if len(here) > 1 and all(id(cell) in concerned for cell in here):
                columns.append(column)
        alone = [f"{cell.row.label} / {cell.column.label}" for cell in cells if cell.column not in columns]
        words = [f"all of {', '.join(column.label for column in columns)}"] if columns else []
        words += alone[:MOST] + ([f"{len(alone) - MOST} more"] if len(alone) > MOST else [])
        return f"{amount(len(cells), 'cell')} ({'; '.join(words)})"

    def of_runs(self, identities: Collection[str]) -> str:
        """Return the cells that runs with these identities fill, in words."""
        filled = [(cell, {job.identity for job in (*cell.jobs, *cell.baselines)}) for cell in self.cells]
        return self.named([cell for cell, own in filled if own.intersection(identities)])


def provenance(table: TableSpec, selection: Selection) -> Provenance:
    """Return the parts of the selection that a reader of the table must know."""
    varied = tuple(text for text in selection.changed if text in table.left_open or key_of(text) in table.left_open)
    changed = tuple(text for text in selection.changed if text not in varied)
    trained = load_scale(selection.scale).trained
    return Provenance(selection.scale, selection.substitute, changed, varied, trained=trained, todo=todo(table.name))


def make(table: TableSpec, selection: Selection, stored: StoredTable | None = None) -> Plan:
    """Compose the cells of `table` that are selected or `stored`; nothing is trained or loaded.

    Raises:
        UnknownName: no such scale, measure, or column of a result.
        ConfigError: the table's own overrides do not compose, or those of the selection.
    """
    seeds = selection.seeds or tuple(range(load_scale(selection.scale).seeds or table.seeds))
    stored = stored or StoredTable()
    lacking = {
        column.label: _lacking(table, column, selection)
        for column in table.columns
        if any(selection.selects(row, column) for row in table.rows)
    }
    cells = [
        _cell_runs(row, column, table, selection, seeds, lacking.get(column.label, ""), stored)
        for row in table.rows
        for column in table.columns
    ]
    placed = {(cell.row.label, cell.column.label): cell for cell in cells}
    for i, cell in enumerate(cells):
        if parts := tuple(placed[cell.row.label, label] for label in cell.column.mean):
            reasons = dict.fromkeys(part.reason for part in parts if part.reason)
            cells[i] = replace(cell, parts=parts, reason="; ".join(reasons))
    _check_names_of_data(cells)
    for cell, metric in product(cells, table.metrics):
        measure = measures.build(metric.measured(cell.row, cell.column))
        if isinstance(measure, measures.Result) and not cell.row.study:  # whose rows have columns of their own
            measure.check()
    return Plan(table, provenance(table, selection), tuple(cells), seeds, stored)


def _check_names_of_data(cells: Sequence[CellRuns]) -> None:
    """Refuse columns whose runs differ only in the path of their data, which no key contains."""
    places: dict[str, tuple[str, str]] = {}
    for job in (job for cell in cells for job in (*cell.jobs, *cell.baselines)):
        data = job.config.plain["dataset"]
        place = str(data.get("root")), str(data.get("path"))
        if places.setdefault(job.key, place) != place:
            name = job.config.labels["dataset"]
            raise ConfigError(f"two columns read different data with the same name, {name}: rename a file or folder")


def _lacking(table: TableSpec, column: ColumnSpec, selection: Selection) -> str:
    """Return why nothing in the column can run; "" if it can."""
    _, plain = compose_cell(table, column, (), selection)
    try:  # the data and the network alone: not every method could train it
        dataset, model = (groups.registry(name).build(plain[name]) for name in ("dataset", "model"))
    except DataMissing as error:  # a file of weights that was named
        return f"weights missing ({error})"
    state = dataset.state()
    if not state.ready:
        return f"data missing ({state.how})"
    weights = model.lacking()
    return f"weights missing ({weights})" if weights else ""


def _cell_runs(
    row: RowSpec,
    column: ColumnSpec,
    table: TableSpec,
    selection: Selection,
    seeds: Sequence[int],
    lacking: str,
    stored: StoredTable,
) -> CellRuns:
    cell = CellRuns(row, column, selected=selection.selects(row, column))
    if column.mean:
        return cell
    lacking = lacking or selection.unlike_paper(row, column)
    to_run = seeds if cell.selected and not lacking else ()
    shown, failed = stored.seeds(row, column), stored.failures(row, column, table.base)
    if not (to_run or shown or failed):
        return replace(cell, reason=f"not run: {lacking}" if lacking else PENDING)
    if lacking and cell.selected and (lost := {*seeds}.difference(shown)):
        cell = replace(cell, reason=f"not run with seeds {', '.join(map(str, sorted(lost)))}: {lacking}")
    every = sorted({*shown, *failed, *to_run})
    unread = not any(measures.build(each.measured(row, column)).reads_local for each in table.metrics)
    overrides = (*row.overrides, *column.own(row.label), *(("reference=none",) if unread else ()))
    jobs = _jobs(*compose_cell(table, column, overrides, selection), every, row.study)
    baselines = (
        _jobs(*compose_cell(table, column, (*row.baseline, "reference=none"), selection), every, "")
        if row.baseline
        else ()
    )
    return replace(cell, jobs=jobs, baselines=baselines, seeds=frozenset(to_run))


def _jobs(overrides: Sequence[str], plain: dict[str, Any], seeds: Sequence[int], study: str) -> tuple[Job, ...]:
    config = from_plain(plain)
    return tuple(Job((*overrides, f"seed={seed}"), config.changed(seed=seed), study) for seed in seeds)
