"""`python -m fedbench evidence`: as many missing published values as fit into some hours, the cheapest first."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.table import Table

from fedbench.config import groups
from fedbench.config.arguments import asks_for_help
from fedbench.config.compose import key_of
from fedbench.config.messages import INCOMPLETE, OK
from fedbench.core.errors import ConfigError
from fedbench.core.signals import Stopped
from fedbench.core.tables import grouped
from fedbench.papers import spec
from fedbench.papers.reproduce import RETRY, TABLE_KEYS, launcher_of, make_runs, plan_of, select, write_table
from fedbench.papers.selection import Selection
from fedbench.runs.progress import Output, rough_seconds

if TYPE_CHECKING:
    from fedbench.papers.plan import Job

HELP = """\
python -m fedbench evidence [TABLE ...] [KEY=VALUE ...] [--dry-run]

Make the runs that published values still lack, at the papers' settings, whole columns at a time, first those with most
values an hour. Each finished run is stored below results/ at once. When the time is over, runs save and stop. The same
command continues. On this machine it resumes begun runs; on another machine it starts from the finished ones.

  TABLE ...            from `python -m fedbench list tables`; none: every table of a paper
  hours=1              stop after so many hours
  seeds=3              seeds of each cell, or a list: seeds=[0,3]; fewer than three decide nothing
  jobs=N               runs at once (default: one a core, on a GPU one)
  results=results      the folder of the filled tables; the runs themselves go to runs_dir
  retry=false          true: run failed cells again
  dry_run=false        true, or --dry-run: show values and hours by column, and stop

Settings that change no result may follow: runs_dir=DIR hardware=cpu, and launcher=NAME as for reproduce.

Exit code: 0, all values that this machine can run are there; 3, the time was over or a run failed; 2, refused; 1, a
defect of the program.
"""
KEYS = ("hours", "seeds", "jobs", "results", "retry", "dry_run")
SEEDS = (0, 1, 2)  # an interval from two seeds is 4.5 standard deviations wide to each side, from three 1.7


@dataclass(frozen=True)
class ColumnWork:
    """The missing runs of a table's column, and their cost."""

    selection: Selection  # of this column
    missing: tuple[Job, ...]
    values: int  # published values without all their seeds
    seconds: float  # of all runs, one after another

    @property
    def rate(self) -> float:
        """Published values an hour of one run at a time."""
        return 3600 * self.values / max(self.seconds, 1.0)


def evidence_command(arguments: Sequence[str]) -> int:
    """Make the runs that published values still lack, cheapest first, for some hours; return the exit code."""
    if asks_for_help(arguments):
        print(HELP, end="")
        return OK
    begun = time.monotonic()
    selection, names = select(arguments, KEYS)
    if changed := selection.changed:
        if key_of(changed[0]) in TABLE_KEYS:
            raise ConfigError(f"{changed[0]} is a key of reproduce; evidence takes names of tables, {', '.join(KEYS)}")
        raise ConfigError(f"{changed[0]} changes results, so they would not have the papers' settings; see --help")
    selection = replace(selection, seeds=selection.seeds or SEEDS)
    launcher, at_once = launcher_of(selection)
    for table in map(spec.load_spec, names):
        if not any(table.published(*place) for place in table.places() if not place[-1].timing):
            raise ConfigError(
                f"{table.name} has no published values (times do not count); python -m fedbench reproduce "
                f"table={table.name} fills it"
            )
    works, reasons, failed = survey(selection, names or paper_tables())
    chosen = ordered(works, 3600 * selection.hours * at_once)
    _show(chosen, reasons, at_once, failed)
    if selection.dry_run:
        return OK
    left = 3600 * selection.hours - (time.monotonic() - begun)
    made = _make(selection, chosen, launcher, left) if chosen else OK
    return INCOMPLETE if failed else made


def paper_tables() -> list[str]:
    """Return the tables of papers at their own settings, by name."""
    tables = [spec.load_spec(name) for name in groups.names("table")]
    return [table.name for table in tables if table.paper and not table.varies]


