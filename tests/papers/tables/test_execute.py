"""Runs that end without a word are told of; runs at once share the machine."""

from __future__ import annotations

import dataclasses
import errno
import os
import pickle
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus

from fedbench.config.compose import compose
from fedbench.config.messages import one_line
from fedbench.core.errors import Stale
from fedbench.papers import execute
from fedbench.papers.plan import Job
from fedbench.runs.config import from_plain, resolve
from fedbench.sweeps.jobs import JobOutcome
from tests.helpers.codes import edit
from tests.helpers.labelled_formats import write_labelled
from tests.helpers.tiers import sampled

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
    assert launcher.launch.call_count == 2, "it was tried once more"


@pytest.mark.slow
def test_a_failure_that_its_folder_cannot_hold_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedbench.runs.folder.write_text", Mock(side_effect=OSError(errno.ENOSPC, "the disk is full")))
    lost = job(f"runs_dir={tmp_path}", "partition.num_clients=5000")
    execute.run_all([[lost, dataclasses.replace(lost, study="cost")]], ["hydra/launcher=basic"])
    study, run = capsys.readouterr().err.splitlines()
    assert "num_clients=5000" in run
    assert study.startswith("error: unknown study 'cost'")
    assert lost.failure == ""


def test_a_full_disk_ends_no_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be stored is stored at a later look."""
    looked, again = list[int](), threading.Event()

    def watch(finished: Sequence[Job], failed: Sequence[Job]) -> None:
        looked.append(len(finished))
        if len(looked) == 1:
            raise OSError(errno.ENOSPC, "the disk is full")
        again.set()

    monkeypatch.setattr(execute, "POLL", 0.01)
    with execute._watching([Mock(finished=True, failure="")], watch):
        assert again.wait(10)
    assert set(looked) == {1}


def seeds_of(base: Job, count: int) -> list[Job]:
    configs = [base.config.changed(seed=seed) for seed in range(count)]
    return [Job((*base.overrides, f"seed={seed}"), config) for seed, config in enumerate(configs)]


class Pool:
    """A launcher's processes: `kills` says which tasks kill theirs; a `shared` pool loses all others with it."""

    def __init__(self, folder: Path, jobs: list[Job], kills: Callable[[int, int], bool], *, shared: bool) -> None:
        self.folder, self.jobs, self.kills, self.shared = folder, jobs, kills, shared
        self.asked: list[list[int]] = []
        self.tries = Counter[int]()

    def __call__(self, numbers: Sequence[int]) -> list[JobReturn]:
        self.asked.append(list(numbers))
        for begun in numbers[:2] if self.shared else ():  # two at once
            (self.folder / f"{begun}.log").touch()
        return [self.one(number) for number in numbers]

    def one(self, number: int) -> JobReturn:
        self.tries[number] += 1
        log = self.folder / f"{number}.log"
        if self.kills(number, self.tries[number]):
            log.touch()
            if self.shared:
                raise RuntimeError("the pool is broken")
            dead = JobReturn(status=JobStatus.FAILED)
            dead.return_value = RuntimeError("killed")
            return dead
        with self.jobs[number].folder as folder:
            folder.finish({"seed": number})
        log.unlink(missing_ok=True)
        return JobReturn(_return_value=JobOutcome(), status=JobStatus.COMPLETED)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("killers", [(0,), (1, 3)])
@pytest.mark.parametrize("times", sampled([1, 2], every=2))
def test_a_task_that_kills_its_process_is_tried_once_more_and_costs_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shared: bool, killers: tuple[int, ...], times: int
) -> None:
    jobs = seeds_of(job(f"runs_dir={tmp_path / 'runs'}"), 5)
    (folder := tmp_path / "logs").mkdir()
    pool = Pool(folder, jobs, lambda number, tries: number in killers and tries <= times, shared=shared)
    execute._persist(jobs, folder, pool)
    lost = killers if times == 2 else ()
    assert [number for number, each in enumerate(jobs) if not each.finished] == [*lost]
    for number in lost:
        assert jobs[number].failure.endswith(f"is gone), twice; log: {folder / f'{number}.log'}")
    assert all(pool.tries[number] <= 2 for number in range(5))
    said = capsys.readouterr().err
    for number in killers:
        assert f"seed={number}; log: {folder / f'{number}.log'}" in said
    if not shared:
        assert pool.asked == [[0, 1, 2, 3, 4], [*killers]]


@pytest.mark.parametrize(
    ("launcher", "line"),
    sampled(
        [
            (["hydra/launcher=slurmm"], "unknown hydra/launcher 'slurmm'; nearest: "),
            (["hydra/launcher=joblib", "hydra.launcher.njobs=2"], "nearest: hydra.launcher.n_jobs"),
            (["hydra/launcher=eight_cards", "hydra.launcher.gpus=1"], "nearest: hydra.launcher.num_gpus"),
            (["hydra/launcher=ray"], "hydra.launcher needs Ray: pip install 'fedbench-harness[ray]'"),
            (["hydra/launcher=submitit_lokal"], "asks for submitit: pip install 'fedbench-harness[slurm]'"),
        ],
        every=3,
    ),
)
def test_a_launcher_that_cannot_be_had_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: list[str], line: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Exception, match=r".") as error:
        execute.run_all([[job(f"runs_dir={tmp_path}")]], launcher)
    assert line in str(one_line(error.value))
    assert not (tmp_path / ".sweeps").exists()


