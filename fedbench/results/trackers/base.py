"""What the trackers share: a failure of theirs is told once and ends the logging, not the run."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from fedbench.results.history import Record, record_row
from fedbench.results.observer import Labels, Observer

log = logging.getLogger("fedbench")
FINAL = ("acc", "acc_pooled", "ipr", "rsd")  # of the result row, for trackers that take numbers only


class Tracker(Observer):
    """Opens a record of the run, logs a row for every scored round and the final metrics, and closes it.

    A subclass imports its library in `open`.
    """

    name: ClassVar[str]

    def __init__(self, key: str, folder: Path, config: Mapping[str, Any] | None = None) -> None:
        """`key` is the run's key, under which a resumed run goes on, `folder` the run's, `config` a nested mapping."""
        self.key, self.folder, self.config = key, folder, dict(config or {})
        self.failed = False
        self._opened = self._complete = False

    # ---- what a subclass does

    @abstractmethod
    def open(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        """Begin, or go on with, the record of a run."""

    @abstractmethod
    def log(self, round_: int, row: Mapping[str, Any]) -> None:
        """The row of a scored round."""

    @abstractmethod
    def summarise(self, result: Mapping[str, Any]) -> None:
        """The result row."""

    @abstractmethod
    def end(self, *, complete: bool) -> None:
        """Close the record."""

    # ---- Observer

    def start(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        """See Observer.start."""
        self._opened = self._guarded(lambda: self.open(labels, rounds, resumed_from))

    def record(self, record: Record) -> None:
        """See Observer.record."""
        if self._opened:
            self._guarded(lambda: self.log(record.round, record_row(record)))

    def finish(self, result: Mapping[str, Any]) -> None:
        """See Observer.finish."""
        if self._opened:
            self._guarded(lambda: self.summarise(result))
        self._complete = True

    def close(self) -> None:
        """See Observer.close; a run that did not finish is marked as failed where the library can."""
        if self._opened:
            self._opened = False
            self._guarded(lambda: self.end(complete=self._complete))

    def _guarded(self, action: Callable[[], None]) -> bool:
        """Whether it was done."""
        if self.failed:
            return False
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the library's own failures are of many types
            self.failed = True
            log.warning("%s logging is off for this run: %s", self.name, error)
        return not self.failed


def title(labels: Labels) -> str:
    """What a run is called in a tracker's list."""
    return " ".join(part for part in (labels.method, labels.variant, f"seed {labels.seed}") if part)


def setting(labels: Labels) -> str:
    """What runs that may be compared share."""
    return f"{labels.dataset}/{labels.partition}/{labels.model}/{labels.protocol}"
