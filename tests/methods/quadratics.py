"""Clients with quadratic losses: F_k(w) = a_k / 2 ||w - e_k||^2 for w the classifier's bias, on every mini-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import State
from fedbench.models.small import MLP
from fedbench.models.task import Task
from tests.methods.toys import samples, setup

POINTS = ((20, 200), (240, 90), (120, 10))
UNEQUAL = (3, 13, 21)  # samples; in batches of 8: one, two and three steps an epoch
CURVED = (1, 2, 2)


class Quadratic(Task):
    """Loss (1 + y) / 2 ||head.bias - x||^2: with constant x and y on a client, a_k = 1 + y and e_k = x."""

    def loss(self, model: Tree, batch: Batch) -> Tensor:
        apart = (model["head.bias"] - batch.x.flatten(1)).square().sum(1)
        return batch.mean((1 + batch.y) * apart) / 2


@dataclass(frozen=True)
class QuadraticModel(MLP):
    """Makes a `Quadratic`; its network serves only to have leaves."""

    def task(self, shape: tuple[int, ...], classes: int) -> Task:
        return Quadratic(partial(self.build, shape, classes), shape, classes)


def quadratics(
    sizes: Sequence[int], points: Sequence[tuple[int, int]], curvatures: Sequence[int] | None = None
) -> Federation:
    """Client k: sizes[k] samples, all with the two pixels points[k] and label curvatures[k] - 1 (0 or 1)."""
    owner = np.repeat(np.arange(len(sizes)), [size + 2 for size in sizes])
    x = np.array(points, dtype=np.uint8)[owner].reshape(-1, 1, 1, 2)
    y = np.array(curvatures or [1] * len(sizes), dtype=np.int64)[owner] - 1
    own = [np.flatnonzero(owner == k) for k in range(len(sizes))]
    data = Dataset("quadratic", x, y, len(y), 2, (0.5,), (0.25,))
    sets = [rows[:-2] for rows in own], [rows[-2:-1] for rows in own], [rows[-1:] for rows in own]
    return Federation(data, Partition("quadratic", 0, "quadratic", 2, *sets), dtype=torch.float64)


def quadratic(
    method: Method,
    sizes: Sequence[int],
    points: Sequence[tuple[int, int]],
    curvatures: Sequence[int] | None = None,
    **options: Any,
) -> Setup:
    """A Setup of quadratic clients."""
    options = {"eval_every": 10**6, **options}
    return setup(method, quadratics(sizes, points, curvatures), QuadraticModel(hidden=(2,)), **options)


def minima(chosen: Setup) -> Tensor:
    """e_k of quadratic clients, [N, 2]."""
    return torch.stack([samples(chosen, k)[0][0].flatten() for k in range(chosen.federation.clients)])


def bias(state: State) -> Tensor:
    """The server's w of quadratic clients."""
    return state.server.get("head.bias", state.server.get("model/head.bias", torch.zeros(0)))


def local_steps(w: np.ndarray, slope: Any, steps: int, lr: float, momentum: float) -> np.ndarray:
    """SGD with momentum, written out."""
    velocity = np.zeros_like(w)
    for _ in range(steps):
        velocity = momentum * velocity + slope(w)
        w = w - lr * velocity
    return w


def counted(steps: int, momentum: float) -> float:
    """||a||_1: how far a constant gradient of one moves at learning rate one."""
    return float(local_steps(np.zeros(1), lambda w: -np.ones_like(w), steps, 1.0, momentum)[0])


def attraction(curvature: float, point: np.ndarray, shift: Any = 0.0) -> Any:
    """The gradient of a quadratic client, plus `shift`."""
    return lambda v: curvature * (v - point) + shift
