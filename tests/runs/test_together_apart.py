"""Several seeds as rows of one program, some of which are ahead, fail, or must train alone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.core.errors import Diverged
from fedbench.engine.seeds import Request
from fedbench.engine.simulation import Simulation
from fedbench.engine.trainer import Outcome, Trainer
from fedbench.runs import execution
from fedbench.runs import execution as run
from fedbench.runs.execution import execute_batched
from fedbench.runs.run import Run
from tests.helpers.runs import interrupt_after
from tests.runs.seeds import SEEDS, configs, finished, same


def test_runs_that_stand_at_different_rounds_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ["method=local", "partition=dir0.5", "checkpoint.rounds=1"]
    first, _ = configs(tmp_path / "together", *chosen)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            run.execute(first)
    sizes: list[int] = []
    serve = Request.served_by

    def watched(self: Request, trainer: Trainer) -> Outcome:
        if self.training:
            sizes.append(len(self.ids))
        return serve(self, trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Request, "served_by", watched)
        together = finished(execute_batched(configs(tmp_path / "together", *chosen)))
    alone = sizes[-1] // 2
    assert sizes[-3:] == [alone, alone, 2 * alone], "the second catches up, then both train as one"
    for ours, config in zip(together, configs(tmp_path / "alone", *chosen), strict=True):
        same(ours, run.execute(config))


def test_an_error_ends_its_own_run_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ["method=local", "partition=dir0.5"]
    serve = Request.served_by

    def failing(self: Request, trainer: Trainer) -> Outcome:
        if self.training and self.clock.round == 1 and SEEDS[1] in trainer.setup.runs:
            raise Diverged("training diverged in round 2 on client 5")
        return serve(self, trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Request, "served_by", failing)
        good, bad = execute_batched(configs(tmp_path / "together", *chosen))
    assert isinstance(bad, Diverged)
    assert isinstance(good, Run)
    same(good, run.execute(configs(tmp_path / "alone", *chosen)[0]))
    assert execution.folder_of(configs(tmp_path / "together", *chosen)[1]).status() != "finished"


def test_without_a_joint_engine_the_runs_train_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ["method=local", "partition=dir0.5", "protocol.rounds=1"]

    def failing(setups: object) -> None:
        raise torch.OutOfMemoryError("no room for all")

    with monkeypatch.context() as patch:
        patch.setattr(execution, "joint_setup", failing)
        together = finished(execute_batched(configs(tmp_path / "together", *chosen)))
    for ours, config in zip(together, configs(tmp_path / "alone", *chosen), strict=True):
        same(ours, run.execute(config))


@pytest.mark.parametrize("where", [(Request, "served_by"), (Simulation, "step")], ids=["engine", "loop"])
def test_an_interruption_unlocks_every_folder(
    where: tuple[type, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ["method=local", "partition=dir0.5"]
    kept, before = getattr(*where), threading.active_count()

    def interrupted(self: Any, other: Any) -> Any:
        if (self.clock if where[0] is Request else other).round == 1:
            raise KeyboardInterrupt
        return kept(self, other)

    monkeypatch.setattr(*where, interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:  # its traceback keeps every frame alive
        execute_batched(configs(tmp_path, *chosen))
    assert threading.active_count() == before
    for config in configs(tmp_path, *chosen):
        with execution.folder_of(config):
            assert caught.value
