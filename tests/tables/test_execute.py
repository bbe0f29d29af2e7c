"""Runs that end without a word are told of; runs that must not share a process do not."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from unittest.mock import Mock

import pytest
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus

from fedbench.config.compose import compose
from fedbench.runs.config import from_plain, resolve, run_key
from fedbench.tables import execute
from fedbench.tables.job import Job, local_twin

CHOSEN = (
    "dataset=digits",
    "partition=homo",
    "model=mlp",
    "method=local",
    "protocol.rounds=1",
    "hardware=cpu",
)


def job(*more: str) -> Job:
    overrides = (*CHOSEN, *more)
    return Job(overrides, resolve(compose(overrides)))


def test_a_process_that_died_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = JobReturn(status=JobStatus.FAILED)
    dead.return_value = RuntimeError("the worker died")
    launcher = Mock(launch=Mock(return_value=[dead]))
    monkeypatch.setattr(Plugins.instance(), "instantiate_launcher", Mock(return_value=launcher))
    lost = job(f"runs_dir={tmp_path}")
    execute.run_all([[lost]], ["hydra/launcher=basic"])
    assert lost.failure == "RuntimeError: the worker died"


@pytest.mark.parametrize("logged", [False, True])
def test_runs_logged_to_wandb_have_a_process_to_themselves(tmp_path: Path, logged: bool) -> None:
    more = ("hardware.engine=stacked", f"runs_dir={tmp_path}", f"wandb.enabled={logged}")
    jobs = [job(*more, f"seed={seed}") for seed in range(2)]
    assert execute._stackable(jobs) == ([] if logged else [jobs])


def test_the_local_references_of_several_seeds_train_together(tmp_path: Path) -> None:
    more = ("method=fedavg", "hardware.engine=stacked", f"runs_dir={tmp_path}")
    twins = [local_twin(job(*more, f"seed={seed}")) for seed in range(2)]
    assert execute._stackable(twins) == [twins]
    assert [local_twin(twin) for twin in twins] == twins, "Local needs no reference"


@pytest.mark.parametrize(
    ("runs", "asked", "expected"), [(1, (), "auto"), (2, (), "looped"), (2, ("stacked",), "stacked")]
)
def test_runs_at_once_take_a_core_each_and_a_single_one_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int, asked: tuple[str, ...], expected: str
) -> None:
    instantiate = Mock(return_value=Mock(launch=Mock(return_value=[])))
    monkeypatch.setattr(Plugins.instance(), "instantiate_launcher", instantiate)
    more = (f"runs_dir={tmp_path}", *(f"hardware.engine={engine}" for engine in asked))
    jobs = [job(*more, f"seed={seed}") for seed in range(runs)]
    execute.run_all([jobs], ["hydra/launcher=joblib"])
    (_, task, _), _ = instantiate.call_args
    (plains,) = pickle.loads(pickle.dumps(task)).args  # as it goes to another process
    assert [from_plain(plain).hardware.engine for plain in plains] == [expected] * runs
    assert [run_key(from_plain(plain)) for plain in plains] == [each.key for each in jobs]


def test_a_run_is_not_composed_again_from_its_overrides(tmp_path: Path) -> None:
    """They are for people to read: what runs is the plain config."""
    given = job(f"runs_dir={tmp_path}", "dataset.limit=60")
    execute.run_all([[dataclasses.replace(given, overrides=("method=nonsense",))]], ["hydra/launcher=basic"])
    assert given.finished
