"""From a finished run to the number in a cell. A table's YAML names a measure and its parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.config.fields import Registry
from fedbench.core.errors import ConfigError, unknown
from fedbench.metrics import client_mean, improvement
from fedbench.runs.progress import amount
from fedbench.runs.run import FAMILIES, NUMBERS, Run, reaches
from fedbench.sample_metrics import METRICS

WORDS = {  # columns of a result row, for a reader
    **{name: f"{metric.words}, mean over clients" for name, metric in METRICS.items()},
    **{f"{name}_pooled": f"{metric.words}, of all clients' samples together" for name, metric in METRICS.items()},
    **{f"ipr_{name}": f"share of the clients that gain on Local by {name}, percent" for name in METRICS},
    **{f"rsd_{name}": f"population standard deviation of the clients' gains over Local by {name}" for name in METRICS},
    "score": "accuracy by the protocol's rule, percent",
    "acc": "mean of the clients' accuracies, percent",
    "ipr": "share of the clients that gain on Local, percent",
    "rsd": "population standard deviation of the clients' gains over Local, points",
    "acc_on_common": "accuracy of the one global model on the global test set, percent",
    "seconds_total": "seconds of the whole run",
    "params": "parameters of the network",
    "macs": "multiplications with additions of a forward pass",
}
PATTERNS = {
    **{f"{name}_on_": f"{metric.words} on the {{}} test set" for name, metric in METRICS.items()},
    **{f"{name}_unseen_": f"{metric.words} of clients that no round met, {{}}" for name, metric in METRICS.items()},
    "acc_on_": "accuracy on the {} test set, percent",
    "acc_of_": "accuracy of the clients of modality {}, percent",
    "acc_unseen_": "accuracy of clients that no round met, percent, {}",
}


@dataclass(frozen=True)
class Measure(ABC):
    """What a table reads from a run."""

    name: ClassVar[str]

    @abstractmethod
    def value(self, run: Run, baseline: Run | None) -> float:
        """Return the number; nan if the run has none (a censored time-to-accuracy)."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The meaning of the number, for a reader."""

    @property
    def reads_local(self) -> bool:
        """Whether the number exists only for a run with a comparison with Local."""
        return False


@dataclass(frozen=True)
class Result(Measure):
    """A column of the result row, times a factor."""

    name: ClassVar[str] = "result"
    column: str = "score"
    factor: float = 1.0

    def value(self, run: Run, baseline: Run | None) -> float:
        return self.factor * run.column(self.column)

    def check(self) -> None:
        """Raise UnknownName for an unknown column, with the nearest known ones."""
        if self.column not in NUMBERS and not self.column.startswith(FAMILIES):
            raise unknown("result column", self.column, NUMBERS)

    @property
    def reads_local(self) -> bool:
        return self.column.partition("_")[0] in ("ipr", "rsd")

    @property
    def words(self) -> str:
        column, prefix = self.column, next(filter(self.column.startswith, PATTERNS), "")
        said = WORDS.get(column) or column.replace("_", " ").replace("acc ", "accuracy, ")
        if prefix and column not in WORDS:
            said = PATTERNS[prefix].format(column.removeprefix(prefix).replace("_pooled", " pooled"))
        return said + (f", times {self.factor:g}" if self.factor != 1 else "")


@dataclass(frozen=True)
class Clients(Measure):
    """Mean accuracy in percent of the scored clients from `first` to `last` inclusive (a domain's clients)."""

    name: ClassVar[str] = "clients"
    first: int = 0
    last: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ConfigError(
                f"measure clients: first={self.first}, last={self.last} is not a range; clients are numbered from 0"
            )

    def value(self, run: Run, baseline: Run | None) -> float:
        """Return the number. Raises ConfigError if the run lacks these clients."""
        rows = run.client_rows[self.first : self.last + 1]
        if len(rows) <= self.last - self.first:
            count = len(run.client_rows)
            raise ConfigError(
                f"measure clients: the run has {amount(count, 'client')}, numbered from 0, and no {self.last}"
            )
        return client_mean(np.array([float(row["acc"] or "nan") for row in rows]))

    @property
    def words(self) -> str:
        return f"mean accuracy of clients {self.first} to {self.last}, percent"


@dataclass(frozen=True)
class Speedup(Measure):
    """Rounds the baseline takes to its own best accuracy, over the rounds this run takes to it (SosicFL, Table 5)."""

    name: ClassVar[str] = "speedup"
    test_set: str = "local"

    def value(self, run: Run, baseline: Run | None) -> float:
        """Return the number; nan if this run never reaches the accuracy (censored)."""
        if baseline is None:
            raise ConfigError("the measure 'speedup' needs a row with a baseline")
        reference = float(np.nanmax(baseline.curve(self.test_set)))
        times = [reaches(each, reference, self.test_set) for each in (baseline, run)]
        ratio = improvement(times[0], times[1])
        return float("nan") if ratio is None else ratio

    @property
    def words(self) -> str:
        return (
            f"rounds of the baseline to its best accuracy on the {self.test_set} test set, over this run's rounds to it"
        )


@dataclass(frozen=True)
class ArrayMean(Measure):
    """The mean over one of the arrays that the method recorded (arrays.npz)."""

    name: ClassVar[str] = "array"
    array: str = ""

    def value(self, run: Run, baseline: Run | None) -> float:
        if self.array not in run.arrays:
            raise unknown("recorded array", self.array, list(run.arrays))
        return float(np.mean(run.arrays[self.array]))

    @property
    def words(self) -> str:
        return f"mean of what the method records as {self.array}"


MEASURES: Registry[Measure] = Registry(
    "measure",
    {cls.name: f"{__name__}:{cls.__name__}" for cls in (Result, Clients, Speedup, ArrayMean)},
)
build = MEASURES.build
