"""Worker processes never import the script that started them, nor die of a signal that is meant for it."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch

from fedbench.config import compose
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup
from fedbench.engine.workers import WorkersTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.runs.config import resolve
from fedbench.runs.execution import build


def setup() -> Setup:
    chosen = ["partition=homo", "partition.num_clients=2", "dataset.limit=40", "model=mlp", "hardware=cpu"]
    return build(resolve(compose.compose(chosen)))


def train(trainer: WorkersTrainer) -> None:
    model = trees.expand(trainer.setup.task.init(torch.Generator().manual_seed(0)), 2)
    trainer.train(torch.arange(2), model, {}, Clock(0, 2))


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a signal to all processes of the program leaves the workers to it."""
    script, trace = tmp_path / "script.py", tmp_path / "trace"
    script.write_text(f"open({str(trace)!r}, 'w').close()\n")
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.setattr(main, "__file__", str(script), raising=False)
    trainer = WorkersTrainer(setup(), 1)
    try:
        assert sys.modules["__main__"] is main
        train(trainer)
        server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        for process in (trainer._processes[0].pid, server):
            os.kill(process, signal.SIGTERM)
        train(trainer)
        os.kill(server, 0)  # it lives
    finally:
        trainer.close()
    assert not trace.exists()


def test_what_the_script_defines_is_refused_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = type("Mine", (FedAvg,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Mine", mine, raising=False)
    with pytest.raises(ConfigError, match=r"Mine.*into a module .*hardware\.engine=looped"):
        WorkersTrainer(dataclasses.replace(setup(), method=mine()), 1)
