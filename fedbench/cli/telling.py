"""What is said of a table before and after its runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedbench.config.messages import INCOMPLETE, OK

if TYPE_CHECKING:
    from pathlib import Path

    from fedbench.tables.plan import Entry, Job, Plan
    from fedbench.tables.spec import Wish
    from fedbench.tables.store import TableResult


ELSEWHERE = "another process is at it, or was stopped; the same command goes on"


def announce(plan: Plan, missing: Sequence[Job], at_once: int) -> None:
    """The plan: cells, runs, what is there, what cannot be run, and what the rest takes."""
    from fedbench.runs.progress import Output
    from fedbench.tables.equivalence import LEAST_SEEDS
    from fedbench.tables.estimate import told
    from fedbench.tables.plan import named
    from fedbench.tables.store import PENDING

    console = Output(highlight=False)
    jobs = plan.jobs
    failed = sum(1 for job in plan.missing() if job.failure)
    finished = sum(job.finished for job in jobs)
    recorded = len(jobs) - len(plan.missing()) - finished
    console.print(plan.title, style="bold", markup=False)
    asked = sum(bool(entry.asked) for entry in plan.entries)
    console.print(
        f"{asked} cells, seeds {', '.join(map(str, plan.seeds))}, {len(jobs)} runs: "
        f"{finished} finished, {f'{recorded} recorded, ' if recorded else ''}{failed} failed, {len(missing)} to do, "
        f"{at_once} at once"
    )
    if plan.spec.paper and plan.made.faithful and len(plan.seeds) < LEAST_SEEDS:
        console.print(
            f"one seed gives no verdicts but inconclusive; a test needs {LEAST_SEEDS} (seeds={LEAST_SEEDS})"
        )
    reasons: dict[str, list[Entry]] = {}
    for entry in plan.entries:
        if entry.reason and entry.reason != PENDING:
            reasons.setdefault(entry.reason, []).append(entry)
    for reason, entries in reasons.items():
        console.print(f"{named(plan, entries)}: {reason}", markup=False)
    if missing:
        print("measuring what the runs take on this machine ...", file=sys.stderr, flush=True)
        for line in told(plan, missing, at_once):
            console.print(line, markup=False)


def show(filled: TableResult) -> None:
    """The table, as the terminal takes it."""
    from fedbench.runs.progress import Output
    from fedbench.tables import render

    console = Output() if sys.stdout.isatty() else Output(width=120)
    console.print(render.draw_terminal(filled))


def finish(plan: Plan, wish: Wish, folder: Path, made: int) -> int:
    """Say whether every cell that was asked for is there after `made` runs, and if not, why; returns the exit code."""
    from fedbench.tables.plan import of_runs

    reasons: dict[str, list[Job]] = {}
    for job in (lacking := plan.missing()):
        word = f"failed: {job.failure}" if job.failure else f"not finished: {ELSEWHERE}"
        reasons.setdefault(word, []).append(job)
    for said, jobs in reasons.items():
        word, _, reason = said.partition(": ")
        where = of_runs(plan, {job.identity for job in jobs})
        print(f"{word}: {where}: {reason}; as in: {shlex.join(jobs[0].overrides)}", file=sys.stderr)
    cells = [
        entry for entry in plan.entries if wish.wants(entry.row, entry.column) and not _impossible(entry)
    ]
    identities = {job.identity for job in lacking}
    counts = {
        "cannot be run here": sum(not entry.jobs for entry in cells),
        "failed or not finished": sum(
            any(job.identity in identities for job in (*entry.jobs, *entry.baselines)) for entry in cells
        ),
    }
    there = len(cells) - sum(counts.values())
    said = "".join(f", {count} {word}" for word, count in counts.items() if count)
    whole = there == len(cells) and not lacking
    print(
        f"{'complete' if whole else 'incomplete'}: {there} of {len(cells)} cells asked for are in "
        f"{folder / 'table.md'}{said}; {made} runs asked of this call"
    )
    print(f"with curves and matrices: python -m fedbench report {folder.parents[1]}")
    return OK if whole else INCOMPLETE


def _impossible(entry: Entry) -> bool:
    """Whether no machine could run it."""
    return bool(entry.row.unsupported or entry.column.unsupported)
