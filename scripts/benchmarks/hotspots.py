"""Where the time of a round goes: the operators of the looped (CPU) or stacked (GPU) engine by their own time."""

from __future__ import annotations

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.workloads import Workload
from fedbench.engine.pick.footprint import fitting_chunk
from fedbench.engine.simulation import Simulation
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.stacked import StackedTrainer

SHOWN = 10  # operators


def run(workload: Workload, device: torch.device) -> dict[str, Any]:
    """Shares in percent of a round's time by operator, the largest first; `python` is what no operator accounts for."""
    setup = workload.setup(device, quick=device.type == "cpu")
    cuda = device.type == "cuda"
    trainer = StackedTrainer(setup, fitting_chunk(setup)) if cuda else LoopedTrainer(setup)
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
    return {"workload": workload.name, "shares": dict(first) | rest}
