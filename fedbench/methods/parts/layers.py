"""Layers of the small extra networks of some methods."""

from __future__ import annotations

import math

import torch

from fedbench.core.trees import Tree


def linear(name: str, wide: int, narrow: int, generator: torch.Generator) -> Tree:
    """Return the initial weights of a linear layer, as torch.nn.Linear's: `name`.weight [narrow, wide], `name`.bias."""
    bound = 1 / math.sqrt(wide)
    shapes = {"weight": (narrow, wide), "bias": (narrow,)}
    return {
        f"{name}.{leaf}": bound * (2 * torch.rand(shape, generator=generator) - 1) for leaf, shape in shapes.items()
    }
