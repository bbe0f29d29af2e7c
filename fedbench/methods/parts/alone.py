"""Clients grouped by where training alone leads them, as KMeans does and FeSEM may begin."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine.preparation import Preparation
from fedbench.methods.parts import grouping
from fedbench.models.task import Task


def groups(
    preparation: Preparation, message: Tree, memory: Tree, k: int, rounds: int, compared: tuple[str, ...]
) -> npt.NDArray[np.int64]:
    """Which of `k` groups each client is in, [N]: k-means of the models after `rounds` rounds of each client alone.

    Kept are the models' distances, and the groups.
    """
    alone = preparation.round(message, memory, rounds=rounds)
    points = grouping.coordinates(vectors(alone, preparation.task, compared).cpu().numpy())
    coalition = grouping.kmeans(points, k)
    preparation.keep("distances", grouping.distances(points))
    preparation.keep("coalition", coalition)
    return coalition


def vectors(models: Tree, task: Task, compared: tuple[str, ...]) -> Tensor:
    """The weights of `models` [N, ...] that are `compared` (selectors), float64 [N, P]."""
    return trees.flatten(task.split(task.weights(models), compared)[0]).double()
