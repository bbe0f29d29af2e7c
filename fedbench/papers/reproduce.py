"""`python -m fedbench reproduce` and `figure`: make the missing runs of a table or of figures, and draw them."""

from __future__ import annotations

import difflib
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress

from fedbench.config.arguments import asks_for_help, split_arguments
from fedbench.config.compose import compose
from fedbench.config.fields import typed
from fedbench.config.messages import INCOMPLETE, OK, REFUSED
from fedbench.core.errors import ConfigError, FedbenchError, unknown
from fedbench.core.locks import held
from fedbench.core.signals import Stopped
from fedbench.core.tables import grouped
from fedbench.papers import measures, published, recorded, render, spec, store, summary, verdict
from fedbench.papers.recorded import RunCounts
from fedbench.papers.selection import Selection
from fedbench.papers.spec import TableSpec
from fedbench.papers.store import PENDING, Cell, TableResult
from fedbench.papers.verdict import Verdict
from fedbench.plots import style
from fedbench.runs.progress import Output, amount

if TYPE_CHECKING:
    from fedbench.papers.figure_plan import FigurePlan, FigureSpec
    from fedbench.papers.plan import CellRuns, Job, Plan

REPRODUCE_HELP = """\
python -m fedbench reproduce table=NAME [KEY=VALUE ...] [--dry-run]

  table=NAME           one of `python -m fedbench list tables`; NAME alone means the same
  scale=paper          paper | half | quick | smoke (conf/scale/); only paper gets verdicts
  rows=A,B columns=1,2 run only these, by label or number from 1; the others stay as they are
  seeds=5              number of seeds, or a list: seeds=[0,3]
  substitute=NAME      another data set; the title names it, and there are no verdicts
  jobs=N               runs at once (default: one a core, on a GPU one)
  results=results      the folder of the filled table; the runs themselves go to runs_dir
  retry=false          true: run failed cells again
  dry_run=false        true, or --dry-run: show the plan with time, memory and disk on this machine, and stop
  formats=csv,tex      csv adds cells.csv (every value) and the table's tests, tex adds table.tex

Everything else is an override of every run: model=lenet5 protocol.rounds=20 hardware=cpu runs_dir=DIR. The table then
has its own folder and no verdicts, unless its YAML lists the key in left_open, such as partition_seed.
launcher=NAME launcher.KEY=VALUE run it elsewhere: joblib, submitit_slurm, ray, eight_cards, slurm_account, ray_cluster
(docs/hardware.md). The same command again runs only what is missing.

Exit code: 0, every selected cell is there; 3, some failed, are not finished or lack their data; 2, refused; 1, a defect
of the program; 130 and 143, stopped.
"""
FIGURE_HELP = """\
usage: python -m fedbench figure NAME [NAME ...] [KEY=VALUE ...] [--dry-run]

  NAME                 such as fedsac_f1, or all; `python -m fedbench list figures` lists them
  scale=paper          paper: the paper's setting | open: open data | quick: minutes on digits. If the paper's data are
                       missing, paper draws the open setting with a message
  seeds=5              number of seeds, or a list: seeds=[0,3]
  jobs=N               runs at once (default: one a core, on a GPU one)
  results=results      the figures go to DIR/figures/SCALE/; the runs themselves go to runs_dir
  dry_run=false        true, or --dry-run: show what is to be run and stop
  formats=svg,png      also pdf

Everything else is an override of every run, and the caption names it: protocol.rounds=5 hardware=cpu runs_dir=DIR.
The same command again runs only what is missing.
"""
REDRAW_HELP = """\
usage: python -m fedbench redraw [RESULTS] [formats=csv,tex,pdf]

Draw every filled table, leaderboard and figure below RESULTS (default: results) again from its files, without runs:
tables and leaderboards as Markdown, figures as svg and png. csv adds cells.csv (every value) and the tests that a table
allows, tex adds table.tex, pdf draws figures as pdf.
"""
LISTS = ("rows", "columns", "formats")  # keys whose values are names, separated by commas
COMMON = ("scale", "seeds", "jobs", "results", "dry_run")
TABLE_KEYS = (*COMMON, "table", "rows", "columns", "substitute", "retry", "formats")
FIGURE_KEYS = (*COMMON, "formats")
ELSEWHERE = "another process is running it, or was stopped; the same command resumes"
RETRY = "retry=true tries it again"


# What a command line selects.


