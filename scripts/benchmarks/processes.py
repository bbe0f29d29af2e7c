"""PROCESSES: runs of a paper's setting at once on one GPU, each in a process of its own.

With NVIDIA's MPS, which `nvidia-cuda-mps-control -d` starts, kernels of different processes run at the same time.
Without it a GPU gives each process its turn.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.rounds import STEPS, Round, at_once, contestants, of_steps
from fedbench.config.schema import HardwareConfig
from fedbench.engine.hardware import pick_trainer

SETTINGS = ("FedSaC", "FedReMa-CNN")  # of STEPS: short kernels and long ones
PROCESSES = (1, 12)
STEPS_A_ROUND = {"cuda": 40}  # local steps of a client, by device; else `FEW`
FEW = 4


def with_mps() -> bool:
    """Whether MPS runs here."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists()


def own_rounds(name: str, device: str) -> tuple[Callable[[int], Round], torch.device]:
    """Rounds of one run, by the engine that a run takes."""
    where = torch.device(device)
    setup = of_steps(STEPS[name].setup(where), STEPS_A_ROUND.get(device, FEW))
    hardware = HardwareConfig(engine="stacked" if device == "cuda" else "looped")
    return contestants(setup, {"own": pick_trainer(setup, hardware)})["own"], where


def run(name: str, device: str, repeats: int) -> Iterator[dict[str, Any]]:
    """Yield a row after each number of processes: seconds until the last of them has done a round."""
    seconds: dict[str, float] = {}
    for count in PROCESSES:
        each = at_once(own_rounds, count, repeats, name, device)
        seconds[str(count)] = statistics.median(map(max, zip(*each, strict=True)))
        steps = STEPS_A_ROUND.get(device, FEW)
        yield {"workload": name + ", MPS" * with_mps(), "what": STEPS[name].what, "steps": steps, "seconds": seconds}
