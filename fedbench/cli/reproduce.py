"""`python -m fedbench.reproduce table=NAME ...`: run what a table lacks, set every cell beside the published value."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbench.cli import command, making
from fedbench.core.errors import ConfigError, FedbenchError

if TYPE_CHECKING:
    from pathlib import Path

    from fedbench.tables.cell_config import Wish
    from fedbench.tables.job import Job
    from fedbench.tables.plan import Plan
    from fedbench.tables.result import TableResult
    from fedbench.tables.scale import Scale
    from fedbench.tables.spec import TableSpec

HELP = """\
python -m fedbench.reproduce table=NAME [KEY=VALUE ...] [--dry-run]

  table=NAME           one of `python -m fedbench.list tables`; all, with --dry-run: the sum over all tables, modelled
  scale=paper          paper | half | quick | smoke (conf/scale/); only paper gets verdicts
  rows=A,B columns=1,2 run only these, by label or number from 1; the others keep what they have
  seeds=5              that many, or a list: seeds=[0,3]
  substitute=NAME      a data set in place of the table's own; the title says so, no verdicts
  jobs=N               runs at once (default: one a core, on a GPU one)
  results=results      where the filled table goes; the runs themselves go to runs_dir
  retry=false          true: run failed cells again
  dry_run=false        true, or --dry-run: show the plan and stop
  --device NAME        with --dry-run: model that GPU (h200 | h100 | a100 | l4 | rtx4090), whatever is finished here
  render=false         true: draw the table again from its files, look at no run

Everything else is an override of every run: model=lenet5 protocol.rounds=20 hardware=cpu runs_dir=DIR. It gets a folder
of its own and no verdicts, unless the table says that the paper leaves it open (left_open: partition_seed=0, say, or
reference_seed=100). Hydra's launchers run elsewhere: hydra/launcher=submitit_slurm (pip install
hydra-submitit-launcher) and its options.
The same command again runs only what is missing.
"""


EVERY = "all"  # tables


@dataclass(frozen=True)
class Request:
    """What the command line asks for, but for the overrides of the runs."""

    table: str
    scale: str = "paper"
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    substitute: str = ""
    jobs: int = 0
    results: str = "results"
    retry: bool = False
    dry_run: bool = False
    device: str = ""
    render: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, run, fill and draw one table; returns the exit code (1: a cell failed)."""
    return command.run("python -m fedbench.reproduce", arguments, _main)