def select(arguments: Sequence[str], keys: Collection[str] = TABLE_KEYS) -> tuple[Selection, list[str]]:
    """Return a command line's selection, and its words that are not KEY=VALUE.

    Raises:
        ConfigError: a value of the wrong type, or an override that no plan accepts.
    """
    given = ["dry_run=true" if text == "--dry-run" else _of_hydra(text) for text in arguments]
    texts, others, words = split_arguments(given, keys)
    for key in (text.partition("=")[0] for text in others):  # a key of the command, mistyped, and not one of a run
        if key.isidentifier() and difflib.get_close_matches(key, keys, cutoff=0.75) and key not in compose():
            raise unknown("key", key, keys)
    values: dict[str, Any] = {"overrides": [_of_every_run(text) for text in others]}
    for key, word in texts.items():
        if key in LISTS:
            values[key] = [part.strip() for part in word.strip("[]").split(",")]
        else:
            values[key] = _seeds(word) if key == "seeds" else word
    return typed(Selection, values, "the command line"), words


def _of_hydra(text: str) -> str:
    """Return `launcher=ray launcher.num_gpus=1` in Hydra's words, hydra/launcher=ray hydra.launcher.num_gpus=1."""
    if text.startswith(("launcher=", "launcher.")):
        return f"hydra{'/' if text[8] == '=' else '.'}{text}"
    return text


def _seeds(given: str) -> list[int]:
    """Return `seeds=5` as the first five; `seeds=[0,3]` as it is."""
    listed: Any = None
    with suppress(ValueError):  # JSON, as YAML takes 1:30 for 90 and 010 for 8
        listed = json.loads(given)
    listed = list(range(listed)) if type(listed) is int else listed
    if not isinstance(listed, list) or not listed or not all(type(each) is int and each >= 0 for each in listed):
        raise ConfigError(f"seeds={given}: give a number (seeds=5, at least 1) or a list (seeds=[0,3])")
    return sorted({*listed})


def _of_every_run(override: str) -> str:
    """Return `override`, which applies to every run of a plan.

    Raises:
        ConfigError: it sets `seed`, which each run of a cell has, or `force`, as a plan only makes missing runs.
    """
    key, _, given = override.lstrip("+~").partition("=")
    if key == "seed":
        raise ConfigError(f"{override}: a cell has a run for each of its seeds; use seeds=[{given.strip('[]')}]")
    if key == "force":
        raise ConfigError(
            f"{override}: finished runs are not repeated here; stale=rerun repeats runs of other code, and retry=true "
            "failed runs"
        )
    return override


# Tables.


def reproduce_command(arguments: Sequence[str]) -> int:
    """Fill a table of a paper and print it; return the exit code."""
    if not arguments or asks_for_help(arguments):
        print(REPRODUCE_HELP, end="")
        return OK if arguments else REFUSED
    selection, words = select(arguments)
    if words and not selection.table and not words[0].startswith("-"):
        selection = replace(selection, table=words.pop(0))
    if words:
        raise ConfigError(f"'{words[0]}' is no KEY=VALUE; see python -m fedbench reproduce --help")
    if not selection.table:
        raise ConfigError("which table? table=NAME; python -m fedbench list tables has the names")
    return reproduce(selection)


def reproduce(selection: Selection) -> int:
    """Plan, run, fill and draw one table; return INCOMPLETE if a selected cell is missing, else OK."""
    launcher, at_once = launcher_of(selection)
    render.formats_of(selection.formats)  # refuses an unknown one before anything runs
    planned, folder = plan_of(selection)
    missing = [job for job in planned.missing() if selection.retry or not job.failure]
    announce(planned, missing, at_once, folder)
    if selection.dry_run:
        for line in _mirrored(planned.spec):
            print(line)
        return OK
    if not any(cell.jobs for cell in planned.cells):  # as without its data: nothing is written
        reasons = dict.fromkeys(cell.reason for cell in planned.cells if cell.reason != PENDING)
        raise FedbenchError(f"no cell of {planned.spec.name} can be filled here: {'; '.join(reasons)}")
    try:
        if missing:
            make_runs(missing, launcher)
    except Stopped:
        if any(job.finished for job in missing):  # rows outlive the folders of runs
            write_table(selection)
        raise
    planned, table = write_table(selection)
    console = Output(width=120)
    console.print(render.draw_terminal(table, console.width))
    return conclude(planned, folder, len(missing), selection.results)


