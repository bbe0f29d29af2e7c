"""`python -m fedbench leaderboard`: tune and run the missing runs of a board, judge it, draw it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.config.arguments import asks_for_help
from fedbench.config.messages import INCOMPLETE, OK, REFUSED
from fedbench.core.errors import ConfigError, Diverged, UnknownName, unknown
from fedbench.core.files import make_folder
from fedbench.core.locks import held
from fedbench.papers.reproduce import launcher_of, make_runs, select
from fedbench.runs.progress import Output, amount, rough_seconds

if TYPE_CHECKING:
    from fedbench.papers.boards import Ledger
    from fedbench.papers.selection import Selection

LEADERBOARD_HELP = """\
usage: python -m fedbench leaderboard board=NAME [KEY=VALUE ...] [--dry-run]

  board=NAME           one of conf/leaderboard/
  rows=A,B             only these and the board's references; the others stay as they are
  seeds=3              only final runs of seeds 0, 1 and 2, or of those in a list: seeds=[0,3]
  jobs=N               runs at once (default: one a core, on a GPU one)
  results=results      the board goes to RESULTS/leaderboard/NAME/; the runs themselves go to runs_dir
  retry=false          true: run failed trials again
  dry_run=false        true, or --dry-run: measure a step of every row, show hours, and stop

A board runs as declared. Other settings are allowed only if they change no result, such as runs_dir=DIR hardware=cpu.
The same command again runs what is missing, and what other code made.

