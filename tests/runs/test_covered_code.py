"""The hashes of code cover all that decides a run's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.core import source
from fedbench.engine import setup, simulation
from fedbench.engine.train import looped
from fedbench.results import history, summary
from fedbench.runs import fingerprint
from tests.helpers.runs import config

SILENT = {  # what a run imports and no part covers, with what it does instead of deciding numbers
    "its configuration, which the run key holds": ("fedbench.config", "fedbench.runs"),
    "the samples, whose content is hashed": (
        "fedbench.data.dataset",
        "fedbench.data.datasets",
        "fedbench.data.formats",
    ),
    "files, messages, waiting": tuple(
        f"fedbench.core.{name}"
        for name in (
            *("cache", "checksum", "errors", "files", "interruption", "lock", "progress", "sealed", "source"),
            *("transfer", "version"),
        )
    ),
    "what is shown, kept and measured beside the numbers": (
        *("fedbench.plots", "fedbench.recorders", "fedbench.engine.recording", "fedbench.engine.conformance"),
        *("fedbench.engine.hooks", "fedbench.engine.pick"),
    ),
}


def test_all_code_that_a_run_is_made_of_counts_or_is_known_to_decide_nothing(tmp_path: Path) -> None:
    """A new module is in a part of `code_of`, or is entered above with what it is."""
    pair = config(tmp_path, "dataset=captioned", "model=small_pair", "method=fedavg", "partition=homo")
    single = config(tmp_path, "method=fedavg", "protocol.augment=[flip]")
    counted = set()
    for run in (pair, single):
        for where in fingerprint._parts(run).values():
            counted |= source.closure(*where)
    shown = {f"fedbench.results.{file.stem}" for file in Path(summary.__file__).parent.glob("*.py")} - {
        history.__name__,
        summary.__name__,
    } | {"fedbench.results.trackers"}
    silent = {*shown, *(name for names in SILENT.values() for name in names)}
    every = source.closure(["fedbench.runs.execution"], ["fedbench"]) - {"fedbench"}
    other = {
        name for name in every - counted if not any(f"{name}.".startswith(f"{each}.") for each in silent)
    }
    chosen = ("fedbench.methods", "fedbench.models", "fedbench.data.partitions")  # those of other runs
    assert {name for name in other if not name.startswith(chosen)} == set()


@pytest.mark.parametrize(
    "module",
    [
        "data.augment",
        "metrics.fairness",
        "metrics.report_rules",
        "models.joint_task",
        "engine.kinds",
        "results.history",
    ],
)
def test_the_engines_hash_covers(module: str) -> None:
    assert f"fedbench.{module}" in source.closure(fingerprint.ENGINE, fingerprint.ENGINE_ROOMS)


def test_the_engines_code_is_all_that_its_modules_are_made_of() -> None:
    """What the loop, preparations and trainers are defined in; a module that moves takes its room along."""
    for made in (simulation.Simulation, simulation.Preparing, setup.Setup, looped.LoopedTrainer):
        name = made.__module__
        assert any(name == room or name.startswith(f"{room}.") for room in fingerprint.ENGINE_ROOMS), name