def write_table(selection: Selection) -> tuple[Plan, TableResult]:
    """Fill the table of a selection with the finished runs, draw it, and return its plan and itself."""
    from fedbench.papers import fill

    _, folder = plan_of(selection)
    with held(folder):
        planned, _ = plan_of(selection)  # another call may have added cells meanwhile
        store.save_table(folder, fill.fill(planned), *fill.kept_files(planned))
        table, _ = render.write_drawings(folder, selection.formats)
    return planned, table


def plan_of(selection: Selection) -> tuple[Plan, Path]:
    """Return the plan of a selection in its present state, and the folder of the filled table."""
    from fedbench.papers import plan

    table = spec.load_spec(selection.table)
    chosen = table.only(selection.rows, selection.columns)  # which may be given by their numbers
    rows, columns = (tuple(line.label for line in lines) for lines in (chosen.rows, chosen.columns))
    selection = replace(selection, rows=rows, columns=columns)
    folder = store.folder_of_table(selection.results, table.name, plan.provenance(table, selection))
    return plan.make(table, selection, recorded.read_stored(folder)), folder


def announce(plan: Plan, missing: Sequence[Job], at_once: int, folder: Path) -> None:
    """Print the plan: cells, runs, which are finished, which cannot run, and the time of the others."""
    from fedbench.papers.estimate import estimate_lines

    console = Output(highlight=False)
    jobs, undone = plan.jobs, plan.missing()
    failed = sum(1 for job in undone if job.failure)
    finished = sum(job.finished for job in jobs)
    recorded = len(jobs) - len(undone) - finished
    console.print(plan.provenance.named(plan.spec), style="bold")
    cells = sum(bool(cell.asked) for cell in plan.cells)
    console.print(
        f"{amount(cells, 'cell')}, {amount(len(jobs), 'run')} of seeds {', '.join(map(str, plan.seeds))}: "
        f"{finished} finished, {f'{recorded} recorded in {folder}, ' if recorded else ''}"
        f"{failed} failed, {len(missing)} to do, {at_once} at once",
        soft_wrap=True,
    )
    for line in _undecidable(plan):
        console.print(line)
    again = {job.identity for job in undone}
    if unkept := [each for job in jobs if job.identity not in again and (each := job.unkept)]:
        lost = ", ".join(dict.fromkeys(text for each in unkept for text in each))
        said = f"not kept by {amount(len(unkept), 'run')} made earlier: {lost}"
        console.print(f"{said}; to make them again, delete their folders")
    reasons = grouped((cell.reason, cell) for cell in plan.cells if cell.reason not in ("", PENDING))
    for reason, lacking in reasons.items():
        console.print(f"{plan.named(lacking)}: {reason}")
    if missing:
        print("timing the runs on this machine ...", file=sys.stderr, flush=True)
        for line in estimate_lines(plan, missing, at_once):
            console.print(line)


def _mirrored(table: TableSpec) -> Iterator[str]:
    """Yield, of a paper's table, cells without a published value, and published values without a cell."""
    if not table.paper or table.varies:
        return
    blank, shown = [], set()
    for row, column, metric in table.places():
        gain = measures.build(metric.measured(row, column)).reads_local
        if column.label in table.parts or (gain and "method=local" in row.overrides):  # no gain over itself
            continue
        if value := table.published(row, column, metric):
            shown.add(value)
        else:
            blank.append((row, column, metric))
    if blank:
        found = amount(len(blank), "cell")
        yield f"no published value: {found}; a line of fedbench/papers/published.csv for each that has one:"
    for row, column, metric in blank:
        given = {"method": row.label, "metric": metric.name, **column.published, **row.published}
        words = (given.get(key, "") for key in ("dataset", "partition", "method", "metric"))
        yield ",".join((table.paper, table.table, *words, "MEAN", "STD", given.get("setting", "")))
    values = [each for each in published.published_values() if (each.paper, each.table) == (table.paper, table.table)]
    for each in values:
        if each not in shown:
            where = " ".join(filter(None, (each.dataset, each.partition, each.method, each.metric, each.setting)))
            yield f"published, and in no cell: {where}: {each.text}; give a row and a column that filter, or correct it"


