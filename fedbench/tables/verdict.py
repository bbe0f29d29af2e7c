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
from dataclasses import dataclass

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
    exploratory = table.exploratory(cell.row)
    apart = " (exploratory)" if exploratory else ""
    if len(cell.values) < LEAST_SEEDS:
        text = f"inconclusive{apart}: one seed, a test needs {LEAST_SEEDS}"
        return Verdict(INCONCLUSIVE, difference, text, exploratory=exploratory)
    test = against(table, cell, cell.published)
    if test is None:
        return Verdict(NONE, difference, "no verdict: its margin is not known")
    text, seeds = f"{test.outcome}{apart}", math.nan
    if test.outcome == INCONCLUSIVE and not cell.published.bound:
        samples = _ours(cell), sample_of(cell.published, table.spec.published_seeds)
        seeds = seeds_needed(*samples, test.margin)
        text += f", {_told(seeds, seeds_needed(*samples, test.margin, both=True))}"
    return Verdict(test.outcome, difference, text, test, seeds, exploratory)


def against(table: TableResult, cell: Cell, published: Published) -> Comparison | None:
    """The test of a cell with two values or more against any published value; None if there is no margin."""
    clients = table.clients.get(cell.column)
    margin = margins.width(cell.metric, table.spec.margins, published.mean, clients)
    if margin is None:
        return None
    theirs = sample_of(published, table.spec.published_seeds)
    return compare(_ours(cell), theirs, margin, bound=bool(published.bound))


def sample_of(published: Published, seeds: int) -> Sample:
    """A published value as the test sees it."""
    return Sample(published.mean, published.std, seeds, 0.5 * 10.0**-published.decimals)


def _ours(cell: Cell) -> Sample:
    return Sample(cell.mean, cell.std, len(cell.values))


def counts(table: TableResult, *, exploratory: bool = False) -> Counter[str]:
    """How many published values of `table` have which kind of verdict: those counted apart, or all others."""
    judged = [(cell, judge(table, cell)) for cell in table.cells if cell.published]
    return Counter(each.kind for cell, each in judged if bool(table.exploratory(cell.row)) == exploratory)


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
