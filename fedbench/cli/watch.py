"""`python -m fedbench.watch table=NAME ...`: how far a table is that another terminal fills.

Takes the arguments of fedbench.reproduce. Ends when no run is left, with exit code 3 if one failed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedbench.cli import command
from fedbench.config.messages import INCOMPLETE, OK

if TYPE_CHECKING:
    from rich.table import Table

    from fedbench.tables.job import Job
    from fedbench.tables.plan import Plan

PATIENCE = 5.0  # seconds between two looks
ONCE = "--once"


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the state until all is done, or `--once`; returns the exit code."""
    return command.run("python -m fedbench.watch", arguments, _main)


def _main(arguments: Sequence[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(
            f"usage: python -m fedbench.watch table=NAME [KEY=VALUE ...] [{ONCE}]\n\n{__doc__.partition('.')[2]}"
        )
        return 0 if arguments else 2
    from rich.live import Live

    from fedbench.cli.request import planned, read
    from fedbench.results.console import Output

    plan = planned(*read([text for text in arguments if text != ONCE]))[0]
    console = Output()
    if ONCE in arguments:
        console.print(state(plan))
    else:
        with Live(state(plan), console=console, auto_refresh=False) as live:
            while any(not job.finished and not job.failure for job in plan.jobs):
                time.sleep(PATIENCE)
                live.update(state(plan), refresh=True)
    return INCOMPLETE if any(job.failure and not job.finished for job in plan.jobs) else OK


def state(plan: Plan) -> Table:
    """One line a row of the table: runs that are finished, under way, failed and to do."""
    from rich.table import Table

    drawn = Table(title=plan.spec.title, title_justify="left")
    drawn.add_column("", no_wrap=True)
    for name in ("finished", "failed", "to do", "under way"):
        drawn.add_column(name, justify="right")
    lines = {
        row.label: [job for entry in plan.entries if entry.row is row for job in entry.jobs]
        for row in plan.spec.rows
    }
    for label, jobs in lines.items():
        if not jobs:
            continue
        finished = [job for job in jobs if job.finished]
        rest = [job for job in jobs if job not in finished]
        failed = [job for job in rest if job.failure]
        words = [f"seed {job.seed}: {_round(job)}" for job in rest if job not in failed and _round(job)]
        todo = len(rest) - len(failed) - len(words)
        drawn.add_row(
            label, *(str(count or "") for count in (len(finished), len(failed), todo)), ", ".join(words)
        )
    return drawn


def _round(job: Job) -> str:
    """Its last checkpoint, as "round 12 of 200"; "begun" before the first one; "" if nothing is there."""
    from fedbench.results import checkpoint
    from fedbench.results.folder import CODE

    folder = job.folder
    if folder.status() == "partial":
        return f"round {checkpoint.meta_of(folder.checkpoint)['round']} of {job.config.protocol.rounds}"
    return "begun" if (folder.path / CODE).is_file() else ""