def survey(selection: Selection, names: Sequence[str]) -> tuple[list[ColumnWork], dict[str, int], list[Job]]:
    """Return the missing runs of each column that can run here, and the number of values that cannot, by reason.

    A run that several columns need counts in each of them. Last come the runs that failed before and are not retried.

    Raises:
        UnknownName: no such table.
    """
    from fedbench.papers.estimate import estimate

    works, reasons, paces = list[ColumnWork](), dict[str, int](), dict[str, float]()
    failed: dict[str, Job] = {}
    for name in names:
        whole, _ = plan_of(replace(selection, table=name))  # a plan of each column would read and compose all again
        for column in whole.spec.columns:
            labels = (column.label, *column.mean)
            planned = replace(whole, cells=tuple(each for each in whole.cells if each.column.label in labels))
            here = replace(selection, table=name, columns=(column.label,))
            lacking = planned.missing()
            jobs = {job.identity: job for job in lacking if selection.retry or not job.failure}
            lost = {job.identity: job for job in lacking if job.identity not in jobs}
            values = 0
            for cell in (each for each in planned.cells if each.selected):
                metrics = [each for each in planned.spec.metrics if not each.timing]
                printed = sum(planned.spec.published(cell.row, cell.column, each) is not None for each in metrics)
                if cell.asked:
                    values += printed * any(job.identity in jobs for job in cell.asked)
                    failed |= {job.identity: job for job in cell.asked if printed and job.identity in lost}
                elif cell.reason:
                    reasons[cell.reason] = reasons.get(cell.reason, 0) + printed
            if values:
                missing = tuple(jobs.values())
                works.append(ColumnWork(here, missing, values, estimate(planned, missing, paces).seconds))
    return works, reasons, [*failed.values()]


def ordered(works: Sequence[ColumnWork], seconds: float) -> list[ColumnWork]:
    """Return the columns by values per hour; those that fit into `seconds` one after another come first."""
    fits, rest = list[ColumnWork](), list[ColumnWork]()
    for work in sorted(works, key=lambda each: -each.rate):
        (fits if work.seconds <= seconds else rest).append(work)
        seconds -= work.seconds if work.seconds <= seconds else 0.0
    return [*fits, *rest]


def _show(works: Sequence[ColumnWork], reasons: dict[str, int], at_once: int, failed: Sequence[Job] = ()) -> None:
    table = Table("table", "column", "values", "runs", f"hours, {at_once} at once", "values an hour")
    for work in works:
        column, hours = work.selection.columns[0], work.seconds / at_once / 3600
        table.add_row(
            work.selection.table,
            column,
            str(work.values),
            str(len(work.missing)),
            *((f"{hours:.2f}", f"{work.rate * at_once:.2f}") if work.seconds else ("studies", "not timed")),
        )
    console = Output(width=120, highlight=False)
    if works:
        console.print(table)
    runs = {job.identity for work in works for job in work.missing}
    total = sum(work.seconds for work in works) / at_once
    counted = f"{sum(work.values for work in works)} values, {len(runs)} runs, about {rough_seconds(total)}"
    nothing = f"nothing is missing{' that can run here' * bool(reasons)}{' but runs that failed' * bool(failed)}"
    console.print(counted if works else nothing)
    for reason, values in reasons.items():
        console.print(f"{values} values: {reason}")
    _tell_failed(failed)


def _tell_failed(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if job.failure:
            print(f"failed: {shlex.join(job.overrides)}: {job.failure}; {RETRY}", file=sys.stderr)


def _make(selection: Selection, works: Sequence[ColumnWork], launcher: Sequence[str], seconds: float) -> int:
    """Make the runs in the order of their columns until `seconds` are over; write a table after each new run."""
    jobs = list({job.identity: job for work in works for job in work.missing}.values())
    tables = grouped((work.selection.table, job.identity) for work in works for job in work.missing)
    written: set[str] = set()

    def write(finished: Sequence[Job]) -> None:
        new = {job.identity for job in finished} - written
        for name, needed in tables.items():
            if new.intersection(needed):
                write_table(replace(selection, table=name))
        written.update(new)

    over = threading.Event()

    def end() -> None:
        over.set()
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(max(seconds, 1.0), end)
    timer.daemon = True
    timer.start()
    try:
        make_runs(jobs, launcher, write=write)
    except Stopped as stop:
        if not over.is_set():  # somebody else's signal
            raise
        print(f"the time is over; the same command resumes {stop.where}".rstrip())
    finally:
        timer.cancel()
    _tell_failed(jobs)
    print(f"{len(written)} of {len(jobs)} runs are below {selection.results}")
    return OK if len(written) == len(jobs) else INCOMPLETE
