"""The verdict on a cell: does our value agree with the published one?

An equivalence test with a margin that is fixed in advance (fedbench.papers.published); the formulas are in
fedbench.papers.equivalence, and docs/verdicts.md explains both.

- The test is over training seeds. They vary initial weights and batch order, and the partition unless it is kept
  (`partition_seed`, `partition=file`): then the verdict is on that partition alone.
- If no outcome of our seeds could be equivalent, as with one seed, a value that is not different is `undecidable`. The
  published value, the margin and the numbers of seeds and clients decide this before any run.
- No verdict from values that are not finite (a censored time), where a seed diverged, on substitute data, at a reduced
  scale, or with settings changed on the command line but for those that the paper leaves open (`left_open` of the
  table); none where the paper prints nothing, and none on seconds, which depend on the machine.
- A row whose setting was chosen after its outcome keeps its verdict, marked `exploratory` and counted separately.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedbench.papers.equivalence import (
    INCONCLUSIVE,
    LEAST_SEEDS,
    MOST_SEEDS,
    UNDECIDABLE,
    Comparison,
    Sample,
    attainable,
    compare,
    seeds_needed,
    seeds_to_attain,
    share_of,
)
from fedbench.papers.published import Published, width
from fedbench.papers.store import Cell, TableResult

NONE = "none"


@dataclass(frozen=True)
class Verdict:
    """The verdict on a cell, with its statistics."""

    kind: str  # equivalent | different | inconclusive | undecidable | none
    difference: float = math.nan  # ours - published; nan if either is missing
    text: str = ""  # as printed: "equivalent", "inconclusive, 12 seeds would decide", or why there is no verdict
    comparison: Comparison | None = None  # the test, where there is one
    # Seeds of ours that would decide an inconclusive test, or could make an undecidable one equivalent; inf: none up to
    # 1000 would. `both`: of either side, of an undecidable one.
    seeds: float = math.nan
    both: float = math.nan
    exploratory: str = ""  # why it is counted separately; "" if it is not


def verdict_of(table: TableResult, cell: Cell) -> Verdict:
    """Return the verdict on a cell of `table`; see the module for the rule."""
    if cell.published is None:
        return Verdict(NONE, text="nothing published")
    if not cell.values:
        before = undecidable(table, cell, table.spec.seeds)
        reason = cell.reason or "not run"
        return replace(before, kind=NONE, text=f"{reason}; {before.text}") if before else Verdict(NONE, text=reason)
    difference = cell.mean - cell.published.mean
    if reason := _barred(table, cell):
        return Verdict(NONE, difference, f"no verdict: {reason}")
    exploratory = table.exploratory(cell.row, cell.column)
    apart = " (exploratory)" if exploratory else ""
    test = against(table, cell, cell.published) if len(cell.values) >= LEAST_SEEDS else None
    if (test is None or test.outcome == INCONCLUSIVE) and (found := undecidable(table, cell, len(cell.values))):
        text = found.text.replace(UNDECIDABLE, UNDECIDABLE + apart)
        return replace(found, difference=difference, text=text, comparison=test, exploratory=exploratory)
    if test is None:
        return Verdict(NONE, difference, "no verdict: its margin is not known")
    text, seeds = f"{test.outcome}{apart}", math.nan
    if test.outcome == INCONCLUSIVE and not cell.published.bound:
        samples = ours_of(table, cell, cell.values), theirs_of(table, cell, cell.published)
        seeds, both = (seeds_needed(*samples, test.margin, both=both) for both in (False, True))
        text += f", {_told(seeds, both, 'would decide')}"
    return Verdict(test.outcome, difference, text, test, seeds, exploratory=exploratory)


def undecidable(table: TableResult, cell: Cell, seeds: int) -> Verdict | None:
    """Return the verdict on a cell with a published value that no outcome of `seeds` seeds could make equivalent.

    None if some outcome could, or if no outcome would get a verdict.
    """
    published, metric = cell.published, table.spec.metric(cell.metric)
    if published is None or metric.timing or not table.provenance.is_paper_setting:
        return None
    if (margin := width(cell.metric, published.mean, table.clients_of(cell.column))) is None:
        return None
    known = theirs_of(table, cell, published), margin, _sharing(table, cell)
    bound = bool(published.bound)
    if attainable(seeds, *known, bound=bound):
        return None
    alone, both = (seeds_to_attain(*known, bound=bound, both=both) for both in (False, True))
    text = f"{UNDECIDABLE} with {seeds} seed{'s' * (seeds != 1)}, {_told(alone, both, 'could decide')}"
    return Verdict(UNDECIDABLE, text=text, seeds=alone, both=both)


def against(table: TableResult, cell: Cell, published: Published) -> Comparison | None:
    """Return the test of a cell with two values or more against any published value; None if there is no margin."""
    margin = width(cell.metric, published.mean, table.clients_of(cell.column))
    if margin is None:
        return None
    samples = ours_of(table, cell, cell.values), theirs_of(table, cell, published)
    return compare(*samples, margin, bound=bool(published.bound))


def theirs_of(table: TableResult, cell: Cell, published: Published) -> Sample:
    """Return a published value of the cell's column and metric as the test sees it."""
    seeds, rounding, std = table.spec.published_seeds, 0.5 * 10.0**-published.decimals, published.std
    if std is not None and table.spec.published_over_k and seeds > 1:
        std *= math.sqrt(seeds / (seeds - 1))  # over k - 1, as ours
    return share_of(_sharing(table, cell), Sample(published.mean, std, seeds, rounding))


def ours_of(table: TableResult, cell: Cell, values: Sequence[float]) -> Sample:
    """Return our values in the cell's column and metric, two or more, one for each seed, as the test sees them."""
    found = Sample(float(np.mean(values)), float(np.std(values, ddof=1)), len(values))
    return share_of(_sharing(table, cell), found)


def _sharing(table: TableResult, cell: Cell) -> int | None:
    """Return the number of clients that the cell is a share of; None if it is no share or the number is unknown."""
    return table.clients_of(cell.column) if cell.metric == "ipr" else None


def counts(table: TableResult, *, exploratory: bool = False) -> Counter[str]:
    """Return the published values of `table` by kind of verdict: those counted separately, or all others."""
    judged = [(cell, verdict_of(table, cell)) for cell in table.cells if cell.published]
    return Counter(each.kind for cell, each in judged if bool(table.exploratory(cell.row, cell.column)) == exploratory)


def _barred(table: TableResult, cell: Cell) -> str:
    """Return why a cell with values gets no verdict; "" if it does."""
    if not all(map(math.isfinite, cell.values)):
        return "not reached by every seed"
    if cell.diverged:
        return "a seed diverged"
    if not table.provenance.is_paper_setting:
        return "the table's YAML says TODO" if table.provenance.todo else "not the paper's setting"
    return "depends on the machine" if table.spec.metric(cell.metric).timing else ""


def _told(alone: float, both: float, verb: str) -> str:
    if math.isfinite(alone):
        return f"{alone:.0f} seeds {verb}"
    if math.isfinite(both):
        return f"{both:.0f} seeds on both sides {verb}"
    return f"{MOST_SEEDS} seeds {verb.replace(' ', ' not ')}"
