"""Cells of a plan in words: as whole columns where every row that is asked for is among them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedbench.tables.plan import Entry, Plan

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
