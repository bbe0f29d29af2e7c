"""Runs that end without a word are told of; runs that must not share a process do not."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus

from fedbench.config.compose import compose
from fedbench.core.errors import Stale
from fedbench.runs.config import from_plain, resolve, run_key
from fedbench.tables import execute
from fedbench.tables.plan import Job, local_reference
from tests.helpers.codes import edit
from tests.helpers.labelled_formats import write_labelled

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
    twins = [local_reference(job(*more, f"seed={seed}")) for seed in range(2)]
    assert execute._stackable(twins) == [twins]
    assert [local_reference(twin) for twin in twins] == twins, "Local needs no reference"


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


def study(tmp_path: Path, *more: str) -> Job:
    """Of the samples that lie in a folder now."""
    data = ("dataset=mnist", f"dataset.root={tmp_path / 'data'}", "dataset.partial=true")
    return dataclasses.replace(job(*data, f"runs_dir={tmp_path / 'runs'}", *more), study="model_cost")


@pytest.mark.usefixtures("fresh_codes")
def test_a_study_of_other_code_is_made_again_where_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_labelled("mnist", tmp_path / "data", np.arange(60) % 10, np.arange(20) % 10)
    execute.run_all([[study(tmp_path)]], [])
    assert study(tmp_path, "stale=rerun").finished
    edit(monkeypatch, "model")
    assert study(tmp_path).finished, "shown, as a run is"
    with pytest.raises(Stale, match=r"studies/model_cost.*other code \(model changed since\)"):
        _ = study(tmp_path, "stale=error").finished
    assert not study(tmp_path, "stale=rerun").finished
    execute.run_all([[study(tmp_path, "stale=rerun")]], [])
    assert study(tmp_path, "stale=rerun").finished


def test_a_study_of_other_samples_is_another(tmp_path: Path) -> None:
    for shift in (0, 1):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        write_labelled("mnist", tmp_path / "data", (np.arange(60) + shift) % 10, np.arange(20) % 10)
        assert not study(tmp_path).finished
        execute.run_all([[study(tmp_path)]], [])
        assert study(tmp_path).finished
        assert study(tmp_path).folder.result()["data"] == study(tmp_path).data


def test_a_study_of_before_code_was_recorded_is_read(tmp_path: Path) -> None:
    write_labelled("mnist", tmp_path / "data", np.arange(60) % 10, np.arange(20) % 10)
    made = study(tmp_path, "stale=rerun")
    with made.folder as folder:
        folder.finish({"macs": 5.0, "seed": 0})
    assert made.finished
    assert made.folder.result()["macs"] == 5.0
