"""Runs and sweeps of several threads and processes, and the torch and standard output of whoever calls them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import fedbench
from fedbench.core import locks
from tests.helpers.tiers import sampled

SMALL = (
    "dataset.limit=100",
    "protocol.rounds=2",
    "protocol.local.epochs=1",
    "partition=homo",
    "partition.num_clients=3",
)
SMALL += ("hardware=cpu", "hardware.engine=looped")


@pytest.mark.slow
def test_sweeps_and_runs_in_threads_are_as_one_after_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.02)
    before = sys.stdout, list(sys.argv), torch.get_num_threads()

    def sweep(k: int, folder: Path) -> pd.DataFrame:
        print(f"thread {k}")
        return fedbench.sweep("method=local,fedavg", *SMALL, seed=[k, k + 1], runs_dir=folder)

    with ThreadPoolExecutor(4) as pool:
        swept = [pool.submit(sweep, k, tmp_path / "threads") for k in (0, 1)]
        alone = pool.submit(fedbench.run, "method=ditto", *SMALL, runs_dir=tmp_path / "threads")
        found = [each.result(120) for each in swept]
        assert alone.result(120).row["method"] == "ditto"
    assert (sys.stdout, list(sys.argv), torch.get_num_threads()) == before
    assert sorted(capsys.readouterr().out.splitlines()) == ["thread 0", "thread 1"]
    for k in (0, 1):
        pd.testing.assert_series_equal(found[k]["acc"], sweep(k, tmp_path / "alone")["acc"])


@pytest.mark.slow
def test_the_same_run_asked_for_at_once_is_made_once_and_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.02)
    asked = [(method, seed) for method in ("fedavg", "ditto") for seed in (0, 0, 1)]
    with ThreadPoolExecutor(6) as pool:
        runs = [
            *pool.map(lambda each: fedbench.run(f"method={each[0]}", *SMALL, seed=each[1], runs_dir=tmp_path), asked)
        ]
    assert sorted(not run.earlier for run in runs) == [False, False, True, True, True, True]
    assert {(run.row["method"], run.row["seed"]) for run in runs} == set(asked)
    assert "in use by process" in caplog.text


@pytest.mark.slow
def test_two_processes_at_one_run_wait_for_each_other(tmp_path: Path) -> None:
    code = (
        "import fedbench, sys\n"
        f"run = fedbench.run('method=fedavg', *{SMALL!r}, 'protocol.rounds=60', runs_dir=sys.argv[1])\n"
        "print(run.earlier, run.row['acc'])"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate(timeout=300)[0].split() for process in processes)
    assert [each[0] for each in said] == ["False", "True"]
    assert said[0][1] == said[1][1]


class DefaultType:
    def __enter__(self) -> None:
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(torch.float32)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "meta": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "float64": DefaultType,
}


@pytest.mark.parametrize("mode", sampled([*MODES, "all"], every=6))
def test_the_caller_s_modes_of_torch_change_nothing_and_are_left_on(mode: str, tmp_path: Path) -> None:
    chosen = ("method=finetune", *SMALL)
    plain = fedbench.run(*chosen, runs_dir=tmp_path / "plain", save_models=True)
    with ExitStack() as modes:
        for name in MODES if mode == "all" else [mode]:
            modes.enter_context(MODES[name]())
        state = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_device()
        run = fedbench.run(*chosen, runs_dir=tmp_path / "mode", save_models=True)
        predicted = run.predict(1).scores
        now = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_device()
        assert now == state
    assert predicted.tolist() == plain.predict(1).scores.tolist()
    assert all(torch.equal(run.models[name], leaf) for name, leaf in plain.models.items())
    assert run.clients.equals(plain.clients)
