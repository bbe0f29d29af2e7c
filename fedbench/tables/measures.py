"""From a finished run to the number in a cell. A table's YAML names a measure and its parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedbench.config.registry import Registry
from fedbench.core.errors import ConfigError, unknown
from fedbench.metrics.time_to_accuracy import TimeToAccuracy, improvement, time_to_accuracy
from fedbench.results.run_files import ARRAYS, CLIENTS, ROUNDS, files_of, numeric_rows


@dataclass(frozen=True)
class Finished:
    """A finished run: its row and, for what is not in the row, its folder."""

    row: Mapping[str, Any]
    folder: Path

    def rounds(self) -> list[dict[str, str]]:
        """One row a scored round (rounds.csv), numbers as text.

        Raises:
            Damaged: it is not as it was written.
        """
        columns = ("round", "seconds_total", "bytes_up", "bytes_down")
        return numeric_rows(files_of(self.folder), ROUNDS, *columns)

    def curve(self, test_set: str) -> list[float]:
        """Accuracy on `test_set` at each scored round, as fractions.

        Raises:
            UnknownName: the run was not scored on it.
        """
        name, rows = f"acc_on_{test_set}", self.rounds()
        if name not in rows[0]:
            scored = [key.removeprefix("acc_on_") for key in rows[0] if key.startswith("acc_on_")]
            raise unknown("test set", test_set, scored)
        return [float(row[name] or "nan") / 100 for row in rows]

    def best(self, test_set: str) -> float:
        """The largest accuracy on `test_set` over the scored rounds, as a fraction."""
        return max(self.curve(test_set))

    def reaches(self, reference: float, test_set: str) -> TimeToAccuracy:
        """Rounds, seconds and bytes until the accuracy on `test_set` is at least `reference` (a fraction)."""
        rows = self.rounds()
        return time_to_accuracy(
            [int(row["round"]) for row in rows],
            self.curve(test_set),
            reference,
            [float(row["seconds_total"]) for row in rows],
            [int(row["bytes_up"]) + int(row["bytes_down"]) for row in rows],
        )

    def column(self, name: str) -> float:
        """A column of the row, as a number.

        Raises:
            UnknownName: the row has no such column.
        """
        if name not in self.row:
            raise unknown("result column", name, [str(key) for key in self.row])
        value = self.row[name]
        return float("nan") if value is None else float(value)


@dataclass(frozen=True)
class Measure(ABC):
    """What a table reads off a run."""

    name: ClassVar[str]

    @abstractmethod
    def value(self, run: Finished, baseline: Finished | None) -> float:
        """The number; nan if the run has none (a censored time-to-accuracy)."""


@dataclass(frozen=True)
class Result(Measure):
    """A column of the result row, times a factor."""

    name: ClassVar[str] = "result"
    column: str = "score"
    factor: float = 1.0

    def value(self, run: Finished, baseline: Finished | None) -> float:
        """See the base."""
        return self.factor * run.column(self.column)


@dataclass(frozen=True)
class PerRound(Measure):
    """A cumulative column (seconds or bytes) for each round."""

    name: ClassVar[str] = "per_round"
    column: str = "seconds_total"
    factor: float = 1.0

    def value(self, run: Finished, baseline: Finished | None) -> float:
        """See the base."""
        return self.factor * run.column(self.column) / run.column("rounds")


@dataclass(frozen=True)
class Clients(Measure):
    """Mean accuracy in percent of the clients from `first` to `last` inclusive (a domain's clients)."""

    name: ClassVar[str] = "clients"
    first: int = 0
    last: int = 0

    def value(self, run: Finished, baseline: Finished | None) -> float:
        """See the base."""
        rows = numeric_rows(files_of(run.folder), CLIENTS, "acc")[self.first : self.last + 1]
        return float(np.mean([float(row["acc"] or "nan") for row in rows]))


@dataclass(frozen=True)
class Speedup(Measure):
    """Rounds the baseline takes to its own best accuracy, over the rounds this run takes to it (SosicFL, Table 5)."""

    name: ClassVar[str] = "speedup"
    test_set: str = "local"

    def value(self, run: Finished, baseline: Finished | None) -> float:
        """See the base; nan if this run never gets there (censored)."""
        if baseline is None:
            raise ConfigError("the measure 'speedup' needs a row with a baseline")
        reference = baseline.best(self.test_set)
        times = [each.reaches(reference, self.test_set) for each in (baseline, run)]
        ratio = improvement(times[0], times[1])
        return float("nan") if ratio is None else ratio


@dataclass(frozen=True)
class ArrayMean(Measure):
    """The mean over one of the arrays that the method recorded (arrays.npz)."""

    name: ClassVar[str] = "array"
    array: str = ""

    def value(self, run: Finished, baseline: Finished | None) -> float:
        """See the base."""
        arrays = files_of(run.folder).npz(ARRAYS)
        if self.array not in arrays:
            raise unknown("recorded array", self.array, list(arrays))
        return float(np.mean(arrays[self.array]))


MEASURES: Registry[Measure] = Registry(
    "measure",
    {cls.name: f"{__name__}:{cls.__name__}" for cls in (Result, PerRound, Clients, Speedup, ArrayMean)},
)


def build(config: Mapping[str, Any]) -> Measure:
    """The measure a YAML describes: `name` and its parameters."""
    return MEASURES.build(config)
