"""Whole runs on digits: the folder, the reference, resuming after every kind of end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedbench import compose, run
from fedbench.data.split import Partition
from fedbench.engine.simulation import Simulation, State
from fedbench.errors import CheckpointError, FedbenchError
from fedbench.results.history import deterministic

FAST = [
    "protocol.rounds=4",
    "partition=homo",
    "partition.num_clients=4",
    "dataset.limit=200",
    "model=mlp",
]


def config(folder: Path, *overrides: str) -> compose.RunConfig:
    chosen = [*FAST, f"runs_dir={folder}", "progress=none", "hardware=cpu", *overrides]
    return compose.resolve(compose.compose(chosen))


def rows(folder: Path) -> Any:
    """Everything of a finished run that may not depend on time or interruption."""
    frames = {name: pd.read_csv(folder / name) for name in ("rounds.csv", "clients.csv")}
    kept = {
        name: frame[[c for c in frame.columns if not c.startswith("seconds_")]].to_csv()
        for name, frame in frames.items()
    }
    result = deterministic(json.loads((folder / "result.json").read_text()))
    arrays = dict(np.load(folder / "tallies.npz"))
    return kept, result, {name: repr(array.tolist()) for name, array in sorted(arrays.items())}


def test_a_run_leaves_a_consistent_folder(tmp_path: Path) -> None:
    chosen = config(tmp_path, "method=fedcollab", "method.discriminator.rounds=20")
    result = run.execute(chosen)
    row, clients = result.row, pd.read_csv(result.folder / "clients.csv")
    assert row["acc"] == pytest.approx(clients["acc"].mean())
    gains = clients["acc"] - clients["acc_local"]
    assert row["ipr"] == pytest.approx(100 * (gains > 1e-9).mean())
    assert row["rsd"] == pytest.approx(gains.std(ddof=0))
    partition = Partition.load(result.folder / "partition.npz")
    assert partition.hash == row["partition_hash"]
    assert [len(samples) for samples in partition.train] == clients["size_train"].tolist()
    weights = np.load(result.folder / "collaboration.npz")["W"]
    assert weights.sum(1) == pytest.approx(np.ones(4))
    rounds = pd.read_csv(result.folder / "rounds.csv")
    assert rounds["round"].tolist() == [0, 1, 2, 3, 4]
    assert rounds["bytes_up"].is_monotonic_increasing
    assert not (result.folder / "checkpoint.safetensors").exists()
    local = json.loads(next(tmp_path.rglob("local/*/result.json")).read_text())
    assert local["key"] == row["local_key"]
    assert np.allclose(
        clients["acc_local"], pd.read_csv(next(tmp_path.rglob("local/*/clients.csv")))["acc"]
    )


def count_rounds(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[State], None] = lambda _: None
) -> list[int]:
    """Rounds that are really trained from now on."""
    trained: list[int] = []
    step = Simulation.step

    def counted(self: Simulation, state: State) -> None:
        before(state)
        trained.append(state.round)
        step(self, state)

    monkeypatch.setattr(Simulation, "step", counted)
    return trained


def test_a_finished_run_is_read_not_repeated_unless_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run.execute(config(tmp_path, "method=fedavg"))
    trained = count_rounds(monkeypatch)
    assert run.execute(config(tmp_path, "method=fedavg")).row == first.row
    assert trained == []
    again = run.execute(config(tmp_path, "method=fedavg", "force=true"))
    assert trained == [0, 1, 2, 3]  # Local is not repeated
    assert deterministic(again.row) == deterministic(first.row)
    run.execute(config(tmp_path, "method=fedprox"))
    assert len(trained) == 8  # another method shares the Local run


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedcollab"])
def test_an_interrupted_run_goes_on_to_the_same_rows(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run.execute(config(tmp_path / "whole", f"method={method}"))
    overrides = [f"method={method}", "checkpoint.rounds=1"]
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
                run.execute(
                    config(tmp_path, "method=local", "checkpoint.rounds=1", f"protocol.optimizer.lr={lr}")
                )
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


def test_a_refused_run_leaves_nothing(tmp_path: Path) -> None:
    for overrides in (["model=lenet5"], ["protocol.cohort=9"], ["partition.num_clients=500"]):
        with pytest.raises(FedbenchError):
            run.execute(config(tmp_path, "method=fedavg", *overrides))
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def command(folder: Path, overrides: Sequence[str]) -> list[str]:
    return [
        sys.executable,
        "-m",
        "fedbench",
        f"runs_dir={folder}",
        "progress=none",
        "hardware=cpu",
        *overrides,
    ]


def kill_and_rerun(tmp_path: Path, overrides: list[str], kills: int, seed: int = 0) -> int:
    """Kill the run `kills` times at random moments of its training, finish it; how many kills hit it running."""
    whole = tmp_path / "whole"
    subprocess.run(command(whole, overrides), check=True, capture_output=True)
    chance = random.Random(seed)
    hits = 0
    parts = tmp_path / "parts"
    for _ in range(kills):
        process = subprocess.Popen(
            command(parts, overrides), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        seen = {p: p.stat().st_mtime_ns for p in parts.rglob("checkpoint.safetensors")}
        while process.poll() is None:  # until it has gone on beyond where it was resumed
            now = {p: p.stat().st_mtime_ns for p in parts.rglob("checkpoint.safetensors") if p.exists()}
            if any(seen.get(p) != t for p, t in now.items()):
                break
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            hits += 1
        process.wait()
    subprocess.run(command(parts, overrides), check=True, capture_output=True)
    for method in ("local", "fedavg"):
        (a,), (b,) = (list(f.glob(f"digits/*/{method}/*/result.json")) for f in (whole, parts))
        assert rows(a.parent) == rows(b.parent)
    return hits


RUN = ["method=fedavg", "checkpoint.rounds=1"]


def test_a_killed_run_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    assert kill_and_rerun(tmp_path, [*RUN, "protocol.rounds=60"], kills=2) == 2


@pytest.mark.slow
def test_ten_kills_change_nothing(tmp_path: Path) -> None:
    assert kill_and_rerun(tmp_path, [*RUN, "protocol.rounds=200"], kills=10, seed=os.getpid()) >= 8


def test_offline_wandb_logs_beside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    result = run.execute(config(tmp_path, "method=local", "wandb.enabled=true"))
    assert result.row["rounds"] == 4
    assert list(result.folder.rglob("*.wandb"))
