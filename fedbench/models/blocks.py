"""Layers that several networks share, written so that they run under vmap."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class MaxPool2(nn.Module):
    """Maximum over squares of 2 x 2: [..., H, W] -> [..., H // 2, W // 2].

    It stands before the activation, which does not decrease: the maximum of ReLUs is the ReLU of the maximum, of a
    quarter of the values, and the gradient goes the same way; both are the same to the bit. (A leaky ReLU may round two
    negative values to one; then the gradient may go to the other.)
    """

    def forward(self, x: Tensor) -> Tensor:
        """Reduce; on a CPU that needs no gradient by maxima of slices, faster than torch's pooling there."""
        if torch.is_grad_enabled() or x.device.type != "cpu":
            return functional.max_pool2d(x, 2)
        height, width = (2 * (size // 2) for size in x.shape[-2:])
        rows = torch.maximum(x[..., 0:height:2, :], x[..., 1:height:2, :])
        return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])


class GlobalMean(nn.Module):
    """Mean over the map: [B, C, H, W] -> [B, C]; adaptive average pooling to one place, flattened."""

    def forward(self, x: Tensor) -> Tensor:
        """Reduce."""
        return x.mean((2, 3))


class Places(nn.Module):
    """The vectors at the places of a map: [B, C, H, W] -> [B, H W, C], or [B, C] where the map has one place."""

    def forward(self, x: Tensor) -> Tensor:
        """Rearrange."""
        vectors = x.flatten(2).transpose(1, 2)
        return vectors.squeeze(1) if vectors.shape[1] == 1 else vectors


class PlacesMean(nn.Module):
    """Mean over places: [B, P, K] -> [B, K]; [B, K] is left as it is."""

    def forward(self, x: Tensor) -> Tensor:
        """Reduce."""
        return x.mean(1) if x.dim() == 3 else x
