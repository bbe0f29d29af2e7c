"""Toys for tests: those that fedbench.testing ships, runs of four clients, an MLP written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.trees import Tree
from fedbench.data.federation import Federation
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation, State
from fedbench.models.small import LeNet5
from fedbench.testing.toys import BATCH, CLASSES, SIZES, federation, gap, models, setup, simulate

__all__ = ["BATCH", "CLASSES", "SIZES", "federation", "gap", "models", "setup", "simulate"]

FOUR = (6, 13, 8, 21)  # training samples of four clients: less than a batch of 8, two, one, three
HEAD = ["head.bias", "head.weight"]  # leaves of the toy network
BODY = ["fc.0.bias", "fc.0.weight"]
ONE_STEP: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=0.2)}


def close(a: Tree | Tensor, b: Tree | Tensor, tolerance: float = 1e-10) -> bool:
    """Whether two trees or tensors agree to `tolerance`."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return gap({"": torch.as_tensor(a)}, {"": torch.as_tensor(b)}) <= tolerance
    return gap(a, b) <= tolerance


def run(method: Method, data: Federation | None = None, **options: Any) -> tuple[Setup, State]:
    """Three rounds of `method`, of the four clients unless `data` are others."""
    chosen = setup(method, data or federation(FOUR), **{"rounds": 3, **options})
    return chosen, simulate(chosen)


def final(method: Method, sizes: tuple[int, ...] = FOUR, **options: Any) -> Tree:
    """The models after `run`."""
    return models(*run(method, federation(sizes), **options))


def normalised(method: Method, **options: Any) -> Setup:
    """A toy with batch normalisation."""
    return setup(method, federation(FOUR, (1, 16, 16)), LeNet5(batch_norm=True), **{"epochs": 1, **options})


def steps(chosen: Setup, rounds: int) -> tuple[Simulation, State]:
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    for _ in range(rounds):
        simulation.step(state)
    return simulation, state


def adapted(chosen: Setup, state: State) -> Tree:
    """As `models`, after what each client trains before it is scored."""
    clock = Clock(state.round, chosen.protocol.rounds)
    everyone = torch.arange(chosen.federation.clients)
    message = chosen.method.send(state.server, chosen.cohort(everyone, clock, "evaluate"))
    each = []
    for k in range(len(everyone)):
        view = chosen.client(k, trees.row(message, k), trees.row(state.memory, k), clock)
        work = trees.clone(chosen.method.start(view))
        stages = chosen.method.adapt(chosen.protocol.local, clock)
        LoopedTrainer(chosen).descend(k, work, view, stages, "adapt")
        each.append(trees.clone(chosen.method.model(work, view)))
    return trees.stack(each)


def bases(count: int, d: int, k: int, seed: int = 0) -> torch.Tensor:
    """Orthonormal bases [count, d, k]."""
    drawn = np.random.default_rng(seed).normal(size=(count, d, k))
    return torch.from_numpy(np.linalg.qr(drawn)[0])


def same_groups(a: Any, b: Any) -> bool:
    """Whether two labellings are one partition."""
    return len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))


def initial(chosen: Setup) -> Tree:
    """The weights that every client and the server start from."""
    drawn = chosen.task.init(rng.torch_rng(chosen.seed, "init"))
    return {name: leaf.to(chosen.federation.dtype) for name, leaf in drawn.items()}


def samples(chosen: Setup, client: int) -> tuple[Tensor, Tensor]:
    """(x, y) of all training samples of a client."""
    return chosen.federation.gather(chosen.federation.indices("train", client))


# ---- a one-hidden-layer MLP written out, for rounds computed by hand


def features(w: Tree, x: Tensor) -> Tensor:
    """Its hidden layer."""
    return torch.relu(x.flatten(1) @ w["fc.0.weight"].t() + w["fc.0.bias"])


def logits(w: Tree, x: Tensor) -> Tensor:
    """Its output."""
    return features(w, x) @ w["head.weight"].t() + w["head.bias"]


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """Mean of -log softmax at the labels."""
    return (scores.logsumexp(1) - scores[torch.arange(len(y)), y]).mean()


def derivative(loss: Callable[[Tree], Tensor], weights: Tree) -> Tree:
    """Gradient of `loss` at `weights`; zero for a leaf it does not depend on."""
    leaves = {k: v.detach().clone().requires_grad_(True) for k, v in weights.items()}
    found = torch.autograd.grad(loss(leaves), list(leaves.values()), allow_unused=True)
    return {k: torch.zeros_like(v) if g is None else g for (k, v), g in zip(leaves.items(), found, strict=True)}


def descend(loss: Callable[[Tree], Tensor], weights: Tree, lr: float, moves: Sequence[str] = ("fc", "head")) -> Tree:
    """One gradient step on the leaves whose first name is in `moves`."""
    slope = derivative(loss, weights)
    return {k: v - lr * slope[k] if k.split(".")[0] in moves else v for k, v in weights.items()}


def disjoint(planted: Sequence[int], size: int = 30) -> Federation:
    """Clients of two planted groups, with `size` samples each of labels of their group alone."""
    return federation([size] * len(planted), labels=[[2, 3] if group else [0, 1] for group in planted])


def permuted(planted: Sequence[int], size: int = 30) -> Federation:
    """Clients of two planted groups; the second group's labels are those of the first in reverse."""
    data = federation([size] * len(planted))
    for k, group in enumerate(planted):
        if group:
            own = torch.cat([data.indices(name, k) for name in ("train", "val", "local")])
            data.y[own] = 3 - data.y[own]
    return data
