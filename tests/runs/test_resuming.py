"""Runs that ended early, in whatever way, go on to the same rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedbench.core.errors import CheckpointError, FolderInUse
from fedbench.engine.simulation import State
from fedbench.runs import execution
from fedbench.runs import execution as run
from fedbench.runs.folder import RunFolder
from tests.helpers.runs import FAST, config, count_rounds, kill_and_rerun, rows, same_models, stamps


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedcollab"])
def test_an_interrupted_run_goes_on_to_the_same_rows(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run.execute(config(tmp_path / "whole", f"method={method}", "save_models=true"))
    overrides = [f"method={method}", "save_models=true", "checkpoint.rounds=1"]
    run.execute(config(tmp_path / "parts", "method=local"))
    for stop in (1, 3):
        with monkeypatch.context() as patch:

            def interrupt(state: State, stop: int = stop) -> None:
                if state.round == stop:
                    raise KeyboardInterrupt

            count_rounds(patch, interrupt)
            with pytest.raises(KeyboardInterrupt):
                run.execute(config(tmp_path / "parts", *overrides))
    trained = count_rounds(monkeypatch)
    parts = run.execute(config(tmp_path / "parts", *overrides))
    assert trained == [3]
    assert rows(parts.folder) == rows(whole.folder)
    assert same_models(parts.folder, whole.folder)


def test_a_checkpoint_of_another_config_or_a_damaged_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(state: State) -> None:
        if state.round == 2:
            raise KeyboardInterrupt

    checkpoints = {}
    with monkeypatch.context() as patch:
        count_rounds(patch, stop)
        for lr in (0.1, 0.2):
            with pytest.raises(KeyboardInterrupt):
                run.execute(config(tmp_path, "method=local", "checkpoint.rounds=1", f"protocol.optimizer.lr={lr}"))
            (checkpoints[lr],) = set(tmp_path.rglob("checkpoint.safetensors")) - set(checkpoints.values())
    checkpoints[0.1].write_bytes(checkpoints[0.2].read_bytes())
    with pytest.raises(CheckpointError, match="another configuration"):
        run.execute(config(tmp_path, "method=local", "protocol.optimizer.lr=0.1"))
    damaged = bytearray(checkpoints[0.2].read_bytes())
    damaged[-3] ^= 1
    checkpoints[0.2].write_bytes(damaged)
    with pytest.raises(CheckpointError, match="damaged"):
        run.execute(config(tmp_path, "method=local", "protocol.optimizer.lr=0.2"))
    assert not list(tmp_path.rglob("result.json"))


KEPT = ["checkpoint.rounds=1", "save_models=true"]


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    assert kill_and_rerun(tmp_path, ["method=ditto", "protocol.rounds=40", *KEPT], kills=4, seed=0) == 4


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["looped", "workers", "stacked"])
def test_ten_kills_change_nothing(engine: str, tmp_path: Path) -> None:
    overrides = ["method=fedcollab", "method.discriminator.rounds=20", "protocol.rounds=300"]
    overrides += ["protocol.cohort=50%", f"hardware.engine={engine}", "hardware.workers=2", *KEPT]
    assert kill_and_rerun(tmp_path, overrides, kills=10, seed=os.getpid()) == 10


@pytest.mark.slow
def test_the_command_killed_and_given_again_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    overrides = [*FAST, "method=local", "protocol.rounds=80", "progress=none", "hardware=cpu", *KEPT]
    command = [sys.executable, "-m", "fedbench", *overrides, f"runs_dir={tmp_path / 'parts'}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not stamps(tmp_path):
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not list(tmp_path.rglob("result.json"))
    subprocess.run(command, check=True, capture_output=True)
    whole = run.execute(config(tmp_path / "whole", *overrides))
    (parts,) = tmp_path.glob("parts/**/result.json")
    assert rows(parts.parent) == rows(whole.folder)


def test_a_failure_is_kept_until_the_run_succeeds(tmp_path: Path) -> None:
    folder = run.RunFolder(tmp_path, "0" * 16, execution.labels_of(config(tmp_path)))
    with pytest.raises(ValueError, match="broken"), folder, folder.noting_failure():
        raise ValueError("broken\nfor a reason")
    assert folder.failure() == "ValueError: broken for a reason"
    with folder, folder.noting_failure():
        pass
    assert folder.failure() == ""
    for none in (KeyboardInterrupt, FolderInUse):  # the latter: another process's run, which may well succeed
        with pytest.raises(none), folder, folder.noting_failure():
            raise none
        assert folder.failure() == ""


def test_a_run_that_another_process_finished_before_the_lock_was_had_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = config(tmp_path, "method=local")
    enter = RunFolder.__enter__

    def late(folder: RunFolder) -> RunFolder:
        with monkeypatch.context() as other:
            other.setattr(RunFolder, "__enter__", enter)
            run.execute(chosen)
        return enter(folder)

    monkeypatch.setattr(RunFolder, "__enter__", late)
    trained = count_rounds(monkeypatch)
    assert run.execute(chosen).earlier
    assert len(trained) == chosen.protocol.rounds
