"""From a finished run to the number in a cell. A table's YAML names a measure and its parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedbench.config.fields import Registry
from fedbench.core.errors import ConfigError, unknown
from fedbench.metrics import TimeToAccuracy, improvement, time_to_accuracy
from fedbench.runs.run import Run


def reaches(run: Run, reference: float, test_set: str) -> TimeToAccuracy:
    """Return rounds, seconds and bytes until the accuracy of `run` on `test_set` is at least `reference`, a fraction.

    Raises:
        UnknownName: the run was not scored on it.
    """
    return time_to_accuracy(
        [int(row["round"]) for row in run.rounds],
        run.curve(test_set),
        reference,
        [float(row["seconds_total"]) for row in run.rounds],
        [int(row["bytes_up"]) + int(row["bytes_down"]) for row in run.rounds],
    )


@dataclass(frozen=True)
class Measure(ABC):
    """What a table reads off a run."""

    name: ClassVar[str]

    @abstractmethod
    def value(self, run: Run, baseline: Run | None) -> float:
        """Return the number; nan if the run has none (a censored time-to-accuracy)."""


@dataclass(frozen=True)
class Result(Measure):
    """A column of the result row, times a factor."""

    name: ClassVar[str] = "result"
    column: str = "score"
    factor: float = 1.0

    def value(self, run: Run, baseline: Run | None) -> float:
        return self.factor * run.column(self.column)


@dataclass(frozen=True)
class PerRound(Measure):
    """A cumulative column (seconds or bytes) for each round."""

    name: ClassVar[str] = "per_round"
    column: str = "seconds_total"
    factor: float = 1.0

    def value(self, run: Run, baseline: Run | None) -> float:
        return self.factor * run.column(self.column) / run.column("rounds")


@dataclass(frozen=True)
class Clients(Measure):
    """Mean accuracy in percent of the clients from `first` to `last` inclusive (a domain's clients)."""

    name: ClassVar[str] = "clients"
    first: int = 0
    last: int = 0

    def value(self, run: Run, baseline: Run | None) -> float:
        rows = run.client_rows[self.first : self.last + 1]
        return float(np.mean([float(row["acc"] or "nan") for row in rows]))


@dataclass(frozen=True)
class Speedup(Measure):
    """Rounds the baseline takes to its own best accuracy, over the rounds this run takes to it (SosicFL, Table 5)."""

    name: ClassVar[str] = "speedup"
    test_set: str = "local"

    def value(self, run: Run, baseline: Run | None) -> float:
        """Return the number; nan if this run never gets there (censored)."""
        if baseline is None:
            raise ConfigError("the measure 'speedup' needs a row with a baseline")
        reference = max(baseline.curve(self.test_set))
        times = [reaches(each, reference, self.test_set) for each in (baseline, run)]
        ratio = improvement(times[0], times[1])
        return float("nan") if ratio is None else ratio


@dataclass(frozen=True)
class ArrayMean(Measure):
    """The mean over one of the arrays that the method recorded (arrays.npz)."""

    name: ClassVar[str] = "array"
    array: str = ""

    def value(self, run: Run, baseline: Run | None) -> float:
        if self.array not in run.arrays:
            raise unknown("recorded array", self.array, list(run.arrays))
        return float(np.mean(run.arrays[self.array]))


MEASURES: Registry[Measure] = Registry(
    "measure",
    {cls.name: f"{__name__}:{cls.__name__}" for cls in (Result, PerRound, Clients, Speedup, ArrayMean)},
)


def build(config: Mapping[str, Any]) -> Measure:
    """Return the measure a YAML describes: `name` and its parameters."""
    return MEASURES.build(config)
