"""Where the time of a round goes: the operators of the looped (CPU) or stacked (GPU) engine by their own time."""

from __future__ import annotations

import timeit
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.workloads import Workload
from fedbench.config.schema import HardwareConfig
from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.hardware import stacked_engine
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.schedule import Order
from fedbench.engine.setup import Setup, opening
from fedbench.engine.simulation import Simulation
from fedbench.engine.stacked import BatchPlan

SHOWN = 10  # operators
REPEATS = 50


def run(workload: Workload, device: torch.device) -> dict[str, Any]:
    """Shares in percent of a round's time by operator, the largest first; `python` is what no operator accounts for."""
    setup = workload.setup(device, quick=device.type == "cpu")
    cuda = device.type == "cuda"
    trainer = stacked_engine(setup, HardwareConfig()) if cuda else LoopedTrainer(setup)
    simulation = Simulation(setup, trainer)
    state = simulation.begin()
    simulation.step(state)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as recorded, torch.profiler.record_function("round"):
        simulation.step(state)
        if cuda:
            torch.cuda.synchronize()
    events = recorded.key_averages()
    spent = {
        event.key: event.self_device_time_total if cuda else event.self_cpu_time_total for event in events
    }
    total = next(event.cpu_time_total for event in events if event.key == "round")
    operators = {key: value for key, value in spent.items() if key.startswith("aten::") or cuda}
    shares = {key: round(100 * value / total, 1) for key, value in operators.items()}
    first = sorted(shares.items(), key=lambda item: -item[1])[:SHOWN]
    rest = {"python": round(100 - sum(shares.values()), 1)}
    return {"workload": workload.name, "shares": dict(first) | rest, "drawing": drawing(setup)}


def drawing(setup: Setup) -> dict[str, float]:
    """Microseconds of the host for a client-step: its mini-batch's `order`, known a round ahead, and what is left."""
    ids, clock = setup.draw_cohort(Clock(0, 1)), Clock(0, 1)
    (stage,) = setup.method.stages(setup.protocol.local, clock)
    views = {client: setup.client(client, *each, clock) for client, each in _opened(setup, ids, clock)}

    def orders() -> list[Order]:
        return [setup.order(client, stage, clock, "batches") for client in views]

    def whole() -> BatchPlan:
        drawn = [setup.batches(client, stage, view, "batches") for client, view in views.items()]
        return BatchPlan.of(setup.federation, list(views), drawn)

    steps = sum(len(order) for order in orders())
    order, both = (1e6 * _least(work) / steps for work in (orders, whole))
    return {"order": round(order, 2), "layout": round(both - order, 2)}


def _opened(setup: Setup, ids: Tensor, clock: Clock) -> Iterator[tuple[int, tuple[Tree, Tree]]]:
    message, memory = opening(setup, ids, clock)
    for place, client in enumerate(ids.tolist()):
        yield client, (trees.row(message, place), trees.row(memory, place))


def _least(work: Callable[[], object]) -> float:
    """Seconds that other processes add least to."""
    return min(timeit.repeat(work, number=1, repeat=REPEATS))