Exit code: 0, every selected row is there; 3, some are missing; 2, refused; 1, a defect of the program; 130 and 143,
stopped.
"""
KEYS = ("board", "rows", "seeds", "jobs", "results", "retry", "dry_run")
NAMED = 3  # rows that a line about what is missing names


def leaderboard_command(arguments: Sequence[str]) -> int:
    """Tune all methods alike and compare them on a board, which takes hours; return the exit code."""
    if not arguments or asks_for_help(arguments):
        print(LEADERBOARD_HELP, end="")
        return OK if arguments else REFUSED
    from fedbench.papers import boards

    selection, words = select(arguments, KEYS)
    if words or not selection.board:
        wrong = f"'{words[0]}' is no KEY=VALUE" if selection.board else "which board? board=NAME"
        raise ConfigError(f"{wrong}; see python -m fedbench leaderboard --help")
    if selection.changed:
        raise ConfigError(
            f"{selection.changed[0]}: a board runs only as declared; copy its YAML to another name and change it there"
        )
    board = boards.load_board(selection.board)
    if lost := {*selection.seeds} - {*board.seeds}:
        raise ConfigError(f"seeds: the board has no seed {min(lost)}; its seeds are {list(board.seeds)}")
    for name in selection.rows:
        if name not in board.all_rows:
            raise unknown("row of the board", name, board.all_rows)
    rows = [name for name in board.all_rows if name in (*selection.rows, *board.references)] if selection.rows else []
    ledger = boards.Ledger(board, Path(selection.results) / "leaderboard" / board.name, selection.settings)
    if selection.dry_run:
        for line in hours(ledger, rows, launcher_of(selection)[1], selection.seeds):
            print(line, flush=True)
        return OK
    if unfinished := fill_board(ledger, selection, rows):
        print(f"incomplete: {unfinished}", file=sys.stderr)
        return INCOMPLETE
    return conclude_board(ledger, selection.results, selection.seeds, rows)


def conclude_board(ledger: Ledger, results: str, seeds: Sequence[int] = (), rows: Sequence[str] = ()) -> int:
    """Draw the board, print the missing ones of the selected rows and seeds, and return the exit code."""
    from fedbench.papers import standings, store

    drawn = standings.draw(ledger.folder)
    print(f"{ledger.folder / standings.PAGE}: {amount(drawn.runs, 'run')}, {drawn.cost:.2f} hours by their clocks")
    if store.table_folders(results):  # a page has one at least
        print(f"with all tables on one page: python -m fedbench report {results}")
    lacking, board = dict[str, list[str]](), ledger.board
    said = {(each.label, line.row): line.lacks for each in drawn.federations for line in each.lines}
    for federation, row in product(board.federations, rows or board.all_rows):
        lost = ledger.lost(federation.label, row, seeds or board.seeds)
        if lost and board.has(federation, row):
            why = said.get((federation.label, row), "not run") or f"without a score: seeds {', '.join(map(str, lost))}"
            lacking.setdefault(why, []).append(f"{row} in {federation.label}")
    for why, named in lacking.items():
        further = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        print(f"incomplete: {why}: {', '.join(named[:NAMED])}{further}", file=sys.stderr)
    return INCOMPLETE if lacking else OK


def fill_board(ledger: Ledger, selection: Selection, rows: Sequence[str] = ()) -> str:
    """Run what `ledger` lacks, stage by stage, and record it; stop at a stage with missing runs and return these.

    Raises:
        DataMissing, DataCorrupt: the data of a run cannot be read here.
    """
    from fedbench.papers.boards import FINAL, stages
    from fedbench.runs.fingerprint import content

    launcher, _ = launcher_of(selection)
    make_folder(ledger.folder)
    for stage in stages(ledger.board, selection.seeds):
        entries = list(ledger.entries(stage, rows))
        missing = ledger.missing(entries, retry=selection.retry)
        name = f"{FINAL}, seed {stage.seeds[0]}" if stage.name == FINAL else stage.name
        Output(highlight=False).print(f"{name}: {amount(len(entries), 'run')}, {len(missing)} to do")
        for entry in {each.federation.label: each for each in missing}.values():
            content(entry.job.config.dataset)  # without its data each run would fail, and be recorded
        try:
            if missing:
                make_runs([entry.job for entry in missing], launcher)
        finally:  # rows outlive the folders of runs: another machine goes on where this one was stopped
            with held(ledger.folder):
                ledger.record(entries)
                ledger.save()
        if lost := ledger.missing(missing):  # the next stage would go on without these trials
            first = " ".join(lost[0].job.overrides)
            again = "wait for the process that makes them, if there is one, then give the same command again"
            return f"{amount(len(lost), 'run')} of {name} did not end, as {first}; {again}"
    return ""


def hours(ledger: Ledger, rows: Sequence[str], at_once: int, seeds: Sequence[int] = ()) -> Iterator[str]:
    """Yield the time of a board's missing runs, from one timed step of each row's method; nothing is trained.

    Raises:
        DataMissing: the data of a federation are not here.
    """
    from fedbench.engine.hooks import HookError
    from fedbench.papers.boards import BoardTrial, stages
    from fedbench.papers.estimate import START, STARTED
    from fedbench.runs.estimate import RunTimes, contention

    board, times, total, runs = ledger.board, RunTimes(), 0.0, 0
    for row in rows or board.all_rows:
        taken, reason = 0.0, ""
        for stage, federation in product(stages(board, seeds), board.federations):
            if not board.has(federation, row):
                continue
            count = len(stage.seeds) * (1 if stage.rung is None else board.trials // 2**stage.rung)
            job = ledger.job(stage, federation, row, BoardTrial(0), stage.seeds[0])
            count -= ledger.recorded(stage, federation, row, job.folder.today)
            try:
                if count > 0:
                    taken, runs = taken + count * (times.timed_as_it_is(job.config) + STARTED), runs + count
            except (ConfigError, UnknownName, Diverged, HookError) as error:
                reason = str(error)
        yield f"{row}: {f'cannot be built: {reason}' if reason else rough_seconds(taken)}"
        total += taken
    yield (
        f"{amount(runs, 'run')}, about {total / 3600:.1f} hours of one core and "
        f"{rough_seconds(contention() * (START + total / at_once))} here now with {at_once} at once, without what "
        "servers do"
    )
