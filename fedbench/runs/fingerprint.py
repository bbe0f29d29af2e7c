"""Hashes of the data and of the code behind a result.

The name of a run's folder contains the hash of its data, so other samples make another run. The code has one hash for
each part (method, model, partition, engine) over the source that decides the numbers (fedbench.core.source). It is
written when a run begins and compared whenever the run is shown, resumed, used as Local or put into a table.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from fedbench.config import groups
from fedbench.core import source
from fedbench.core.errors import warn_once
from fedbench.core.files import read_csv
from fedbench.core.version import __version__
from fedbench.data.dataset import Dataset, DataSource
from fedbench.runs.config import RunConfig
from fedbench.runs.progress import FileProgress

SAME_NUMBERS = Path(__file__).with_name("same_numbers.csv")  # codes that are known to give the same numbers
ENGINE = (
    "fedbench.engine.simulation:Simulation",
    "fedbench.engine.setup:assemble",
    "fedbench.engine.trainer:by_modality",
    "fedbench.engine.looped:LoopedTrainer",
    "fedbench.engine.stacked:StackedTrainer",
    "fedbench.engine.workers:WorkersTrainer",
    "fedbench.engine.workers:serve",
    "fedbench.engine.optim:fit",
    "fedbench.runs.run:summarise",  # which round's numbers, and of what
)
PARTITION = ("fedbench.data.partition:make_partition",)
SILENT = frozenset(  # what the code that decides numbers calls, and what decides none: files, checks, errors, choices
    source.Definition(*name.split(":"))
    for name in (
        "fedbench.config.fields:Component",
        "fedbench.config.groups:registry",
        "fedbench.core.cache:cached_arrays",
        "fedbench.core.errors:is_out_of_memory",
        "fedbench.core.errors:unknown",
        "fedbench.core.checked:load_npz",
        "fedbench.core.source:digest",
        "fedbench.engine.hardware:pick_trainer",
        "fedbench.engine.hooks:HookError",
        "fedbench.runs.building:build",
        "fedbench.runs.config:RunConfig",
        "fedbench.runs.config:from_plain",
        "fedbench.runs.fingerprint:load_data",
    )
)


def code_of(run: RunConfig, study: tuple[str, ...] = ()) -> str:
    """Return hashes of today's code for `run`, as "method:0123456789ab model:... partition:... engine:...".

    `study`: definitions, as "module:Name", of a study of the run, which has a fifth hash.
    """
    parts = roots_of(run) | ({"study": study} if study else {})
    return " ".join(f"{part}:{_digest(part, roots)}" for part, roots in parts.items())


def warn_of_edits(run: RunConfig) -> None:
    """Warn if code was edited after this process began, as in a notebook: the process runs the earlier code."""
    for part, roots in roots_of(run).items():
        if source.edited(_covered(part, roots)[1]):
            warn_once(
                f"the code of {part} was edited after this process began, which still runs the old code: restart it"
            )


def roots_of(run: RunConfig) -> dict[str, tuple[str, ...]]:
    """Return the definitions, as "module:Name", with which each part of the code of `run` begins."""
    networks = dict.fromkeys(_root(type(each)) for each in (run.model, *run.model.networks.values()))
    return {
        "method": tuple(_root(each) for each in _methods(run.plain["method"])),
        "model": tuple(networks),
        "partition": (_root(type(run.partition)), *PARTITION),
        "engine": ENGINE,
    }


def _root(component: type) -> str:
    return f"{component.__module__}:{component.__qualname__}"


def changed(recorded: str, today: str) -> list[str]:
    """Return the parts whose code differs from `recorded`, the column `code` of a result.

    There is none for a result without recorded code, which its commit and the tests of its numbers vouch for.
    """
    now = dict(part.split(":") for part in today.split())
    then = dict(part.partition(":")[::2] for part in recorded.split())
    return [part for part, found in then.items() if now.get(part) not in _equal(part, found)]


def load_data(data: DataSource) -> Dataset:
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
    with closing(FileProgress(f"{data.name}, first use: ")) as shown:
        return data.load(shown)


@functools.lru_cache(maxsize=64)
def _content(data: DataSource, stamp: str) -> str:
    return _load(data, stamp).content


@functools.cache
def _digest(part: str, roots: tuple[str, ...]) -> str:
    """Return the hash of a part; if its files may differ from the imported code, a hash that no code has."""
    digest, definitions = _covered(part, roots)
    return digest + ("edited" if source.edited(definitions) else "")


@functools.cache
def _covered(part: str, roots: tuple[str, ...]) -> tuple[str, frozenset[source.Definition]]:
    # Left out are definitions without effect, and those of the engine's hash.
    return source.covered(roots, SILENT if part == "engine" else SILENT | _covered("engine", ENGINE)[1])


def _methods(config: Mapping[str, Any]) -> Iterator[type]:
    """The class of a method and those of the methods inside it."""
    yield groups.registry("method").get(str(config["name"]))
    if isinstance(inner := config.get("base"), Mapping):
        yield from _methods(inner)


@functools.cache
def _same() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the later hashes, by (part, hash), of code that gives the same numbers."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for row in read_csv(SAME_NUMBERS):
        key = row["part"], row["old"]
        found[key] = (*found.get(key, ()), row["new"])
    return found


def _equal(part: str, found: str) -> set[str]:
    """Return the hashes of code that gives the same numbers as `found`, itself included."""
    reached, waiting = set(), [found]
    while waiting:
        each = waiting.pop()
        if each not in reached:
            reached.add(each)
            waiting += _same().get((part, each), ())
    return reached


MAKING = ("fedbench", "conf", "hydra_plugins", "pyproject.toml")  # what results are made by, in a checkout


def versions() -> dict[str, str]:
    """Columns of a result row: version_fedbench, version_python, version_torch, version_numpy, commit."""
    import numpy as np
    import torch

    found = {
        "version_fedbench": __version__,
        "version_python": platform.python_version(),
        "version_torch": str(torch.__version__),
        "version_numpy": np.__version__,
    }
    commit, dirty = source_commit()
    return {**found, "commit": commit + ("+changes" if dirty else "")}


def environment(device: str = "cpu") -> dict[str, Any]:
    """Return everything that helps to explain a number or a time later; `device` has torch's name."""
    import torch

    commit, dirty = source_commit()
    return {
        **versions(),
        "commit": commit,
        "commit_has_changes": dirty,
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
        "gpu": torch.cuda.get_device_name(device) if device.startswith("cuda") else "",
        "command": sys.argv,
        "started": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
    }


def machine(made: Mapping[str, Any] | None = None) -> str:
    """Return processor, cores and GPU of a recorded `environment`, or of this machine."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    made = made or {"cpu": _cpu_name(), "cpu_count": os.cpu_count(), "gpu": gpu}
    return ", ".join(filter(None, (made["cpu"], f"{made['cpu_count']} cores", made["gpu"])))


def source_commit(source: Path | None = None) -> tuple[str, bool]:
    """Return (commit, whether code or settings differ from it) of the checkout with `source` at its top level.

    Other tracked files may differ, such as a filled table in results/ that is not committed yet.
    ("", False) for an installed package, even if it is installed somewhere inside another repository.
    """
    top = (source or Path(__file__).parents[1]).resolve().parent
    if not (top / ".git").exists():
        return "", False
    commit = _git(top, "rev-parse", "HEAD")
    return commit, bool(commit and _git(top, "status", "--porcelain", "--untracked-files=no", "--", *MAKING))


def _git(folder: Path, *arguments: str) -> str:
    """Output of a git command; empty when git is missing or refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
