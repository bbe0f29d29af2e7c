"""The verdict on a cell: does what we measured agree with what the paper prints?

An equivalence test with a margin that is fixed in advance (fedbench.papers.spec); the rule and its formulas are in
fedbench.papers.equivalence, an account of both in docs/verdicts.md.

- The test is over training seeds. They vary initial weights and batch order, and the partition unless it is kept
  (`partition_seed`, `partition=file`): then the verdict is on that partition alone.
- Where no outcome of our seeds could be equivalent, as with one seed, what is not different is `undecidable`. That is
  known before anything is run, from the published value, the margin and the numbers of seeds and clients.
- No verdict from values that are not finite (a censored time), on substitute data, at a reduced scale, or with settings
  changed on the command line but for those that the paper leaves open (`left_open` of the table); none where the paper
  prints nothing, and none on seconds, which depend on the machine.
- A row whose setting was chosen after outcomes had been seen keeps its verdict, marked `exploratory` and counted apart.

Below it: tests between rows, the order of the rows, groups of rows that lean to one side, and what a verdict is worth.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, TypeVar

import numpy as np

from fedbench.papers import spec
from fedbench.papers.equivalence import (
    EQUIVALENT,
    INCONCLUSIVE,
    LEAST_SEEDS,
    LEVEL,
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
from fedbench.papers.spec import ColumnSpec, MetricSpec, Published
from fedbench.papers.store import Cell, TableResult

NONE = "none"
TestT = TypeVar("TestT", "Paired", "Bias")


@dataclass(frozen=True)
class Verdict:
    """What is said of a cell."""

    kind: str  # equivalent | different | inconclusive | undecidable | none
    difference: float = math.nan  # ours - published; nan if either is missing
    text: str = ""  # as printed: "equivalent", "inconclusive, 12 seeds would decide", or why there is no verdict
    comparison: Comparison | None = None  # the test, where there is one
    # Seeds of ours that would decide an inconclusive test, or could make an undecidable one equivalent; inf: none up to
    # 1000 would. `both`: of either side, of an undecidable one.
    seeds: float = math.nan
    both: float = math.nan
    exploratory: str = ""  # why it is counted apart; "" if it is not


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
    if (margin := margin_of(table, cell, published)) is None:
        return None
    known = theirs_of(table, cell, published), margin, _sharing(table, cell)
    bound = bool(published.bound)
    if attainable(seeds, *known, bound=bound):
        return None
    alone, both = (seeds_to_attain(*known, bound=bound, both=both) for both in (False, True))
    text = f"{UNDECIDABLE} with {seeds} seed{'s' * (seeds != 1)}, {_told(alone, both, 'could decide')}"
    return Verdict(UNDECIDABLE, text=text, seeds=alone, both=both)


def margin_of(table: TableResult, cell: Cell, published: Published) -> float | None:
    """Return the margin around a published value of the cell's metric; None if it is not known."""
    return spec.width(cell.metric, table.spec.margins, published.mean, table.clients_of(cell.column))


def against(table: TableResult, cell: Cell, published: Published) -> Comparison | None:
    """Return the test of a cell with two values or more against any published value; None if there is no margin."""
    margin = margin_of(table, cell, published)
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
    """Return values of ours in the cell's column and metric, two or more, one a seed, as the test sees them."""
    found = Sample(float(np.mean(values)), float(np.std(values, ddof=1)), len(values))
    return share_of(_sharing(table, cell), found)


def _sharing(table: TableResult, cell: Cell) -> int | None:
    """Return of how many clients the cell is a share; None if it is none, or they are not known."""
    return table.clients_of(cell.column) if cell.metric == "ipr" else None


def counts(table: TableResult, *, exploratory: bool = False) -> Counter[str]:
    """Return how many published values of `table` have which kind of verdict: those counted apart, or all others."""
    judged = [(cell, verdict_of(table, cell)) for cell in table.cells if cell.published]
    return Counter(each.kind for cell, each in judged if bool(table.exploratory(cell.row, cell.column)) == exploratory)


def _barred(table: TableResult, cell: Cell) -> str:
    """Return why a cell with values gets no verdict; "" if it does."""
    if not all(map(math.isfinite, cell.values)):
        return "not reached by every seed"
    if not table.provenance.is_paper_setting:
        return "the table's YAML says TODO" if table.provenance.todo else "not the paper's setting"
    return "depends on the machine" if table.spec.metric(cell.metric).timing else ""


def _told(alone: float, both: float, verb: str) -> str:
    if math.isfinite(alone):
        return f"{alone:.0f} seeds {verb}"
    if math.isfinite(both):
        return f"{both:.0f} seeds on both sides {verb}"
    return f"{MOST_SEEDS} seeds {verb.replace(' ', ' not ')}"


# Is a difference between rows more than one lucky seed?
#
# Paired differences to a reference row are over the seeds of a column (same partition, initial weights and batches),
# with Student's t and p adjusted by Holm over all comparisons. There are no ranks over columns and seeds: seeds of one
# column are repeats on one data set, and Friedman's test asks for independent ones (Demsar, JMLR 2006).