def test_a_launcher_that_begins_nothing_is_an_error(tmp_path: Path) -> None:
    pool = Mock(side_effect=RuntimeError("no such cluster"))
    with pytest.raises(RuntimeError, match="no such cluster"):
        execute._persist([job(f"runs_dir={tmp_path}")], tmp_path, pool)


def test_a_process_that_dies_between_two_tasks_costs_none(tmp_path: Path) -> None:
    jobs = seeds_of(job(f"runs_dir={tmp_path / 'runs'}"), 3)
    pool = Pool(tmp_path, jobs, lambda _number, _tries: False, shared=False)
    broken = iter([True, False])

    def attempt(numbers: Sequence[int]) -> list[JobReturn]:
        if next(broken):
            pool.one(numbers[0])
            raise RuntimeError("the pool is broken")
        return pool(numbers)

    execute._persist(jobs, tmp_path, attempt)
    assert pool.asked == [[1, 2]]
    assert all(each.finished for each in jobs)


def test_what_a_process_prints_is_in_its_log_while_it_lives(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "0.log"
    with execute._printing_to(log):
        os.write(1, b"round 3\n")
        os.write(2, b"round 4")
        first, *rounds = log.read_text().splitlines()
    assert first.startswith(f"process {os.getpid()} on ")
    assert rounds == ["round 3", "round 4"]
    assert not log.exists()
    with pytest.raises(KeyboardInterrupt), execute._printing_to(log):
        raise KeyboardInterrupt
    assert not log.exists(), "a run that is stopped has said where it is saved"
    os.write(1, b"to who asked")
    assert capfd.readouterr() == ("to who asked", "")


def test_another_process_finds_the_folder_that_it_is_asked_in_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the runs, wherever these are: it composes its config from the overrides alone."""
    instantiate = Mock(return_value=Mock(launch=Mock(return_value=[])))
    monkeypatch.setattr(Plugins.instance(), "instantiate_launcher", instantiate)
    runs = tmp_path / "o'clock, and $more"
    one = job()
    execute.run_all([[Job(one.overrides, one.config.changed(runs_dir=str(runs)))]], ["hydra/launcher=joblib"])
    (context, _, config), _ = instantiate.call_args
    folder = Path(context.config_loader.load_sweep_config(config, ["+job=0"]).hydra.sweep.dir)
    assert folder == Path(config.hydra.sweep.dir)
    assert folder.parent == runs / ".sweeps"


@pytest.mark.parametrize(
    ("runs", "asked", "expected"), sampled([(1, (), "auto"), (2, (), "looped"), (2, ("stacked",), "stacked")], every=3)
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
    plains, apart = pickle.loads(pickle.dumps(task)).args  # as it goes to another process
    assert apart
    found = [from_plain(plain) for plain in plains]
    assert [each.hardware.engine for each in found] == [expected] * runs
    assert [each.key for each in found] == [each.key for each in jobs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "gpu", "expected"),
    [
        (["joblib"], False, "looped"),
        (["joblib"], True, "auto"),
        (["ray"], True, "looped"),
        (["ray", "hydra.launcher.num_gpus=0.5"], False, "auto"),
    ],
)
def test_runs_at_once_on_gpus_keep_their_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: list[str], gpu: bool, expected: str
) -> None:
    """On one of this machine, or on those that the launcher gives: this machine may be a cluster's login node."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    instantiate = Mock(return_value=Mock(launch=Mock(return_value=[])))
    monkeypatch.setattr(Plugins.instance(), "instantiate_launcher", instantiate)
    jobs = [job(f"runs_dir={tmp_path}", "hardware=auto", f"seed={seed}") for seed in range(2)]
    execute.run_all([jobs], [f"hydra/launcher={launcher[0]}", *launcher[1:]])
    (_, task, _), _ = instantiate.call_args
    assert [plain["hardware"]["engine"] for plain in task.args[0]] == [expected] * 2


@pytest.mark.slow
def test_a_run_is_not_composed_again_from_its_overrides(tmp_path: Path) -> None:
    """They are for people to read: what runs is the plain config."""
    given = job(f"runs_dir={tmp_path}", "dataset.limit=60")
    execute.run_all([[dataclasses.replace(given, overrides=("method=nonsense",))]], ["hydra/launcher=basic"])
    assert given.finished


def study(tmp_path: Path, *more: str) -> Job:
    """Of the samples that lie in a folder now."""
    data = ("dataset=mnist", f"dataset.root={tmp_path / 'data'}", "dataset.partial=true")
    return dataclasses.replace(job(*data, f"runs_dir={tmp_path / 'runs'}", *more), study="model_cost")


@pytest.mark.slow
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


@pytest.mark.slow
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
