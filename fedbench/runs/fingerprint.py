"""What made a result besides its configuration: the content of its data, and the code that decides its numbers."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.config import compose
from fedbench.core import source
from fedbench.data.dataset import DataSource
from fedbench.runs.config import RunConfig

SAME_NUMBERS = Path(__file__).with_name("same_numbers.csv")  # codes that are known to give the same numbers
TRAIN = tuple(f"fedbench.engine.train.{name}" for name in ("fit", "looped", "stacked", "workers"))
ENGINE = ("fedbench.engine.simulation", *TRAIN)
ENGINE_ROOMS = (
    *(f"fedbench.engine.{name}" for name in ("contract", "method", "preparation", "schedule", "setup")),
    *("fedbench.engine.simulation", "fedbench.engine.train", "fedbench.metrics"),
    *(f"fedbench.core.{name}" for name in ("batch", "rng", "trees")),
)
DATA = tuple(f"fedbench.data.{name}" for name in ("federation", "split"))


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of 12 hexadecimal digits: `data` over the samples, the others over source code (core.source)."""

    data: str
    method: str
    model: str
    partition: str
    engine: str

    @classmethod
    def of(cls, run: RunConfig) -> Fingerprint:
        """Of a run started now.

        Raises:
            DataMissing: its data set is not on this machine.
        """
        classes = [type(run.partition), type(run.model), *_methods(run.plain["method"])]
        partition, model, *methods = (each.__module__ for each in classes)
        return cls(
            data=content(run.dataset),
            method=_code("method", tuple(methods), tuple(map(_home, methods))),
            model=_code("model", (model,), (_home(model),)),
            partition=_code("partition", (partition, *DATA), ("fedbench.data", _home(partition))),
            engine=_code("engine", ENGINE, ENGINE_ROOMS),
        )

    @property
    def code(self) -> str:
        """The hashes of all code as one word, for a column of a result row."""
        return " ".join(
            f"{name}:{getattr(self, name)}" for name in ("method", "model", "partition", "engine")
        )


def changed(recorded: str, now: Fingerprint) -> list[str]:
    """Names of the parts whose code is not what made a result with `recorded` in its column `code`.

    None for a result of before code was recorded: it stands by its commit and the tests that hold its numbers.
    """
    parts = dict(part.split(":") for part in recorded.split())
    same = _same()
    return [name for name, found in parts.items() if _latest(same, name, found) != getattr(now, name)]


@functools.lru_cache(maxsize=8)
def content(data: DataSource) -> str:
    """Hash over every sample and label of `data` as loaded."""
    return data.load().content


@functools.cache
def _code(part: str, modules: tuple[str, ...], rooms: tuple[str, ...]) -> str:
    return _latest(_same(), part, source.digest(modules, rooms))


def _methods(config: Mapping[str, Any]) -> Iterator[type]:
    """The class of a method and those of the methods inside it."""
    yield compose.registry("method").get(str(config["name"]))
    if isinstance(inner := config.get("base"), Mapping):
        yield from _methods(inner)


def _home(module: str) -> str:
    """The package in which the code that a component relies on lies: its room here, or a whole package elsewhere."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "fedbench" else parts[0]


@functools.cache
def _same() -> dict[tuple[str, str], str]:
    """(part, hash) -> a later one that gives the same numbers."""
    with SAME_NUMBERS.open(encoding="utf-8", newline="") as handle:
        return {(row["part"], row["old"]): row["new"] for row in csv.DictReader(handle)}


def _latest(same: Mapping[tuple[str, str], str], part: str, found: str) -> str:
    while (part, found) in same:
        found = same[part, found]
    return found
