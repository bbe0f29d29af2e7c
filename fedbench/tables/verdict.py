"""The verdict on a cell: does what we measured agree with what the paper prints?

An equivalence test with a margin that is fixed in advance (fedbench.tables.margins); the rule and its formulas are in
fedbench.tables.equivalence, an account of both in docs/verdicts.md.

- The test is over training seeds. They vary initial weights and batch order, and the partition unless it is kept
  (`partition_seed`, `partition=file`): then the verdict is on that partition alone.
- One seed gives no test: `inconclusive`.
- No verdict from values that are not finite (a censored time), on substitute data, at a reduced scale, or with settings
  changed on the command line but for those that the paper leaves open (`left_open` of the table); none where the paper
  prints nothing, and none on seconds, which depend on the machine.
- A row whose setting was chosen after outcomes had been seen keeps its verdict, marked `exploratory` and counted apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.tables import margins
from fedbench.tables.equivalence import (
    DIFFERENT,
    EQUIVALENT,
    INCONCLUSIVE,
    LEAST_SEEDS,
    MOST_SEEDS,
    Comparison,
    Sample,
    compare,
    seeds_needed,
    share_of,
)
from fedbench.tables.published import Published
from fedbench.tables.result import Cell, TableResult

NONE = "none"
KINDS = (EQUIVALENT, DIFFERENT, INCONCLUSIVE, NONE)


@dataclass(frozen=True)
class Verdict:
    """What is said of a cell."""

    kind: str  # of KINDS
    difference: float = math.nan  # ours - published; nan if either is missing
    text: str = (
        ""  # as printed: "equivalent", "inconclusive, 12 seeds would decide", or why there is no verdict
    )
    comparison: Comparison | None = None  # the test, where there is one
    seeds: float = math.nan  # of ours that would decide an inconclusive test; inf: none up to 1000 would
    exploratory: str = ""  # why it is counted apart; "" if it is not


def judge(table: TableResult, cell: Cell) -> Verdict:
    """The verdict on a cell of `table`; see the module for the rule."""
    if cell.published is None:
        return Verdict(NONE, text="nothing published")
    if not cell.values:
        return Verdict(NONE, text=cell.reason or "not run")
    difference = cell.mean - cell.published.mean
    if reason := _barred(table, cell):
        return Verdict(NONE, difference, f"no verdict: {reason}")
    exploratory = table.exploratory(cell.row, cell.column)
    apart = " (exploratory)" if exploratory else ""
    if len(cell.values) < LEAST_SEEDS:
        text = f"inconclusive{apart}: one seed, a test needs {LEAST_SEEDS}"
        return Verdict(INCONCLUSIVE, difference, text, exploratory=exploratory)
    test = against(table, cell, cell.published)
    if test is None:
        return Verdict(NONE, difference, "no verdict: its margin is not known")
    text, seeds = f"{test.outcome}{apart}", math.nan
    if test.outcome == INCONCLUSIVE and not cell.published.bound:
        samples = samples_of(table, cell, cell.published)
        seeds = seeds_needed(*samples, test.margin)
        text += f", {_told(seeds, seeds_needed(*samples, test.margin, both=True))}"
    return Verdict(test.outcome, difference, text, test, seeds, exploratory)


def against(table: TableResult, cell: Cell, published: Published) -> Comparison | None:
    """The test of a cell with two values or more against any published value; None if there is no margin."""
    clients = table.clients.get(cell.column)
    margin = margins.width(cell.metric, table.spec.margins, published.mean, clients)
    if margin is None:
        return None
    return compare(*samples_of(table, cell, published), margin, bound=bool(published.bound))


def samples_of(table: TableResult, cell: Cell, published: Published) -> tuple[Sample, Sample]:
    """(ours, theirs) as the test sees them."""
    theirs = Sample(
        published.mean, published.std, table.spec.published_seeds, 0.5 * 10.0**-published.decimals
    )
    return measured(table, cell.column, cell.metric, cell.values), spread(
        table, cell.column, cell.metric, theirs
    )


def measured(table: TableResult, column: str, metric: str, values: Sequence[float]) -> Sample:
    """Values of ours, two or more, one a seed."""
    found = Sample(float(np.mean(values)), float(np.std(values, ddof=1)), len(values))
    return spread(table, column, metric, found)


def spread(table: TableResult, column: str, metric: str, sample: Sample) -> Sample:
    """`sample` with the spread that the test takes it to have: a share of the column's clients has a least one."""
    clients = table.clients.get(column)
    return share_of(clients, sample) if metric == "ipr" and clients else sample


def counts(table: TableResult, *, exploratory: bool = False) -> Counter[str]:
    """How many published values of `table` have which kind of verdict: those counted apart, or all others."""
    judged = [(cell, judge(table, cell)) for cell in table.cells if cell.published]
    return Counter(
        each.kind for cell, each in judged if bool(table.exploratory(cell.row, cell.column)) == exploratory
    )


def _barred(table: TableResult, cell: Cell) -> str:
    """Why a cell with values gets no verdict; "" if it does."""
    if not all(map(math.isfinite, cell.values)):
        return "not reached by every seed"
    if not table.circumstances.faithful:
        return "not the paper's setting"
    return "depends on the machine" if table.spec.metric(cell.metric).timing else ""


def _told(alone: float, both: float) -> str:
    if math.isfinite(alone):
        return f"{alone:.0f} seeds would decide"
    if math.isfinite(both):
        return f"{both:.0f} seeds on both sides would decide"
    return f"{MOST_SEEDS} seeds would not decide"