LEAST_PAIRS = 3
EXACT = 9  # decimals of a percentage: what is equal so far is a tie, whose sums were rounded differently


@dataclass(frozen=True)
class Paired:
    """The reference row minus another row, in one column, over the seeds that both have."""

    column: str
    row: str
    seeds: int
    difference: float  # mean over seeds, in the metric's unit; positive: the reference is larger
    low: float  # 95 % confidence interval
    high: float
    p: float  # two-sided, adjusted by Holm over all comparisons of the table


def paired(table: TableResult, metric: MetricSpec, reference: str) -> list[Paired]:
    """Return every other row against `reference`, in columns where at least three seeds are paired."""
    found = []
    for column in table.spec.columns:
        base = _by_seed(table, reference, column.label, metric)
        for row in table.spec.rows:
            other = _by_seed(table, row.label, column.label, metric)
            seeds = sorted(base.keys() & other.keys())
            if row.label == reference or len(seeds) < LEAST_PAIRS:
                continue
            mean, half, p = t_test(np.array([base[seed] - other[seed] for seed in seeds]))
            found.append(Paired(column.label, row.label, len(seeds), mean, mean - half, mean + half, p))
    return _adjusted(found)


def t_test(gaps: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Return (mean, half of its 95 % interval, two-sided p) of two or more paired differences, rounding taken for 0."""
    from scipy import stats

    gaps = np.where(np.abs(gaps) < 10.0**-EXACT, 0.0, gaps)
    error = float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
    half = float(stats.t.ppf(1 - LEVEL / 2, len(gaps) - 1)) * error
    mean = float(gaps.mean())
    return mean, half, 2 * float(stats.t.sf(abs(mean) / error, len(gaps) - 1)) if error else float(mean == 0)


def holm(p: Sequence[float]) -> list[float]:
    """Return Holm's step-down adjustment: p values that may be compared with the level as they are."""
    order, adjusted = np.argsort(p), np.empty(len(p))
    factors = np.arange(len(p), 0, -1)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, factors * np.asarray(p)[order]))
    return [float(value) for value in adjusted]


def _adjusted(found: Sequence[TestT]) -> list[TestT]:
    """Return tests with Holm's adjustment over all of them."""
    return [replace(each, p=p) for each, p in zip(found, holm([each.p for each in found]), strict=True)]


def _by_seed(table: TableResult, row: str, column: str, metric: MetricSpec) -> dict[int, float]:
    cell = table.cell(row, column, metric.name)
    return {s: v for s, v in zip(cell.seeds, cell.values, strict=True) if math.isfinite(v)}


# How a whole column agrees with the paper: the order of the rows, and whether the paper's method is best.


@dataclass(frozen=True)
class Agreement:
    """One column and metric."""

    column: str
    metric: str
    rows: int  # that have both a value and a published one
    tau: float  # Kendall's tau-b of our order and the paper's; nan for fewer than three rows or a constant one
    best_ours: tuple[str, ...] = ()  # among those rows; several if they tie
    headline: bool | None = None  # whether the headline row is best; None if it, or every rival, is missing
    headline_published: bool | None = None


def agreements(table: TableResult) -> list[Agreement]:
    """Return one entry for each column and ranked metric that has at least one row to compare.

    Empty where a table puts several rows beside the same published value: there is no order to agree with.
    """
    if table.spec.varies:
        return []
    ranked = [metric for metric in table.spec.metrics if metric.better != "neither"]
    found = [_agreement(table, *place) for place in product(table.spec.columns, ranked)]
    return [each for each in found if each.rows]


def _agreement(table: TableResult, column: ColumnSpec, metric: MetricSpec) -> Agreement:
    from scipy import stats

    both = [cell for cell in table.cells_below(column, metric) if math.isfinite(cell.mean) and cell.published]
    sign = 1.0 if metric.better == "higher" else -1.0
    ours = {cell.row: sign * round(cell.mean, EXACT) for cell in both}
    theirs = {cell.row: sign * cell.published.mean for cell in both if cell.published}
    best = _best(ours), _best(theirs)
    compared = table.spec.headline in ours and len(both) > 1
    # The headline row is among the best, and they are not simply all rows.
    stands_out = [table.spec.headline in rows and len(rows) < len(both) if compared else None for rows in best]
    tau = float(stats.kendalltau([*ours.values()], [*theirs.values()]).statistic) if len(both) > 2 else math.nan
    return Agreement(column.label, metric.name, len(both), tau, best[0], *stands_out)


def _best(values: dict[str, float]) -> tuple[str, ...]:
    return tuple(row for row, value in values.items() if value == max(values.values()))


