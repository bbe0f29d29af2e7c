"""What a run tells the world while it goes on: a progress bar, a logger, or whatever subclasses Observer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedbench.results.history import Record


@dataclass(frozen=True)
class Labels:
    """The names under which people look for a run. They identify it only together with its key."""

    dataset: str
    partition: str
    model: str
    method: str
    protocol: str
    seed: int
    variant: str = ""  # what tells apart runs of one method in a sweep, such as "mu=0.1"


class Observer:
    """Base class: every hook does nothing. An observer never changes a result and never raises."""

    def start(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        """A run of `rounds` rounds begins, `resumed_from` of which are already done (0: from the start)."""

    def phase(self, name: str) -> None:
        """The run enters a phase (fedbench.results.history.PHASES)."""

    def advance(self, done: int) -> None:
        """`done` rounds are completed; called after every round, scored or not."""

    def record(self, record: Record) -> None:
        """A round was scored."""

    def recall(self, result: Mapping[str, Any]) -> None:
        """The run was completed by an earlier command, which is told before `finish`."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """The run is complete; `result` is its row (fedbench.results.summary)."""

    def close(self) -> None:
        """The run is over, complete or not: always called last, also after an error. Releases what is held."""


class Observers(Observer):
    """Several observers as one, told in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def start(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.start(labels, rounds, resumed_from)

    def phase(self, name: str) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.phase(name)

    def advance(self, done: int) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.advance(done)

    def record(self, record: Record) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.record(record)

    def recall(self, result: Mapping[str, Any]) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.recall(result)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.finish(result)

    def close(self) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.close()