def _undecidable(plan: Plan) -> Iterator[str]:
    """Yield which requested values no outcome of the seeds could make equivalent, and how many seeds could."""
    clients = plan.stored.table.clients if plan.stored.table else {}
    table = TableResult(plan.spec, (), plan.provenance, clients)
    for metric in plan.spec.metrics:
        found: list[tuple[CellRuns, Verdict]] = []
        for runs in (each for each in plan.cells if each.selected):
            published = plan.spec.published(runs.row, runs.column, metric)
            cell = Cell(runs.row.label, runs.column.label, metric.name, published=published)
            if judged := verdict.undecidable(table, cell, len(runs.jobs or plan.seeds)):
                found.append((runs, judged))
        if found:
            ours = all(math.isfinite(judged.seeds) for _, judged in found)
            ends = sorted(judged.seeds if ours else judged.both for _, judged in found)[:: len(found) - 1 or 1]
            span = " to ".join(dict.fromkeys(f"{each:.0f}" for each in ends)).replace("inf", "no number of")
            cells = plan.named([runs for runs, _ in found])
            yield (
                f"undecidable with these seeds, whatever the outcome: {metric.label} of {cells}; {span} seeds"
                f"{'' if ours else ' on both sides'} could decide"
            )


def conclude(plan: Plan, folder: Path, made: int, results: str) -> int:
    """Say whether every selected cell is there after `made` runs, and if not, why; return the exit code."""
    lacking = plan.missing()
    for failure, jobs in grouped((job.failure, job) for job in lacking).items():
        where, command = plan.of_runs({job.identity for job in jobs}), shlex.join(jobs[0].overrides)
        word, reason, again = ("failed", failure, "; " + RETRY) if failure else ("not finished", ELSEWHERE, "")
        print(f"{word}: {where}: {reason}; as in: {command}{again}", file=sys.stderr)
    cells = [cell for cell in plan.cells if cell.selected]
    identities = {job.identity for job in lacking}
    counts = {
        "cannot be run here": sum(bool(cell.reason) for cell in cells),
        "failed or not finished": sum(
            not cell.reason and any(job.identity in identities for job in cell.needed) for cell in cells
        ),
    }
    there = len(cells) - sum(counts.values())
    rest = "".join(f", {count} {word}" for word, count in counts.items() if count)
    whole = there == len(cells) and not lacking
    print(
        f"{'complete' if whole else 'incomplete'}: {there} of {amount(len(cells), 'cell')} asked for are in "
        f"{folder / 'table.md'}{rest}; {amount(made, 'run')} asked of this call"
    )
    print(f"one page with curves and matrices: python -m fedbench report {results}")
    return OK if whole else INCOMPLETE


def redraw_command(arguments: Sequence[str]) -> int:
    """Draw what is below a folder of results again without training, and count verdicts; return the exit code."""
    if asks_for_help(arguments):
        print(REDRAW_HELP, end="")
        return OK
    from fedbench.papers import figure_plan, standings

    given, others, places = split_arguments(arguments, ("formats",))
    if others:
        raise unknown("option", others[0].partition("=")[0], ["formats"])
    formats = given["formats"].split(",") if given else []
    of_tables = render.formats_of(each for each in formats if each not in style.FORMATS)
    of_figures = tuple(each for each in formats if each in style.FORMATS)
    if len(places) > 1:
        raise ConfigError(f"redraw takes one folder of results, got {' '.join(places)}")
    results = places[0] if places else "results"
    folders, boards = store.table_folders(results), standings.board_folders(results)
    figures = figure_plan.drawn_places(Path(results) / "figures")
    if not (folders or boards or figures):
        raise FedbenchError(f"nothing is filled below {results}; python -m fedbench reproduce table=NAME fills a table")
    behind = RunCounts()
    for folder in folders.values():
        behind += render.write_drawings(folder, of_tables)[1]
        print(folder)
    for folder in boards:
        standings.draw(folder)
        print(folder)
    for place in figures:
        print(figure_plan.redraw(place, *([of_figures] if of_figures else [])).mirrors)
    figure_plan.write_overview(Path(results) / "figures")
    if folders:
        summary.write_summary(Path(results))
        print(behind)
    return OK


# Figures.


def figure_command(arguments: Sequence[str]) -> int:
    """Run and draw figures of a paper; return INCOMPLETE if one could not be made, else OK."""
    if not arguments or asks_for_help(arguments):
        print(FIGURE_HELP, end="")
        return OK if arguments else REFUSED
    from fedbench.papers import figure_plan as plan

    selection, names = select(arguments, FIGURE_KEYS)
    selection = replace(selection, formats=selection.formats or ("svg", "png"))
    for kind in selection.formats:
        if kind not in style.FORMATS:
            raise unknown("format", kind, style.FORMATS)
    if selection.scale not in plan.SETTINGS:
        raise unknown("scale of figures", selection.scale, plan.SETTINGS)
    if not names:
        raise ConfigError("which figure? a name such as fedsac_f1, or all; see python -m fedbench figure --help")
    specs = plan.ordered_specs() if "all" in names else [plan.load_figure_spec(name) for name in names]
    return _make_figures(specs, selection)


