"""Learning on the server: gradient steps on a tree, for methods that train something between rounds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine.train.optim import Optimizer


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
