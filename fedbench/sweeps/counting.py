"""Which job of how many a sweep is at, and how long the rest takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from fedbench.results.units import human_seconds


@dataclass
class Count:
    """Where a sweep whose jobs run in this process, one after the other, stands."""

    first: int  # number of its first job
    jobs: int
    made: list[float] = field(default_factory=list)  # seconds of those that were run

    def line(self, number: int) -> str:
        """What to say before the job with this number."""
        done = number - self.first
        left = sum(self.made) / len(self.made) * (self.jobs - done) if self.made else float("nan")
        ending = f", about {human_seconds(left)} left" if self.made else ""
        return f"run {done + 1} of {self.jobs}{ending}"


@contextmanager
def counted(first: int, jobs: int) -> Iterator[None]:
    """Within it jobs that run in this process say which of how many they are, and how long the rest takes."""
    token = _count.set(Count(first, jobs))
    try:
        yield
    finally:
        _count.reset(token)


def current() -> Count | None:
    """The count of the sweep that this process runs, if it runs one."""
    return _count.get()


_count: ContextVar[Count | None] = ContextVar("_count", default=None)