def _make_figures(specs: Sequence[FigureSpec], selection: Selection) -> int:
    from fedbench.papers import figure_plan as plan

    launcher, at_once = launcher_of(selection)
    folder, plans = Path(selection.results) / "figures", _figure_plans(specs, selection)
    begun = time.monotonic()
    missing = plan.merged_jobs([job for each in plans for job in each.missing()])
    print(f"{amount(len(plans), 'figure')}, {amount(len(missing), 'run')} to make, {at_once} at once")
    if selection.dry_run:
        return OK
    if missing:
        make_runs(missing, launcher)
    failed = sum(not _draw_figure(each, folder) for each in plans)
    plan.write_overview(folder)
    print(f"{(time.monotonic() - begun) / 60:.0f} minutes; all figures: {folder / 'README.md'}")
    return INCOMPLETE if failed or len(plans) < len(specs) else OK


def _figure_plans(specs: Sequence[FigureSpec], selection: Selection) -> list[FigurePlan]:
    """Return the plans of the figures that can be planned; one alone that cannot is an error."""
    from fedbench.papers import figure_plan as plan

    plans = []
    for each in specs:
        try:
            plans.append(plan.make_plan(each, selection))
        except FedbenchError as error:
            if len(specs) == 1:
                raise
            print(f"{each.name}: {error}", file=sys.stderr)
            continue
        if reason := plans[-1].substituted:
            print(f"{each.name}: {reason}; drawn at scale={plans[-1].scale} instead")
    return plans


def _draw_figure(earlier: FigurePlan, folder: Path) -> bool:
    """Draw a figure if its runs are finished; else say why not."""
    from fedbench.papers import figure_arrays as arrays
    from fedbench.papers import figure_plan as plan

    current = plan.make_plan(earlier.spec, earlier.selection)  # what was missing is there now
    if lacking := current.missing():
        job = lacking[0]
        reason = job.failure or f"not finished; {current.command()} resumes"
        line = f"{current.spec.name}: {len(lacking)} runs are missing: {' '.join(job.overrides)}: {reason}"
        print(line, file=sys.stderr)
        return False
    drawn = plan.save_figure(folder, current, arrays.collect(current), current.selection.formats)
    print(f"{drawn.mirrors} ({drawn.scale}): {folder / drawn.scale / drawn.name}")
    return True


# The runs of both, and of leaderboards.


def launcher_of(selection: Selection) -> tuple[list[str], int]:
    """Return (Hydra overrides that choose the launcher, runs at once)."""
    import torch

    from fedbench.engine.workers import available_workers

    if selection.jobs < 0:
        raise ConfigError(f"jobs={selection.jobs}: give the number of runs at once, at least 1, or 0 for one a core")
    jobs = selection.jobs or (1 if torch.cuda.is_available() else available_workers())
    if selection.launcher:
        if selection.jobs:
            raise ConfigError(
                f"jobs={jobs} has no effect with a launcher; set its own number (joblib: launcher.n_jobs)"
            )
        compose(selection.launcher)  # refuses what there is none of, before a step is timed
        return list(selection.launcher), jobs
    return [] if jobs == 1 else ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"], jobs


def make_runs(
    missing: Sequence[Job], launcher: Sequence[str], *, write: Callable[[Sequence[Job]], None] | None = None
) -> None:
    """Make the runs with a progress bar; `write` is called now and then with the finished ones.

    Runs of Local, with which others are compared, come first; with `write` all keep their order.
    """
    from fedbench.papers.execute import run_all

    first = [job for job in missing if job.config.labels["method"] == "local"]
    rest = [job for job in missing if job.config.labels["method"] != "local"]
    with Progress(console=Output()) as progress:
        bar = progress.add_task("runs", total=len(missing))

        def watch(finished: Sequence[Job], failed: Sequence[Job]) -> None:
            text = f"runs, {len(failed)} failed" if failed else "runs"
            progress.update(bar, completed=len(finished) + len(failed), description=text)
            if write is not None:
                write(finished)

        run_all((missing,) if write else (first, rest), launcher, watch)
