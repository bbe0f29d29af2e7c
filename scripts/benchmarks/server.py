"""W5: the server side alone, at N clients: seconds of one call, the median of a few."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks import phases
from fedbench.config.compose import compose
from fedbench.core import trees
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation
from fedbench.methods.fedcollab.solver import solve
from fedbench.methods.fedrema import segment
from fedbench.methods.parts.features import complementarity
from fedbench.methods.parts.mixing import cosines, project
from fedbench.methods.pfedsim import PFedSim
from fedbench.models.small import LeNet5
from fedbench.runs.config import resolve
from fedbench.runs.execution import build

FEATURES, RANK, CLASSES = 84, 3, 10  # LeNet5's representation, FedSaC's k
PARAMETERS = 62_006  # LeNet5
RESTARTS = 100  # FedCollab's
REPEATS = 3


def run(clients: tuple[int, ...], device: torch.device) -> list[dict[str, Any]]:
    """One row a number of clients: seconds of each server computation."""
    return [_row(n, device) for n in clients]


def discriminators(device: str) -> dict[str, Any] | None:
    """Seconds of FedCollab's 190 discriminators on Fashion-MNIST's label shift; None without the data set."""
    if not phases.images().ready:
        return None
    chosen = ["method=fedcollab", "dataset=fashion_mnist", "model=mlp", f"hardware.device={device}"]
    setup = build(resolve(compose(chosen)))[0]
    trainer = LoopedTrainer(setup)
    begin = time.perf_counter()
    state = Simulation(setup, trainer).begin()
    spent = state.seconds["prepare"]
    return {
        "pairs": 190,
        "seconds": round(spent, 2),
        "with_first_scoring": round(time.perf_counter() - begin, 2),
    }


def _row(n: int, device: torch.device) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(n)
    models = {"w": torch.randn(n, PARAMETERS, generator=generator).to(device)}
    p = torch.full((n,), 1 / n, device=device)
    bases = torch.linalg.qr(torch.randn(n, FEATURES, RANK, generator=generator)).Q.to(device)
    S = cosines(models["w"])
    C = complementarity(bases)
    task = LeNet5().task((3, 32, 32), CLASSES)
    shapes = {name: leaf.shape for name, leaf in task.init(generator).items()}
    heads = {
        name: torch.randn(n, *shapes[name], generator=generator).to(device)
        for name in task.select(shapes, ("@head",))
    }
    rng = np.random.default_rng(n)
    types = np.arange(n) % 4
    distances = np.where(types[:, None] == types, 0.02, 0.8) * rng.uniform(0.9, 1.1, (n, n))
    distances = np.triu(distances, 1) + np.triu(distances, 1).T
    sizes = np.where(np.arange(n) % 2, 14.0, 2100.0)
    timed: dict[str, Callable[[], object]] = {
        "aggregation": lambda: trees.mean(models, p),
        "fedsac_similarity": lambda: cosines(models["w"]),
        "fedsac_complementarity": lambda: complementarity(bases),
        "fedsac_weights": lambda: project(p - (0.9 * C - 1.4 * S) / 2),
        "pfedsim_similarity": lambda: PFedSim().similarity(heads, task),
        "fedrema_matching": lambda: segment(S, last_gap=True, keep_below=False),
        "fedcollab_solver": lambda: solve(
            sizes, distances, 10.0, restarts=RESTARTS, rng=np.random.default_rng(0)
        ),
    }
    return {"clients": n, **{name: _seconds(call, device) for name, call in timed.items()}}


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    spent = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - begin)
        if spent[-1] > 10:
            break
    return float(f"{statistics.median(spent):.3g}")
