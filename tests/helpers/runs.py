"""Whole runs on digits, compared, and killed at random moments."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import random
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedbench.config import compose
from fedbench.engine import checkpoint
from fedbench.engine.history import TIMING_PREFIX
from fedbench.engine.simulation import Simulation, State
from fedbench.runs import execution as run
from fedbench.runs.config import RunConfig, resolve

FAST = [
    "protocol=fedcollab_label_shift",
    "protocol.rounds=4",
    "partition=homo",
    "partition.num_clients=4",
    "dataset.limit=200",
    "model=mlp",
]


def config(folder: Path, *overrides: str) -> RunConfig:
    chosen = [*FAST, f"runs_dir={folder}", "progress=none", "hardware=cpu", *overrides]
    return resolve(compose.compose(chosen))


def interrupt_after(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """From now on Ctrl-C ends each run when it would begin the round after `rounds`."""
    step = Simulation.step

    def stopped(self: Simulation, state: State) -> None:
        if state.round == rounds:
            raise KeyboardInterrupt
        step(self, state)

    monkeypatch.setattr(Simulation, "step", stopped)


def count_rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rounds that are really trained from now on."""
    trained: list[int] = []
    played = Simulation.step

    def counted(self: Simulation, state: State) -> None:
        trained.append(state.round)
        played(self, state)

    monkeypatch.setattr(Simulation, "step", counted)
    return trained


def deterministic(row: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of `row` that two runs of one configuration must agree on bit for bit: all but the timings."""
    return {column: value for column, value in row.items() if not column.startswith(TIMING_PREFIX)}


def rows(folder: Path) -> Any:
    """Everything of a finished run that may not depend on time or interruption."""
    frames = {name: pd.read_csv(folder / name) for name in ("rounds.csv", "clients.csv")}
    kept = {
        name: frame[[c for c in frame.columns if not c.startswith(TIMING_PREFIX)]].to_csv()
        for name, frame in frames.items()
    }
    result = deterministic(json.loads((folder / "result.json").read_text()))
    result.pop("commit")  # of the source, which may change while a slow test runs
    arrays = {
        f"{file.stem}/{name}": repr(array.tolist())
        for file in sorted(folder.glob("*.npz"))
        for name, array in sorted(np.load(file).items())
    }
    return kept, result, arrays


def same_models(a: Path, b: Path) -> bool:
    """Whether two folders hold the same final models, bit for bit."""
    (first, _), (second, _) = (checkpoint.read_checkpoint(folder / "model.safetensors") for folder in (a, b))
    models = [name for name in first if name.startswith(("server/", "memory/"))]
    return len(models) > 0 and set(first) == set(second) and all(torch.equal(first[n], second[n]) for n in models)


def go(folder: Path, overrides: Sequence[str]) -> None:
    """A run in a process of its own."""
    run.execute(config(folder, *overrides))


def killed(context: Any, folder: Path, overrides: Sequence[str], after: float) -> bool:
    """Kill a run `after` seconds beyond its next checkpoint; whether that hit it running."""
    seen = stamps(folder)
    process = context.Process(target=go, args=(folder, overrides))
    process.start()
    while process.is_alive() and stamps(folder) <= seen:
        time.sleep(0.005)
    time.sleep(after)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def stamps(folder: Path) -> set[tuple[str, int]]:
    """Checkpoints below `folder`, and when they were written."""
    found = set()
    for path in folder.rglob("checkpoint.safetensors"):
        with contextlib.suppress(FileNotFoundError):
            found.add((str(path), path.stat().st_mtime_ns))
    return found


def kill_and_rerun(tmp_path: Path, overrides: list[str], kills: int, seed: int) -> int:
    """Kill a run `kills` times at random moments, finish it, compare it; how many kills hit it running."""
    whole = run.execute(config(tmp_path / "whole", *overrides))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "sklearn.datasets"])  # imported once for all
    chance = random.Random(seed)
    hits = sum(killed(context, tmp_path / "parts", overrides, chance.uniform(0, 0.15)) for _ in range(kills))
    parts = run.execute(config(tmp_path / "parts", *overrides))
    assert rows(parts.folder) == rows(whole.folder)
    assert same_models(parts.folder, whole.folder)
    local = [next(folder.rglob("local/*/result.json")).parent for folder in (tmp_path / "whole", tmp_path / "parts")]
    assert rows(local[0]) == rows(local[1])
    assert not list(tmp_path.rglob(".tmp*"))
    return hits