def _main(arguments: Sequence[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0 if arguments else 2
    return reproduce(*read(arguments))


def read(arguments: Sequence[str]) -> tuple[Request, list[str]]:
    """(the request, overrides of the runs and of Hydra) of a command line.

    Raises:
        ConfigError: an argument that is no KEY=VALUE, or a value of the wrong type.
    """
    import dataclasses

    from fedbench.config.registry import typed

    own = {f.name for f in dataclasses.fields(Request)}
    values: dict[str, Any] = {}
    overrides = []
    for text in _keyed(arguments):
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"'{text}' is no KEY=VALUE; see python -m fedbench.reproduce --help")
        if key not in own:
            overrides.append(text)
        elif key in ("rows", "columns"):
            values[key] = [part.strip() for part in value.strip("[]").split(",")]
        else:
            values[key] = making.value(text, value)
    if "seeds" in values:
        values["seeds"] = making.seeds(values["seeds"])
    return typed(Request, values, "the command line"), overrides


def _keyed(arguments: Sequence[str]) -> list[str]:
    """The arguments with `--dry-run` and `--device NAME` as KEY=VALUE."""
    found: list[str] = []
    for text in arguments:
        if found and found[-1] == "--device":
            found[-1] = f"device={text}"
        else:
            found.append("dry_run=true" if text == "--dry-run" else text)
    return found


def reproduce(request: Request, overrides: Sequence[str]) -> int:
    """Fill one table; returns 1 if a run that was asked for has no result, else 0."""
    from fedbench.tables import fill, plan, recorded, scale, spec, store

    if request.table == EVERY or request.device:
        return _model(request, overrides)
    table = spec.load(request.table)
    launcher, at_once = making.launcher(request.jobs, overrides)
    wish = _wish(request, overrides, table, scale.load(request.scale))
    folder = store.folder_of(request.results, table.name, plan.circumstances(table, wish))
    if request.render:
        from fedbench.tables.render import write

        write(folder)
        return 0
    planned = plan.make(table, wish, recorded.read(folder))
    missing = [job for job in planned.missing() if request.retry or not job.failure]
    _announce(planned, missing, at_once)
    if request.dry_run:
        return 0
    _require_cells(planned)
    if missing:
        _run(missing, launcher, table)
    from fedbench.tables.render import write

    with store.alone(folder):
        if missing:
            planned = plan.make(
                table, wish, recorded.read(folder)
            )  # another call may have added cells meanwhile
        filled = fill.fill(planned)
        store.save(folder, filled, fill.rows(planned))
        store.save_curves(folder, fill.curves(planned))
        store.save_matrices(folder, fill.matrices(planned))
        write(folder)
    _show(filled, folder)
    return 1 if _tell_lacking(planned) else 0


def planned(request: Request, overrides: Sequence[str]) -> Plan:
    """What the request asks for, as it stands."""
    from fedbench.tables import plan, recorded, scale, spec, store

    table = spec.load(request.table)
    wish = _wish(request, overrides, table, scale.load(request.scale))
    folder = store.folder_of(request.results, table.name, plan.circumstances(table, wish))
    return plan.make(table, wish, recorded.read(folder))


def _show(filled: TableResult, folder: Path) -> None:
    """The table, where it was written, and what to look at next."""
    from fedbench.results.console import Output
    from fedbench.tables.render import terminal

    console = Output() if sys.stdout.isatty() else Output(width=120)
    console.print(terminal.render(filled))
    print(
        f"table: {folder / 'table.md'}; with curves and matrices: python -m fedbench.report {folder.parents[1]}"
    )


def _model(request: Request, overrides: Sequence[str]) -> int:
    """Show what a table, or every one, would take on a GPU."""
    import dataclasses

    from fedbench.cli import day
    from fedbench.tables import scale, spec

    if not request.dry_run:
        raise ConfigError("table=all and --device only tell what it would take: add --dry-run")
    every = request.table == EVERY
    tables = [spec.load(name) for name in (spec.names() if every else [request.table])]
    wish = _wish(request, overrides, tables[0], scale.load(request.scale))
    if every:  # no choice among the first one's rows
        wish = dataclasses.replace(wish, rows=(), columns=())
    day.show(tables, wish, request.device)
    return 0


def _require_cells(planned: Plan) -> None:
    """Refuse to write a table without a single cell, as where all of its data is missing."""
    from fedbench.tables.plan import PENDING

    if not any(entry.jobs for entry in planned.entries):
        reasons = dict.fromkeys(each.reason for each in planned.entries if each.reason != PENDING)
        raise FedbenchError(f"no cell of {planned.spec.name} can be filled here: {'; '.join(reasons)}")


def _tell_lacking(planned: Plan) -> int:
    """Say which of the runs asked for have no result, and why; how many they are."""
    lacking = planned.missing()
    for job in lacking:
        reason = job.failure or "another process is at it, or was stopped; the same command goes on"
        word = "failed" if job.failure else "not finished"
        print(f"{word}: {' '.join(job.overrides)}: {reason}", file=sys.stderr)
    return len(lacking)


def _wish(request: Request, overrides: Sequence[str], table: TableSpec, scale: Scale) -> Wish:
    from fedbench.tables.cell_config import Wish

    mine = [text for text in overrides if not text.lstrip("+~").startswith("hydra")]
    settings = tuple(text for text in mine if making.is_setting(text))
    changed = tuple(text for text in mine if not making.is_setting(text))
    settings = ("progress=none", *settings)
    chosen = table.only(request.rows, request.columns)
    rows, columns = ([each.label for each in line] for line in (chosen.rows, chosen.columns))
    return Wish(scale, request.seeds, request.substitute, changed, settings, tuple(rows), tuple(columns))


def _announce(planned: Plan, missing: Sequence[Job], at_once: int) -> None:
    """The plan: cells, runs, what is there, what cannot be run, how long the rest takes."""
    from fedbench.results.console import Output
    from fedbench.tables.estimate import told
    from fedbench.tables.plan import PENDING

    console = Output(highlight=False)
    jobs = planned.jobs
    failed = sum(1 for job in planned.missing() if job.failure)
    done = len(jobs) - len(planned.missing())
    console.print(f"{planned.spec.title}", style="bold")
    asked = sum(bool(entry.asked) for entry in planned.entries)
    console.print(
        f"{asked} cells, seeds {', '.join(map(str, planned.seeds))}, {len(jobs)} runs: "
        f"{done} finished, {failed} failed, {len(missing)} to do, {at_once} at once"
    )
    reasons: dict[str, list[str]] = {}
    for entry in planned.entries:
        if entry.reason and entry.reason != PENDING:
            reasons.setdefault(entry.reason, []).append(f"{entry.row.label} / {entry.column.label}")
    for reason, cells in reasons.items():
        console.print(f"{len(cells)} cells: {reason}")
    if missing:
        console.print(f"time: {told(planned, at_once)}")


def _run(missing: Sequence[Job], launcher: Sequence[str], table: TableSpec) -> None:
    making.run(missing, launcher, join_seeds=not any(metric.timing for metric in table.metrics))
