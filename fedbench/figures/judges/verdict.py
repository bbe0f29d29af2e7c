"""A verdict, and how differences between runs are weighed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbench.plots import style

AGREES, DIFFERS, CANNOT = "agrees", "does not", "cannot tell"
VERDICTS = (AGREES, DIFFERS, CANNOT)


@dataclass(frozen=True)
class Verdict:
    """The word, and what ours shows."""

    word: str  # one of VERDICTS
    shows: str


def says(holds: bool | None, shows: str) -> Verdict:
    """From a truth, None where it cannot be told."""
    return Verdict(CANNOT if holds is None else AGREES if holds else DIFFERS, shows)


def higher(first: Any, second: Any) -> bool | None:
    """Whether values [S] of the same seeds are higher than others; None within two standard errors, or with one seed.

    With one seed, or seeds that do not vary, nothing is told unless both are constants.
    """
    gap = np.ravel(np.asarray(first, dtype=np.float64)) - np.ravel(np.asarray(second, dtype=np.float64))
    gap = gap[np.isfinite(gap)]
    if len(gap) < 2:
        return None
    error = float(style.spread(gap)) / np.sqrt(len(gap))
    return None if abs(gap.mean()) <= 2 * error else bool(gap.mean() > 0)


def all_of(truths: list[bool | None]) -> bool | None:
    """False if one is, else None if one is, else true."""
    return False if False in truths else None if None in truths else True


def off(matrix: Any) -> np.ndarray:
    """Entries of [N, N] beside the diagonal that are no nan."""
    values = np.asarray(matrix, dtype=np.float64)[~np.eye(len(matrix), dtype=bool)]
    return np.asarray(values[np.isfinite(values)])


def row(arrays: Any, label: str) -> int:
    """The number of the row with this label."""
    return list(arrays["rows"]).index(label)
