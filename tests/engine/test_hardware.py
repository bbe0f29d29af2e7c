"""From the hardware config to a device and an engine."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedbench.config import compose
from fedbench.config.schema import HardwareConfig
from fedbench.core.batch import Population
from fedbench.core.errors import ConfigError, Diverged
from fedbench.core.trees import Tree
from fedbench.engine import hardware
from fedbench.engine import hardware as memory
from fedbench.engine.hardware import EngineCandidate, pick_device, pick_trainer, run_steps
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.methods.fedavg import FedAvg
from fedbench.models.task import Task
from fedbench.runs.config import resolve
from tests.methods.toys import setup


class Workers(LoopedTrainer):
    """Stands for WorkersTrainer, without its processes."""

    def __init__(self, chosen: Setup, workers: int) -> None:
        super().__init__(chosen)
        self.workers = workers


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores, no GPU, no processes."""
    monkeypatch.setattr(hardware, "WorkersTrainer", Workers)
    monkeypatch.setattr(hardware, "available_workers", lambda: 4)
    gpus(monkeypatch, 0)


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def picked(chosen: Setup, **config: Any) -> Trainer:
    return pick_trainer(chosen, HardwareConfig(**config))


def test_the_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device(HardwareConfig()) == torch.device("cpu")
    gpus(monkeypatch, 2)
    assert pick_device(HardwareConfig()) == torch.device("cuda")
    assert pick_device(HardwareConfig(device="cpu")) == torch.device("cpu")
    assert pick_device(HardwareConfig(device="cuda:1")) == torch.device("cuda:1")


@pytest.mark.parametrize(("count", "device"), [(0, "cuda"), (0, "cuda:0"), (2, "cuda:2"), (2, "cuda:x")])
def test_a_gpu_that_is_not_there_is_refused(count: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, count)
    seen = "2 GPU" if count else "no GPU"
    with pytest.raises(ConfigError, match=rf"hardware\.device={device}: .* sees {seen}.*; use hardware=cpu"):
        pick_device(HardwareConfig(device=device))


@pytest.fixture
def steps_take(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Say how many seconds a step takes with each engine."""

    def say(**seconds: float) -> None:
        def pace(_setup: Setup, contenders: dict[str, EngineCandidate]) -> dict[str, float]:
            return {name: seconds[name] for name in contenders}

        monkeypatch.setattr(hardware, "time_engines", pace)

    return say


def test_workers_start_where_they_save_more_than_they_cost(steps_take: Callable[..., None]) -> None:
    """A round with everyone is 16 steps of 0.1 s; four workers save three quarters of that, two a half."""
    steps_take(looped=0.1)
    assert run_steps(setup(FedAvg(), rounds=1)) == 16
    limit = hardware.WORKERS_START
    worth = {workers: math.floor(limit / (1.6 * (1 - 1 / workers))) + 1 for workers in (2, 4)}
    for workers, rounds in worth.items():
        assert type(picked(setup(FedAvg(), rounds=rounds - 1), workers=workers)) is LoopedTrainer
        long = picked(setup(FedAvg(), rounds=rounds), workers=workers)
        assert isinstance(long, Workers)
        assert long.workers == workers
    everyone = picked(setup(FedAvg(), rounds=99))
    assert isinstance(everyone, Workers)
    assert everyone.workers == 4, "all cores"
    assert type(picked(setup(FedAvg(), rounds=99, cohort=0.2))) is LoopedTrainer, "one client a round"
    assert type(picked(setup(FedAvg(), rounds=99), workers=1)) is LoopedTrainer
    steps_take(looped=0.0001)
    assert type(picked(setup(FedAvg(), rounds=99))) is LoopedTrainer


@dataclass(frozen=True)
class Filled(FedAvg):
    """Cannot train before its preparation has filled in the weights."""

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        server, memory = super().init(task, population, generator)
        return {name: torch.full_like(leaf, torch.nan) for name, leaf in server.items()}, memory


def test_a_method_that_cannot_be_tried_gets_an_engine_all_the_same() -> None:
    chosen = setup(Filled())
    with pytest.raises(Diverged):
        hardware.time_engines(chosen, {"looped": EngineCandidate(LoopedTrainer)})
    assert type(picked(chosen)) is Workers
    chosen.federation.device = torch.device("cuda")
    assert type(picked(chosen, chunk=2)) is StackedTrainer


def test_a_process_that_may_have_no_children_trains_alone(
    steps_take: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_take(looped=100.0)
    assert type(picked(setup(FedAvg()))) is Workers
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    assert type(picked(setup(FedAvg()))) is LoopedTrainer


def test_a_gpu_takes_the_faster_of_stacked_and_looped(
    steps_take: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 10**9)
    chosen, single = setup(FedAvg()), setup(FedAvg(), cohort=0.2)
    for each in (chosen, single):
        each.federation.device = torch.device("cuda")
    steps_take(looped=0.002, stacked=0.0001)
    stacked = picked(chosen)
    assert isinstance(stacked, StackedTrainer)
    assert stacked.chunk == 5
    assert type(picked(single)) is LoopedTrainer, "nothing to stack"
    steps_take(looped=0.0029, stacked=0.003)
    assert type(picked(chosen)) is StackedTrainer, "noise is no reason"
    steps_take(looped=0.002, stacked=0.003)
    assert type(picked(chosen)) is LoopedTrainer


def test_an_engine_asked_for_is_given() -> None:
    chosen = setup(FedAvg())
    assert type(picked(chosen, engine="looped")) is LoopedTrainer
    assert type(picked(chosen, engine="workers")) is Workers
    stacked = picked(chosen, engine="stacked", chunk=3)
    assert isinstance(stacked, StackedTrainer)
    assert stacked.chunk == 3
    chosen.federation.device = torch.device("cuda")
    with pytest.raises(ConfigError, match=r"engine=workers runs on a CPU"):
        picked(chosen, engine="workers")


def test_threads_are_set_where_asked(steps_take: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    steps_take(looped=0.0)
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    picked(setup(FedAvg()), threads=3)
    picked(setup(FedAvg()), threads=0)
    assert asked == [3]


@pytest.mark.parametrize("wanted", [True, False])
def test_coarse_products_only_where_asked(wanted: bool) -> None:
    hardware.set_precision(tf32=not wanted)
    chosen = setup(FedAvg())
    chosen.federation.device = torch.device("cuda")
    try:
        picked(chosen, engine="looped", precision="tf32" if wanted else "float32")
        assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is wanted
    finally:
        hardware.set_precision(tf32=False)


def test_a_cpu_has_no_tensorfloat() -> None:
    with pytest.raises(ConfigError, match=r"precision=tf32 is a GPU's"):
        picked(setup(FedAvg()), precision="tf32")


def test_a_run_in_python_has_the_command_lines_hardware() -> None:
    """Torch's own choice of threads on a busy or a large machine is many times slower for small networks."""
    assert resolve(compose.compose([])).hardware == HardwareConfig()
    assert HardwareConfig().threads == 1
