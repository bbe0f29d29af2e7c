"""Layers that several networks share, written so that they run under vmap."""

from __future__ import annotations

from torch import Tensor, nn


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