# Does a group of rows lean to one side? A joint test, beside the verdicts on single cells.
#
# Rows of one group share seeds, and so partition, initial weights and batches: seven rows that are all low may be one
# unlucky draw. So the rows are averaged first, seed by seed, and the test is over seeds: with G rows,
#
#     d = mean over seeds s of (mean over rows of ours[row, s]) - mean over rows of published[row],
#
# tested as a single cell is (fedbench.papers.equivalence: Welch's t). The spread of the published mean over rows is
# taken to be the mean of their spreads, which is its largest possible value: as if the paper's rows went up and down
# together.

ALL = "all rows"


@dataclass(frozen=True)
class Bias:
    """Ours minus published over a group of rows, in one column and metric."""

    column: str
    metric: str
    group: str
    rows: int
    below: int  # of them, whose mean is below the published one
    seeds: int  # that all of them have
    difference: float  # mean over rows and seeds, in the metric's unit
    low: float  # 95 % interval
    high: float
    p: float  # two-sided, that the group does not lean, adjusted by Holm over all of the table


def biases(table: TableResult) -> list[Bias]:
    """Return one entry a column, metric and group (the table's, and all rows) of two or more rows with a verdict.

    Exploratory rows are left out, but where a group that the table names has no others.
    """
    groups: Mapping[str, tuple[str, ...]] = {ALL: ("*",), **table.spec.groups}
    found = [
        _bias(_members(table, column.label, metric.name, group, names), group, table)
        for column in table.spec.columns
        for metric in table.spec.metrics
        for group, names in groups.items()
    ]
    return _adjusted([bias for bias in found if bias is not None])


def _members(table: TableResult, column: str, metric: str, group: str, names: tuple[str, ...]) -> list[Cell]:
    labels = [row.label for row in table.spec.rows if any(fnmatchcase(row.label, name) for name in names)]
    confirmed = [label for label in labels if not table.exploratory(label, column)]
    chosen = confirmed if confirmed or group == ALL else labels
    cells = [table.cell(label, column, metric) for label in chosen]
    return [cell for cell in cells if _is_tested(table, cell) and cell.published and not cell.published.bound]


def _is_tested(table: TableResult, cell: Cell) -> bool:
    return verdict_of(table, cell).kind != NONE and len(cell.values) >= LEAST_SEEDS


def _bias(cells: list[Cell], group: str, table: TableResult) -> Bias | None:
    seeds = sorted(set.intersection(*(set(cell.seeds) for cell in cells))) if cells else []
    if len(cells) < 2 or len(seeds) < LEAST_SEEDS:
        return None
    ours = np.array([[dict(zip(cell.seeds, cell.values, strict=True))[seed] for seed in seeds] for cell in cells])
    theirs = [theirs_of(table, cell, cell.published) for cell in cells if cell.published]
    spreads = [each.std for each in theirs if each.std is not None]
    published = Sample(
        float(np.mean([each.mean for each in theirs])),
        float(np.mean(spreads)) if len(spreads) == len(theirs) else None,
        table.spec.published_seeds,
        float(np.mean([each.rounding for each in theirs])),
    )
    by_seed = ours.mean(0)  # [seeds]
    test = compare(ours_of(table, cells[0], by_seed), published, math.inf)
    below = int((ours.mean(1) < [each.mean for each in theirs]).sum())
    counts = len(cells), below, len(seeds)
    return Bias(cells[0].column, cells[0].metric, group, *counts, test.difference, test.low, test.high, test.p)


# What a verdict is worth: for which other published rows would a row of ours pass as well?
#
# A row that is equivalent to its own published value and to five others' agrees with the paper, but says little of
# which method it is.


@dataclass(frozen=True)
class Match:
    """A cell of ours beside the published value of another row, or its own, in the same column and metric."""

    column: str
    metric: str
    row: str  # ours
    published: str  # the row of the published value
    difference: float
    outcome: str  # equivalent | different | inconclusive


def matches(table: TableResult) -> list[Match]:
    """Return every cell with a verdict and a test against every published value of its column and metric."""
    found = []
    for column, metric in product(table.spec.columns, table.spec.metrics):
        cells = table.cells_below(column, metric)
        for cell, other in product([cell for cell in cells if _is_tested(table, cell)], cells):
            test = None if other.published is None else against(table, cell, other.published)
            if test is not None:
                found.append(Match(cell.column, cell.metric, cell.row, other.row, test.difference, test.outcome))
    return found


def matrix(found: list[Match], column: str) -> dict[tuple[str, str], list[str]]:
    """Return (our row, published row) -> the outcomes in a column, in the order of the metrics that both have."""
    together: dict[tuple[str, str], list[str]] = {}
    for each in found:
        if each.column == column:
            together.setdefault((each.row, each.published), []).append(each.outcome)
    return together


def passes_for(found: list[Match], column: str, metric: str, row: str) -> tuple[str, ...]:
    """Return other rows to whose published value a cell is equivalent."""
    return tuple(
        each.published
        for each in found
        if (each.column, each.metric, each.row) == (column, metric, row)
        and each.published != row
        and each.outcome == EQUIVALENT
    )
