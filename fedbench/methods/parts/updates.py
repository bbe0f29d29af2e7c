"""Pieces of local updates that several methods share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from fedbench.config.schema import OptimizerConfig
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree

if TYPE_CHECKING:
    from fedbench.models.task import Task


def gradient(loss: Callable[[Tree], Tensor], model: Tree, task: Task) -> tuple[Tree, Tree]:
    """(gradient of `loss` over the model's weights, its statistics after the forward pass), for use in hooks.

    Weights that are themselves being differentiated give a gradient that can be, in those weights: gradients nest.
    """
    weights = task.weights(model)
    statistics = {name: leaf for name, leaf in model.items() if task.is_buffer(name)}

    def objective(weights: Tree) -> tuple[Tensor, Tree]:
        # The forward pass moves statistics in place, the caller's must stay as they are.
        moved = {name: leaf.clone() for name, leaf in statistics.items()}
        return loss({**weights, **moved}), moved

    found: tuple[Tree, Tree]
    if peek_interpreter_stack() is not None:  # batched by vmap, which knows no torch.autograd.grad
        found = torch.func.grad(objective, has_aux=True)(weights)
        return found
    nested = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in weights.values())
    leaves = {
        name: leaf.view_as(leaf) if nested and leaf.requires_grad else leaf.detach().requires_grad_(True)
        for name, leaf in weights.items()
    }
    with torch.enable_grad():
        value, moved = objective(leaves)
        moved = {name: leaf.detach() for name, leaf in moved.items()}
        if not value.requires_grad:  # a loss that does not depend on the weights
            return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}, moved
        # For a small network torch.func.grad takes twice as long.
        slopes = torch.autograd.grad(
            value, list(leaves.values()), create_graph=nested, allow_unused=True, materialize_grads=True
        )
    return dict(zip(leaves, slopes, strict=True)), moved


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
