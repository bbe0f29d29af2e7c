"""Batch normalisation that knows padding and keeps its statistics as plain leaves.

torch's layer counts batches in an integer buffer and cannot leave samples out; without padding this one equals it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class BatchNorm(nn.Module):
    """Batch normalisation over every axis but the second (Ioffe & Szegedy 2015); x [B, C, ...]."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.mask: Tensor | None = None  # bool [B], set by Task.apply for the time of a call
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch's statistics in training, moving the running ones in place; else by the running."""
        if self.training and self.mask is not None:
            return self._masked(x, self.mask)
        return functional.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum,
            self.eps,
        )

    def _masked(self, x: Tensor, mask: Tensor) -> Tensor:
        axes = [0, *range(2, x.dim())]
        shape = (1, -1, *[1] * (x.dim() - 2))
        real = mask.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        count = real.sum() * (x[0, 0].numel())
        mean = (x * real).sum(axes) / count
        centred = x - mean.view(shape)
        variance = (centred.square() * real).sum(axes) / count
        self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean.detach())
        unbiased = variance.detach() * count / (count - 1)
        self.running_var.mul_(1 - self.momentum).add_(self.momentum * unbiased)
        scale = self.weight * (variance + self.eps).rsqrt()
        return centred * scale.view(shape) + self.bias.view(shape)


def replace_batch_norm(module: nn.Module) -> nn.Module:
    """Put `BatchNorm` in the place of every torch batch-norm layer of `module`, values kept."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            ours = BatchNorm(child.num_features, child.momentum or 0.1, child.eps)
            ours.load_state_dict({k: v for k, v in child.state_dict().items() if k != "num_batches_tracked"})
            setattr(module, name, ours)
        else:
            replace_batch_norm(child)
    return module
