"""Clients' samples: Population before training, Batch during training."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbench.core.trees import Tree


@dataclass(frozen=True)
class Population:
    """What a server knows before training: the number of samples of each client and of each class."""

    sizes: Tensor  # float64 [N], training samples n_k
    label_counts: Tensor  # float64 [N, K], training samples of each class

    @property
    def clients(self) -> int:
        """N."""
        return len(self.sizes)


@dataclass(frozen=True)
class Batch:
    """Samples of one client. Padding is masked, so take averages with `Batch.mean`."""

    x: Tensor  # [B, ...] normalised float
    y: Tensor  # int64 [B], labels; of regression float [B]
    mask: Tensor | None = None  # bool [B], False for padding; None: all real
    noise: Tree = field(default_factory=dict)  # this step's leaves of Method.draw

    @property
    def count(self) -> Tensor:
        """Number of real samples, a scalar."""
        if self.mask is None:
            return torch.full((), float(len(self.y)), device=self.y.device)
        return self.mask.sum().to(torch.float32)

    def sum(self, values: Tensor) -> Tensor:
        """Sum of `values` [B, ...] over the real samples."""
        return values.sum(0) if self.mask is None else (values * _like(self.mask, values)).sum(0)

    def mean(self, values: Tensor) -> Tensor:
        """Mean of `values` [B, ...] over the real samples."""
        return values.mean(0) if self.mask is None else self.sum(values) / self.count

    def class_sums(self, values: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Per class: sum of `values` [B, d] -> [K, d], and sample counts [K]."""
        onehot = torch.nn.functional.one_hot(self.y, classes).to(values.dtype)
        if self.mask is not None:
            onehot = onehot * self.mask.to(values.dtype).unsqueeze(1)
        return onehot.t() @ values, onehot.sum(0)


def _like(mask: Tensor, values: Tensor) -> Tensor:
    return mask.to(values.dtype).view(-1, *[1] * (values.dim() - 1))
