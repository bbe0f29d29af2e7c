"""What made a result besides its configuration: the content of its data, and the code that decides its numbers.

A run's folder carries the content of the data in its name, so other samples make another run. The code is a hash a part
(method, model, partition, engine) over the source text that decides the numbers (fedbench.core.source). It is written
when a run begins and compared whenever the run is shown, resumed, used as Local or put into a table.
"""

from __future__ import annotations

import csv
import functools
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedbench.config import groups
from fedbench.core import source
from fedbench.data.dataset import Dataset, DataSource
from fedbench.runs.config import RunConfig

log = logging.getLogger("fedbench")

SAME_NUMBERS = Path(__file__).with_name("same_numbers.csv")  # codes that are known to give the same numbers
TRAIN = tuple(
    f"fedbench.engine.train.{name}" for name in ("by_kind", "fit", "joint", "looped", "stacked", "workers")
)
# Which round's numbers, and of what.
REPORT = tuple(f"fedbench.results.{name}" for name in ("history", "summary"))
ENGINE = ("fedbench.engine.simulation", "fedbench.engine.kinds", *TRAIN, *REPORT)
ROOMS = (
    "clients",
    "contract",
    "kinds",
    "method",
    "preparation",
    "preparing",
    "schedule",
    "scored_sets",
    "scores",
    "selectors",
    "setup",
    "simulation",
    "state",
    "train",
)
ENGINE_ROOMS = (
    *(f"fedbench.engine.{name}" for name in ROOMS),
    *(f"fedbench.core.{name}" for name in ("batch", "rng", "trees")),
    "fedbench.data.augment",
    "fedbench.metrics",
    "fedbench.models.joint_task",
    *REPORT,
)
DATA = tuple(f"fedbench.data.{name}" for name in ("federation", "split"))


def code_of(run: RunConfig) -> str:
    """Hashes of today's code for `run`, as "method:0123456789ab model:... partition:... engine:..."."""
    return " ".join(f"{part}:{_digest(part, *where)}" for part, where in _parts(run).items())


def warn_of_edits(run: RunConfig) -> None:
    """Say so where code was edited after this process began, as in a notebook: what runs is what it was then."""
    for part, where in _parts(run).items():
        if source.edited(*where):
            warn_once(
                f"the code of {part} was edited after this process began, which runs what it was: start again"
            )


def _parts(run: RunConfig) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """The modules of each part, and the rooms within which what they import counts."""
    methods = tuple(each.__module__ for each in _methods(run.plain["method"]))
    partition = type(run.partition).__module__
    models = tuple(type(each).__module__ for each in (run.model, *run.model.networks.values()))
    return {
        "method": (methods, tuple(map(_home, methods))),
        "model": (tuple(dict.fromkeys(models)), tuple(dict.fromkeys(map(_home, models)))),
        "partition": ((partition, *DATA), ("fedbench.data", _home(partition))),
        "engine": (ENGINE, ENGINE_ROOMS),
    }


def changed(recorded: str, today: str) -> list[str]:
    """The parts whose code is not what made a result with `recorded` in its column `code`.

    None for a result of before code was recorded: it stands by its commit and the tests that hold its numbers.
    """
    now = dict(part.split(":") for part in today.split())
    then = dict(part.partition(":")[::2] for part in recorded.split())
    return [part for part, found in then.items() if _latest(part, found) != now.get(part)]


def load(data: DataSource) -> Dataset:
    """The data set, read once for all runs of a sweep, and again when its files change."""
    return _load(data, data.stamp)


def content(data: DataSource) -> str:
    """Hash over every sample and label of `data` as loaded.

    Raises:
        DataMissing: it is not on this machine.
        DataCorrupt: a file is truncated, altered or of another format.
    """
    return _content(data, data.stamp)


@functools.lru_cache(maxsize=2)
def _load(data: DataSource, _: str) -> Dataset:
    return data.load()


@functools.lru_cache(maxsize=64)
def _content(data: DataSource, stamp: str) -> str:
    return _load(data, stamp).content


@functools.cache
def _digest(part: str, modules: tuple[str, ...], rooms: tuple[str, ...]) -> str:
    """The hash of a part; if its files may not be what was imported, one that no code has."""
    found = _latest(part, source.digest(modules, rooms))
    return f"{found}edited" if source.edited(modules, rooms) else found


@functools.cache
def warn_once(text: str) -> None:
    """Log a warning that many runs would repeat."""
    log.warning(text)


def _methods(config: Mapping[str, Any]) -> Iterator[type]:
    """The class of a method and those of the methods inside it."""
    yield groups.registry("method").get(str(config["name"]))
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


def _latest(part: str, found: str) -> str:
    while (part, found) in _same():
        found = _same()[part, found]
    return found
