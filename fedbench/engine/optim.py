"""SGD and Adam on lists of tensors, in place, with or without a leading client axis.

Equal to torch.optim on one client (tested); torch.optim has no per-client gradient clipping and no way to go on with
the clients of a stack that still have batches.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.trees import Tree


class Optimizer:
    """State of one stage's optimiser over `params`; `axes` is 1 if their first axis is the client's."""

    def __init__(self, config: OptimizerConfig, params: list[Tensor], axes: int = 0) -> None:
        self.config = config
        self.params = params
        self.axes = axes
        # Steps so far; beside a client axis, where steps are captured, on the device.
        self.count: int | Tensor = (
            torch.zeros((), dtype=torch.float64, device=params[0].device) if axes and params else 0
        )
        moments = {"sgd": 1 if config.momentum else 0, "adam": 2}[config.name]
        self.moments = [[torch.zeros_like(p) for p in params] for _ in range(moments)]

    @torch.no_grad()
    def step(self, grads: list[Tensor], active: int | None = None) -> None:
        """One update in place; with a client axis, of the first `active` clients only.

        The clients of a stack are ordered so that those still active come first and took every step so far.
        """
        if not self.params:  # a stage whose selector matches no leaf of this network
            return
        params, moments = self.params, self.moments
        if active is not None:
            params = [p[:active] for p in params]
            moments = [[m[:active] for m in each] for each in moments]
        self.count += 1
        if self.config.clip is not None:
            grads = clip(grads, self.config.clip, self.axes)
        if self.config.weight_decay:
            grads = list(torch._foreach_add(grads, params, alpha=self.config.weight_decay))
        if self.config.name == "adam":
            self._adam(params, grads, moments)
            return
        if moments:
            torch._foreach_mul_(moments[0], self.config.momentum)
            torch._foreach_add_(moments[0], grads)
            grads = moments[0]
        torch._foreach_add_(params, grads, alpha=-self.config.lr)

    def _adam(self, params: list[Tensor], grads: list[Tensor], moments: list[list[Tensor]]) -> None:
        """Kingma & Ba (2015), beta = (0.9, 0.999), eps = 1e-8, as torch.optim.Adam computes it."""
        first, second = moments
        torch._foreach_lerp_(first, grads, 0.1)
        torch._foreach_mul_(second, 0.999)
        torch._foreach_addcmul_(second, grads, grads, value=0.001)
        denominators = list(torch._foreach_sqrt(second))
        torch._foreach_div_(denominators, self._scalar((1 - 0.999**self.count) ** 0.5))
        torch._foreach_add_(denominators, 1e-8)
        torch._foreach_mul_(denominators, self._scalar((1 - 0.9**self.count) / -self.config.lr))
        torch._foreach_addcdiv_(params, first, denominators)

    def _scalar(self, value: float | Tensor) -> float | Tensor:
        """A number that depends on the step, as the tensors it is combined with."""
        return value.to(self.params[0].dtype) if isinstance(value, Tensor) else value


def clip(grads: list[Tensor], limit: float, axes: int) -> list[Tensor]:
    """Scale each client's gradient to norm `limit` at most, as torch.nn.utils.clip_grad_norm_ does."""
    squares = [g.square().flatten(axes).sum(-1) for g in grads]
    norms = torch.stack(squares).sum(0).sqrt()
    scale = (limit / (norms + 1e-6)).clamp(max=1.0)
    return [g * scale.view(*scale.shape, *[1] * (g.dim() - axes)) for g in grads]


# Learning on the server: gradient steps on a tree, for methods that train something between rounds.


def fit(
    params: Tree,
    loss: Callable[[Tree, torch.Generator], Tensor],
    steps: int,
    optimizer: OptimizerConfig,
    generator: torch.Generator,
) -> Tree:
    """`steps` optimiser steps on `loss(params, generator)`, from `params`, which is left as it was.

    A loss that samples draws from `generator` (on the CPU), so that the result is a function of it. The optimiser's
    state lives for these steps only, as a client's does.
    """
    params = trees.clone(params)
    leaves = list(params.values())
    stepping = Optimizer(optimizer, leaves)
    for _ in range(steps):
        with torch.enable_grad():
            for leaf in leaves:
                leaf.requires_grad_(True)
            grads = torch.autograd.grad(loss(params, generator), leaves)
        for leaf in leaves:
            leaf.requires_grad_(False)
        stepping.step(list(grads))
    return params
