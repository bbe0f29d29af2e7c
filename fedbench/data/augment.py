"""Augmentation on the device: whole batches, parameters drawn beforehand by keyed randomness.

What is drawn depends on (seed, round, client, stage, step, position in the batch) alone, so every engine trains on the
same images. As in torchvision, what lies outside an image is black, also after normalisation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.config.schema import parse_augmentation
from fedbench.core.trees import Tree
from fedbench.data.rotation import rotate


class Augmentation(ABC):
    """One random transform of training images."""

    @abstractmethod
    def draw(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        """Parameters of `shape` images, leaves [*shape, ...]."""

    @abstractmethod
    def apply(self, x: Tensor, drawn: Tensor, black: Tensor) -> Tensor:
        """Images x [n, C, H, W] by `drawn` [n, ...]; `black` [1, C, 1, 1] is a normalised zero."""


@dataclass(frozen=True)
class Crop(Augmentation):
    """Pad by `pad` pixels on every side, cut out a random window of the original size (crop4)."""

    pad: int

    def draw(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        """Shifts (down, right) of the window, int16 [*shape, 2] in -pad..pad."""
        bounds = (-self.pad, self.pad + 1)
        return torch.randint(*bounds, (*shape, 2), generator=generator, dtype=torch.int16)

    def apply(self, x: Tensor, drawn: Tensor, black: Tensor) -> Tensor:
        """See Augmentation.apply."""
        count, channels, height, width = x.shape
        pad = self.pad
        padded = black.expand(count, channels, height + 2 * pad, width + 2 * pad).clone()
        padded[:, :, pad : pad + height, pad : pad + width] = x
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: every window of every image
        down, right = (drawn.long() + pad).unbind(-1)
        return windows[torch.arange(count, device=x.device), :, down, right]


@dataclass(frozen=True)
class Flip(Augmentation):
    """Mirror left and right with probability one half (flip)."""

    def draw(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        """Whether to mirror, bool [*shape]."""
        return torch.rand(shape, generator=generator) < 0.5

    def apply(self, x: Tensor, drawn: Tensor, black: Tensor) -> Tensor:
        """See Augmentation.apply."""
        return torch.where(drawn.view(-1, 1, 1, 1), x.flip(-1), x)


@dataclass(frozen=True)
class Rotate(Augmentation):
    """Rotate by an angle drawn uniformly from -degrees..degrees, bilinear (rotate15)."""

    degrees: int

    def draw(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        """Angles in degrees, float32 [*shape]."""
        return (2 * torch.rand(shape, generator=generator) - 1) * self.degrees

    def apply(self, x: Tensor, drawn: Tensor, black: Tensor) -> Tensor:
        """See Augmentation.apply."""
        return rotate(x, drawn, black, "black")


def augmentations(names: Sequence[str]) -> tuple[Augmentation, ...]:
    """The transforms that a protocol's `augment` names, in order."""
    return tuple(_augmentation(*parse_augmentation(name)) for name in names)


def _augmentation(kind: str, number: int) -> Augmentation:
    if kind == "flip":
        return Flip()
    return Crop(number) if kind == "crop" else Rotate(number)


def draw(chain: Sequence[Augmentation], generator: torch.Generator, shape: tuple[int, ...]) -> Tree:
    """Parameters of every transform for `shape` = (steps, batch) images: one leaf [*shape, ...] each."""
    return {str(place): transform.draw(generator, shape) for place, transform in enumerate(chain)}


def apply(chain: Sequence[Augmentation], x: Tensor, drawn: Tree, black: Tensor) -> Tensor:
    """Images x [..., B, C, H, W] by `drawn` [..., at least B, ...]: the first B of each step are used."""
    lead = x.shape[:-3]
    flat = x.flatten(0, -4)
    for place, transform in enumerate(chain):
        parameters = drawn[str(place)].to(x.device).narrow(len(lead) - 1, 0, lead[-1])
        flat = transform.apply(flat, parameters.flatten(0, len(lead) - 1), black)
    return flat.view(x.shape)
