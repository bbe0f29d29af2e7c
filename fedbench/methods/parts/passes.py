"""Passes over all of a client's samples, in blocks so that activations of a large client fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.models.task import Task

BLOCK = 512  # samples a forward pass


def blocks(batch: Batch, size: int = BLOCK) -> Iterator[Batch]:
    """`batch` cut into pieces of at most `size` samples, padding and mask kept."""
    for first in range(0, len(batch.y), size):
        rows = slice(first, first + size)
        mask = None if batch.mask is None else batch.mask[rows]
        yield Batch(batch.x[rows], batch.y[rows], mask)


def class_sums(values: Callable[[Batch], Tensor], data: Batch, classes: int) -> tuple[Tensor, Tensor]:
    """Per class of all of `data`: sum of `values` ([B, d] of a block) -> [K, d], and sample counts [K]."""
    parts = [block.class_sums(values(block), classes) for block in blocks(data)]
    return torch.stack([sums for sums, _ in parts]).sum(0), torch.stack([n for _, n in parts]).sum(0)


def mean_loss(model: Tree, data: Batch, task: Task) -> Tensor:
    """Mean cross-entropy of `model` in evaluation mode on all of `data`, a scalar."""
    sums = [
        block.sum(torch.nn.functional.cross_entropy(task.apply(model, block.x), block.y, reduction="none"))
        for block in blocks(data)
    ]
    return trees.sum_of(sums) / data.count
