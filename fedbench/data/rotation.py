"""Rotation of image batches on the device, for feature shift and augmentation.

By any angle the corners of a rotated image lie outside the original; `corners` says what is put there:
mean   the data set's mean colour, which normalisation maps to zero: the corner says nothing (the default)
black  zero, as torchvision and PIL do
edge   the nearest pixel of the border
reflect  the image mirrored at its border
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

PADDING = {"mean": "zeros", "black": "zeros", "edge": "border", "reflect": "reflection"}


def rotate(x: Tensor, degrees: Tensor, fill: Tensor, corners: str = "mean") -> Tensor:
    """Images x [n, C, H, W] turned counter-clockwise about their centre, bilinear; same shape and type.

    `degrees` [n] an image; `fill` broadcasts to x: the value of corners under mean and black.
    """
    height, width = x.shape[-2:]
    angle = degrees.to(x) * (math.pi / 180)
    cos, sin = angle.cos().view(-1, 1, 1), angle.sin().view(-1, 1, 1)
    down = torch.arange(height, device=x.device, dtype=x.dtype).view(1, -1, 1) - (height - 1) / 2
    right = torch.arange(width, device=x.device, dtype=x.dtype).view(1, 1, -1) - (width - 1) / 2
    source = [(cos * right - sin * down) * (2 / width), (sin * right + cos * down) * (2 / height)]
    grid = torch.stack(source, dim=-1)  # [n, H, W, 2]: where each pixel comes from, in [-1, 1] over the image
    filled = corners in ("mean", "black")
    shifted = x - fill if filled else x
    turned = functional.grid_sample(shifted, grid, "bilinear", PADDING[corners], align_corners=False)
    return turned + fill if filled else turned


def rotate_stored(x: Tensor, degrees: float, mean: Tensor, corners: str) -> Tensor:
    """As `rotate`, all by one angle, of images as stored (uint8 or float); mean [1, C, 1, 1] in their units."""
    images = x.to(torch.float32)
    fill = mean.to(images) if corners == "mean" else torch.zeros((), device=x.device)
    turned = rotate(images, torch.full((len(x),), degrees, device=x.device), fill, corners)
    return turned.round().clamp(0, 255).to(x.dtype) if x.dtype == torch.uint8 else turned.to(x.dtype)
