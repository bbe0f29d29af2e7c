"""The verdict on a cell: does what we measured agree with what the paper prints?

The rule, fixed before any number was looked at, but for the exception of `left_open`, which came after the first three
seeds of FedCollab's tables. Seeds vary partition (unless partition_seed holds it), initial weights
and batch order together. With n >= 3 seeds of mean m and sample standard deviation s, and a published mean over k
seeds:

- `reproduced` if the published mean lies within m +- t(0.975, n - 1) * s * sqrt(1/k + 1/n), the 95 % prediction
  interval for a table entry, widened by half a unit of the last printed digit; or if m lies within the published
  mean +- 2 published standard deviations.
- `differs by d`, d = m - published, otherwise.
- No verdict from fewer than three seeds, from values that are not finite (a censored time), on substitute data, at a
  reduced scale, or with settings changed on the command line, but for those that the paper leaves open (`left_open` of
  the table); none where the paper prints nothing.
- No verdict on seconds, which depend on the machine.
- Where the paper prints only a bound (> 3000), `reproduced` if m satisfies it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedbench.tables.result import Cell, Circumstances

LEAST_SEEDS = 3
CONFIDENCE = 0.95
PUBLISHED_STDS = 2.0

REPRODUCED, DIFFERS, NONE = "reproduced", "differs", "none"


@dataclass(frozen=True)
class Verdict:
    """What is said of a cell."""

    kind: str  # REPRODUCED | DIFFERS | NONE
    difference: float = float("nan")  # ours - published; nan if either is missing
    text: str = ""  # as printed: "reproduced", "differs by -1.20", or why there is no verdict


def judge(cell: Cell, made: Circumstances, published_seeds: int = 1, *, timing: bool = False) -> Verdict:
    """The verdict on `cell` of a table made in these circumstances; see the module for the rule.

    `timing` says that its values are seconds.
    """
    if cell.published is None:
        return Verdict(NONE, text="nothing published")
    if not cell.values:
        return Verdict(NONE, text=cell.reason or "not run")
    difference = cell.mean - cell.published.mean
    if not all(map(math.isfinite, cell.values)):
        return Verdict(NONE, text="no verdict: not reached by every seed")
    if not made.faithful:
        return Verdict(NONE, difference, "no verdict: not the paper's setting")
    if timing:
        return Verdict(NONE, difference, "no verdict: depends on the machine")
    if len(cell.values) < LEAST_SEEDS:
        return Verdict(NONE, difference, f"no verdict: fewer than {LEAST_SEEDS} seeds")
    if cell.published.bound:
        agrees = cell.mean > cell.published.mean
    else:
        agrees = abs(difference) <= tolerance(cell, published_seeds)
    if agrees:
        return Verdict(REPRODUCED, difference, REPRODUCED)
    return Verdict(DIFFERS, difference, f"differs by {difference:+.{max(1, cell.published.decimals)}f}")


def tolerance(cell: Cell, published_seeds: int) -> float:
    """Largest |ours - published| that still counts as reproduced; `cell` has a published value and >= 2 seeds."""
    from scipy import stats

    published = cell.published
    if published is None:
        raise ValueError("a tolerance needs a published value")
    n = len(cell.values)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
    ours = quantile * cell.std * float(np.sqrt(1 / max(1, published_seeds) + 1 / n))
    ours += 0.5 * 10.0**-published.decimals
    return max(ours, PUBLISHED_STDS * (published.std or 0.0))
