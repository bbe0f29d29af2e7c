"""Pieces of local updates that several methods share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbench.config import OptimizerConfig
from fedbench.engine.trees import Tree
from fedbench.errors import ConfigError

if TYPE_CHECKING:
    from fedbench.models.task import Task


def gradient(loss: Callable[[Tree], Tensor], model: Tree, task: Task) -> tuple[Tree, Tree]:
    """(gradient of `loss` over the model's weights, its statistics after the forward pass), for use in hooks."""
    statistics = {name: leaf for name, leaf in model.items() if task.is_buffer(name)}

    def objective(weights: Tree) -> tuple[Tensor, Tree]:
        # The forward pass moves statistics in place, the caller's must stay as they are.
        moved = {name: leaf.clone() for name, leaf in statistics.items()}
        return loss({**weights, **moved}), moved

    found: tuple[Tree, Tree] = torch.func.grad(objective, has_aux=True)(task.weights(model))
    return found


def accumulation(steps: Tensor, optimizer: OptimizerConfig, method: str) -> Tensor:
    """||a||_1: how often a constant gradient, times the learning rate, is in the change after `steps` SGD steps.

    `steps` without momentum; with momentum rho (sum_s (1 - rho^s) / (1 - rho), s = 1..steps; FedNova, Section 3)
    [steps - rho (1 - rho^steps) / (1 - rho)] / (1 - rho). float64, like `steps` in shape.

    Raises:
        ConfigError: the optimiser is no SGD; `method` opens the message.
    """
    if optimizer.name != "sgd":
        raise ConfigError(f"{method} is defined for SGD; choose protocol.optimizer.name=sgd")
    rho = optimizer.momentum
    steps = steps.double()
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
