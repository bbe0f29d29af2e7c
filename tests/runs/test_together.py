"""Several seeds as rows of one program: the results of separate runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.core.errors import Diverged
from fedbench.engine.seeds import Request
from fedbench.engine.simulation import Simulation
from fedbench.engine.stacked import Program, StackedTrainer
from fedbench.engine.trainer import Outcome, Trainer
from fedbench.runs import execution
from fedbench.runs.config import RunConfig
from fedbench.runs.execution import execute_batched
from fedbench.runs.run import Run
from fedbench.testing.checks import rerun
from tests.helpers.runs import interrupt_after
from tests.helpers.tiers import sampled
from tests.runs.seeds import SEEDS, configs, finished, same


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [
        ["method=fedavg", "partition=dir0.5", "protocol.cohort=50%"],
        pytest.param(
            ["method=ditto", "partition=dir0.5", "protocol.cohort=4", "protocol.score=trained"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [
                *["method=fedcollab", "method.discriminator.rounds=10"],
                *["partition=label_shift", "dataset.limit=null"],
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param(["method=scaffold", "partition=concept_shift", "protocol.augment=[flip]"], marks=pytest.mark.slow),
        pytest.param(["method=fedavg", "partition=feature_shift"], marks=pytest.mark.slow),
        pytest.param(
            ["method=fedavg", "partition=dir0.5", "partition_seed=2", "reference_seed=7"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["method=kmeans", "method.pretrain_rounds=2", "partition=homo", "partition.num_clients=3"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["cohort", "memory", "prepared", "relabelled", "rotated", "one reference", "trained before"],
)
def test_results_of_separate_runs(chosen: list[str], tmp_path: Path) -> None:
    together = finished(execute_batched(configs(tmp_path / "together", *chosen)))
    for ours, config in zip(together, configs(tmp_path / "alone", *chosen), strict=True):
        same(ours, execution.execute(config))
    assert together[0].row["acc"] != together[1].row["acc"]


@pytest.mark.parametrize(
    ("chosen", "calls"),
    sampled([(["method=local"], 3), (["method=kmeans", "method.pretrain_rounds=2"], 3 + 2 + 3)], every=2),
)
def test_the_seeds_train_in_one_chunk(
    chosen: list[str], calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in their preparation; three rounds, for KMeans after those of Local and two of each client alone."""
    cohorts: list[int] = []
    train = StackedTrainer.train

    def watched(self: StackedTrainer, ids: torch.Tensor, *rest: object) -> Outcome:
        cohorts.append(len(ids))
        assert self.chunk >= len(ids)
        return train(self, ids, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(StackedTrainer, "train", watched)
    finished(execute_batched(configs(tmp_path, *chosen, "partition=homo", "partition.num_clients=7")))
    assert cohorts == [14] * calls


@pytest.mark.slow
def test_the_seeds_train_on_the_engine_that_the_hardware_stacks_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which captures their steps on a GPU; here in a stand-in for it."""
    captured: list[int] = []

    def capture(program: Program, rows: int, full: bool) -> Callable[[], None]:
        captured.append(rows)
        return rerun(program, rows, full)

    chosen = ["method=local", "partition=homo", "partition.num_clients=7"]
    with monkeypatch.context() as patch:
        patch.setattr(execution, "stacked_engine", lambda whole, _: StackedTrainer(whole, 99, capture))
        together = finished(execute_batched(configs(tmp_path / "together", *chosen)))
    assert set(captured) == {14}
    for ours, config in zip(together, configs(tmp_path / "alone", *chosen), strict=True):
        same(ours, execution.execute(config))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "rates"),
    [
        (["method=fedavg"], (0.1, 0.03)),
        pytest.param(["method=fedavg", "protocol.optimizer.name=adam"], (0.01, 0.003), marks=pytest.mark.slow),
        pytest.param(["method=scaffold"], (0.1, 0.03), marks=pytest.mark.slow),
        pytest.param(["method=apple"], (0.1, 0.03), marks=pytest.mark.slow),
        pytest.param(["method=pfedme"], (0.1, 0.03), marks=pytest.mark.slow),
        pytest.param(["method=finetune_lpft"], (0.1, 0.03), marks=pytest.mark.slow),
        pytest.param(["method=finetune_lpft", "method.lr=0.3"], (0.1, 0.03), marks=pytest.mark.slow),
    ],
    ids=["sgd", "adam", "in a control", "in a scale", "in a direction", "in stages", "beside a rate of its own"],
)
def test_runs_at_other_learning_rates_train_as_one(
    chosen: list[str],
    rates: tuple[float, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also the runs of Local that they are compared with, each at its own rate."""

    def trials(folder: Path) -> list[RunConfig]:
        more = [*chosen, "partition=dir0.5", "partition.num_clients=5", "reference_seed=1"]
        return [configs(folder, *more, f"protocol.optimizer.lr={rate}")[0] for rate in rates]

    rows: list[int] = []
    serve = Request.served_by

    def watched(self: Request, trainer: Trainer) -> Outcome:
        rows.append(len(self.ids))
        return serve(self, trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Request, "served_by", watched)
        together = finished(execute_batched(trials(tmp_path / "together")))
    assert set(rows) == {10}
    assert not caplog.records
    for ours, config in zip(together, trials(tmp_path / "alone"), strict=True):
        same(ours, execution.execute(config))
    assert together[0].row["acc"] != together[1].row["acc"]


@pytest.mark.slow
def test_a_run_is_charged_its_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that moves a second with every joint call: each of two runs takes half a second."""
    now = 0.0
    serve = Request.served_by

    def slow(self: Request, trainer: Trainer) -> Outcome:
        nonlocal now
        now += 1.0
        return serve(self, trainer)

    monkeypatch.setattr(Request, "served_by", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    for result in finished(execute_batched(configs(tmp_path, "method=local", "partition=homo"))):
        assert result.row["seconds_train"] == pytest.approx(3 / 2)
        assert result.row["seconds_evaluate"] == pytest.approx(4 / 2)


@pytest.mark.slow
def test_runs_that_stand_at_different_rounds_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ["method=local", "partition=dir0.5", "checkpoint.rounds=1"]
    first, _ = configs(tmp_path / "together", *chosen)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            execution.execute(first)
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
        same(ours, execution.execute(config))


@pytest.mark.slow
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
    same(good, execution.execute(configs(tmp_path / "alone", *chosen)[0]))
    assert execution.folder_of(configs(tmp_path / "together", *chosen)[1]).status() != "finished"


@pytest.mark.parametrize(
    "where",
    [(Request, "served_by"), pytest.param((Simulation, "step"), marks=pytest.mark.slow)],
    ids=["engine", "loop"],
)
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
