"""`python -m fedbench.watch [table=NAME ...]`: how far a table is that another terminal fills, or which are filled.

Takes the arguments of fedbench.reproduce. Ends when no run is left, with exit code 3 if one failed. In a pipe or a file
it prints a line for each row whose state changed. Without a table it lists those that are being filled with runs in
runs_dir=DIR (default: runs), each with the command that watches it.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fedbench.cli import command
from fedbench.config.messages import INCOMPLETE, OK

if TYPE_CHECKING:
    from rich.table import Table

    from fedbench.tables.job import Job
    from fedbench.tables.plan import Plan

PATIENCE = 5.0  # seconds between two looks
COUNTS = ("finished", "failed", "to do")  # of runs; those recorded are finished
ONCE = "--once"
RUNS_DIR = "runs_dir="


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the state until all is done, or `--once`; returns the exit code."""
    return command.run("python -m fedbench.watch", arguments, _main)


def _main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(
            f"usage: python -m fedbench.watch [table=NAME] [KEY=VALUE ...] [{ONCE}]\n\n{__doc__.partition('.')[2]}"
        )
        return OK
    asked = [text for text in arguments if text != ONCE]
    if all(text.startswith(RUNS_DIR) for text in asked):
        return _list(*(text.removeprefix(RUNS_DIR) for text in asked))
    return _watch(asked, once=ONCE in arguments)


def _list(runs_dir: str = "runs") -> int:
    from fedbench.cli.request import planned, read
    from fedbench.tables import under_way

    found = under_way.commands(runs_dir)
    for arguments in found:
        elsewhere = [text for text in arguments if not text.startswith(RUNS_DIR)]
        plan = planned(*read([*elsewhere, f"{RUNS_DIR}{runs_dir}"]))[0]
        missing = plan.missing()
        done, failed = len(plan.jobs) - len(missing), sum(bool(job.failure) for job in missing)
        print(f"{plan.title}: {done} of {len(plan.jobs)} runs are there, {failed} failed")
        print(f"  watch it: {shlex.join(['python', '-m', 'fedbench.watch', *arguments])}")
    if not found:
        print(
            f"nothing under way in {runs_dir}; fill a table: python -m fedbench.reproduce table=NAME "
            "(python -m fedbench.list tables names them)"
        )
    return OK


def _watch(arguments: Sequence[str], *, once: bool) -> int:
    from rich.live import Live

    from fedbench.cli.request import planned, read
    from fedbench.results.console import Output

    plan = planned(*read(arguments))[0]
    console = Output()
    if once:
        console.print(drawn(plan))
    elif console.is_terminal:
        with Live(drawn(plan), console=console, auto_refresh=False) as live:
            for _ in _looks(plan):
                live.update(drawn(plan), refresh=True)
    else:
        said: list[str] = []
        for _ in _looks(plan):
            now = list(spelt(plan))
            print("".join(f"{line}\n" for line in now if line not in said), end="", flush=True)
            said = now
    return INCOMPLETE if any(job.failure for job in plan.missing()) else OK


def _looks(plan: Plan) -> Iterator[None]:
    """One now and one every few seconds, until no run is left but failed ones; the last one sees them."""
    while True:
        left = any(not job.failure for job in plan.missing())
        yield
        if not left:
            return
        time.sleep(PATIENCE)


def drawn(plan: Plan) -> Table:
    """`state` as a table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(plan.title), title_justify="left")
    table.add_column("", no_wrap=True)
    for name in (*COUNTS, "under way"):
        table.add_column(name, justify="right")
    for label, counts, words in state(plan):
        table.add_row(Text(label), *(str(count or "") for count in counts), ", ".join(words))
    return table


def spelt(plan: Plan) -> Iterator[str]:
    """`state` as lines, such as `FedAvg: 2 finished, 1 to do, seed 1: round 12 of 200`."""
    for label, counts, words in state(plan):
        numbers = [f"{count} {name}" for count, name in zip(counts, COUNTS, strict=True) if count]
        yield f"{label}: {', '.join([*numbers, *words])}"


def state(plan: Plan) -> Iterator[tuple[str, tuple[int, int, int], list[str]]]:
    """Of each row of the table: its label, runs as in `COUNTS`, and how far those are that are under way."""
    missing = {job.identity for job in plan.missing()}
    lines = {
        row.label: [job for entry in plan.entries if entry.row is row for job in entry.jobs]
        for row in plan.spec.rows
    }
    for label, jobs in lines.items():
        if not jobs:
            continue
        rest = [job for job in jobs if job.identity in missing]
        failed = [job for job in rest if job.failure]
        words = [f"seed {job.seed}: {_round(job)}" for job in rest if job not in failed and _round(job)]
        yield label, (len(jobs) - len(rest), len(failed), len(rest) - len(failed) - len(words)), words


def _round(job: Job) -> str:
    """Its last checkpoint, as "round 12 of 200"; "begun" before the first one; "" if nothing is there."""
    from fedbench.results import checkpoint
    from fedbench.results.run_files import CODE

    folder = job.folder
    if folder.status() == "partial":
        return f"round {checkpoint.meta_of(folder.checkpoint)['round']} of {job.config.protocol.rounds}"
    return "begun" if (folder.path / CODE).is_file() else ""
