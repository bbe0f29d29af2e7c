"""Time-to-accuracy: how long a run takes to reach a reference accuracy (SosicFL, Section 5 and Table 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedbench.metrics.accuracy import TIE


@dataclass(frozen=True)
class TimeToAccuracy:
    """Cost of the first evaluated round that reaches `reference`; all None (censored) when none does."""

    reference: float  # fraction
    horizon: int  # last evaluated round: a censored run is "> horizon"
    rounds: int | None
    seconds: float | None
    bytes: int | None

    @property
    def reached(self) -> bool:
        """Whether the reference was reached; if not, the run is censored at `horizon`."""
        return self.rounds is not None


def time_to_accuracy(
    rounds: Sequence[int],
    accuracy: Sequence[float],
    reference: float,
    seconds: Sequence[float] | None = None,
    traffic: Sequence[int] | None = None,
) -> TimeToAccuracy:
    """First entry whose accuracy is at least `reference`: TTA = min {t : acc_t >= reference}.

    Args:
        rounds: rounds completed at each evaluation, ascending.
        accuracy: accuracy at each evaluation, as a fraction (nan never reaches).
        reference: accuracy to reach; a difference below `TIE` counts as reached.
        seconds: cumulative training seconds at each evaluation, if known.
        traffic: cumulative bytes (up and down) at each evaluation, if known.
    """
    if not rounds or len(rounds) != len(accuracy):
        raise ValueError("time_to_accuracy needs one accuracy for each evaluated round, and at least one")
    for index, value in enumerate(accuracy):
        if value >= reference - TIE:
            return TimeToAccuracy(
                reference,
                rounds[-1],
                rounds[index],
                None if seconds is None else seconds[index],
                None if traffic is None else traffic[index],
            )
    return TimeToAccuracy(reference, rounds[-1], None, None, None)


def improvement(baseline: TimeToAccuracy, other: TimeToAccuracy) -> float | None:
    """SosicFL's Table 5: rounds of `baseline` / rounds of `other`; above 1, `other` is faster.

    None when either is censored. A reference that `other` meets before the first round makes it infinite, or 1
    if both do.
    """
    if baseline.rounds is None or other.rounds is None:
        return None
    if other.rounds == 0:
        return 1.0 if baseline.rounds == 0 else math.inf
    return baseline.rounds / other.rounds
