"""Tiny federations: given client sizes, random images, float64 so that equalities are sharp."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedbench.config.schema import LocalConfig, OptimizerConfig, ProtocolConfig
from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.state import State
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.trainer import Trainer
from fedbench.models.base import Model
from fedbench.models.small import MLP

SIZES = (1, 13, 8, 21, 5)  # one sample, a short last batch, one full batch, several batches, less than one
BATCH = 8
CLASSES = 4


def federation(
    sizes: Sequence[int] = SIZES,
    shape: tuple[int, int, int] = (1, 4, 4),
    classes: int = CLASSES,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    labels: Sequence[Sequence[int]] | None = None,
    tests: int = 6,
    ids: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
) -> Federation:
    """Client k owns sizes[k] training, 3 validation and `tests` test samples; `labels[k]`: the classes it sees.

    Images are class prototypes plus noise, so that there is something to learn. `ids`: only those clients, in that
    order, each with the data and the randomness it has among all.
    """
    rng = np.random.default_rng(seed)
    prototypes = rng.integers(40, 216, (classes, *shape))
    own = [list(range(classes)) if labels is None else list(labels[k]) for k in range(len(sizes))]
    split: dict[str, list[np.ndarray]] = {"train": [], "val": [], "test": []}
    y: list[int] = []
    for name, count in (("train", 0), ("val", 3), ("test", tests)):
        for k, size in enumerate(sizes):
            n = size if name == "train" else count
            split[name].append(np.arange(len(y), len(y) + n))
            y.extend(rng.choice(own[k], n))
    targets = np.array(y, dtype=np.int64)
    x = np.clip(prototypes[targets] + rng.normal(0, 40, (len(y), *shape)), 0, 255).astype(np.uint8)
    channels = shape[0]
    train = sum(sizes)
    data = Dataset("toy", x, targets, train, classes, (0.5,) * channels, (0.25,) * channels)
    chosen = list(range(len(sizes)) if ids is None else ids)
    sets: Any = [[split[name][k] for k in chosen] for name in ("train", "val", "test")]
    made = Federation(data, Partition("toy", seed, "toy", classes, *sets), device, dtype)
    made.ids = chosen
    return made


def setup(
    method: Method,
    data: Federation | None = None,
    model: Model | None = None,
    *,
    rounds: int = 2,
    epochs: int | None = 2,
    iterations: int | None = None,
    cohort: float = 1.0,
    seed: int = 0,
    batch: int = BATCH,
    optimizer: OptimizerConfig | None = None,
    **protocol: Any,
) -> Setup:
    """A Setup over a toy federation; a cohort that is no int is a share; further keywords go to ProtocolConfig."""
    data = data or federation()
    task = (model or MLP(hidden=(7,))).task(data.shape, data.classes)
    chosen = ProtocolConfig(
        rounds=rounds,
        cohort=str(cohort) if isinstance(cohort, int) else f"{100 * cohort:g}%",
        local=LocalConfig(epochs=epochs, iterations=iterations, batch_size=batch),
        optimizer=optimizer or OptimizerConfig(lr=0.1),
        **protocol,
    )
    return Setup(method, task, data, chosen, seed)


def simulate(chosen: Setup, trainer: Trainer | None = None) -> State:
    """All rounds of a run."""
    trainer = trainer or LoopedTrainer(chosen)
    simulation = Simulation(chosen, trainer)
    try:
        state = simulation.begin()
        while not simulation.done(state):
            simulation.step(state)
    finally:
        trainer.close()
    return state


def models(chosen: Setup, state: State) -> Tree:
    """Every client's personal model after a run, stacked [N, ...]: what the method is scored by.

    Leaves of different lengths (memorised samples) are padded with zeros.
    """
    clock = Clock(state.round, chosen.protocol.rounds)
    everyone = torch.arange(chosen.federation.clients)
    with torch.no_grad():
        message = chosen.method.send(state.server, chosen.cohort(everyone, clock, "evaluate"))
        each = []
        for k in range(len(everyone)):
            view = chosen.client(k, trees.row(message, k), trees.row(state.memory, k), clock)
            each.append(trees.clone(chosen.method.personal(view)))
    return {
        name: pad_sequence([one[name] for one in each], batch_first=True)
        if leaf.dim()
        else torch.stack([one[name] for one in each])
        for name, leaf in each[0].items()
    }


def gap(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Largest difference between two trees, whose names must agree; a nan equals another nan only."""
    assert set(a) == set(b), f"leaves of one tree only: {sorted(set(a) ^ set(b))}"
    return max((_apart(a[k].detach().double(), b[k].detach().double()) for k in a), default=0.0)


def _apart(x: Tensor, y: Tensor) -> float:
    same = (x == y) | (x.isnan() & y.isnan())
    apart = (x - y).abs().nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(same, 0)
    return float(apart.max()) if apart.numel() else 0.0
