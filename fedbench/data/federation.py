"""A data set on the device, the samples of each client, and the transforms of batches: rotation, augmentation.

Images stay in one array (uint8 where the files are); a client is a list of indices. Batches are gathered and normalised
on the device: no copies per client, no data loader.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.schema import parse_augmentation
from fedbench.core.batch import Batch, Population
from fedbench.core.cache import release
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset
from fedbench.data.partition import Partition

# Rotation of image batches on the device, for feature shift and augmentation.
#
# By any angle the corners of a rotated image lie outside the original; `corners` says what is put there:
# mean   the data set's mean colour, which normalisation maps to zero: the corner says nothing (the default)
# black  zero, as torchvision and PIL do
# edge   the nearest pixel of the border
# reflect  the image mirrored at its border

ROTATION_PADDING = {"mean": "zeros", "black": "zeros", "edge": "border", "reflect": "reflection"}


def rotate(x: Tensor, degrees: Tensor, fill: Tensor, corners: str = "mean") -> Tensor:
    """Rotate images x [n, C, H, W] counter-clockwise about their centre, bilinear; same shape and type.

    `degrees` [n] has an angle for each image; `fill`, which broadcasts to x, is the value of corners (mean, black).
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
    turned = functional.grid_sample(shifted, grid, "bilinear", ROTATION_PADDING[corners], align_corners=False)
    return turned + fill if filled else turned


def rotate_stored(x: Tensor, degrees: float, mean: Tensor, corners: str) -> Tensor:
    """As `rotate`, by one angle, for images as stored (uint8 or float); mean [1, C, 1, 1] is in their units."""
    images = x.to(torch.float32)
    fill = mean.to(images) if corners == "mean" else torch.zeros((), device=x.device)
    turned = rotate(images, torch.full((len(x),), degrees, device=x.device), fill, corners)
    return turned.round().clamp(0, 255).to(x.dtype) if x.dtype == torch.uint8 else turned.to(x.dtype)


def turned(x: Tensor, degrees: float) -> Tensor:
    """Images x [n, C, H, W] turned counter-clockwise as Pillow does: a pixel is the nearest one, or 0 outside."""
    from PIL import Image

    height, width = x.shape[-2:]
    places = np.arange(1, height * width + 1, dtype=np.int32).reshape(height, width)
    source = torch.from_numpy(np.array(Image.fromarray(places).rotate(degrees))).flatten().long()
    return functional.pad(x.flatten(2), (1, 0))[..., source.to(x.device)].view(x.shape)


SHARED_AT_ONCE = 4096  # samples that are copied between two releases of what they are copied from
ROTATED_AT_ONCE = 4096  # images: bounds the memory of their float copies


@dataclass(frozen=True, eq=False)
class Ragged:
    """Index lists of all clients end to end: two tensors, however many clients."""

    values: Tensor  # int64 [sum of sizes], on the device
    offsets: Tensor  # int64 [N + 1], on the CPU

    @classmethod
    def of(cls, lists: Sequence[np.ndarray], device: torch.device) -> Ragged:
        """Build it from one index array for each client."""
        values = np.concatenate([np.asarray(each, dtype=np.int64) for each in lists])
        offsets = np.cumsum([0, *(len(each) for each in lists)])
        return cls(torch.from_numpy(values).to(device), torch.from_numpy(offsets))

    def first(self, count: int) -> Ragged:
        """The first `count` lists: views."""
        return Ragged(self.values[: int(self.offsets[count])], self.offsets[: count + 1])

    @cached_property
    def sizes(self) -> Tensor:
        """Samples of each client, int64 [N]."""
        return self.offsets.diff()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Tensor:
        return self.values[int(self.offsets[client]) : int(self.offsets[client + 1])]


class Federation:
    """N clients over one data set. Sets of samples are called train, val, local (test) and global (test)."""

    def __init__(
        self,
        dataset: Dataset,
        partition: Partition,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Move `dataset` to `device`; inputs, and so models, are of `dtype` (float64 for exact comparisons)."""
        self.device = torch.device(device)
        self.dtype = dtype
        self.name = dataset.name
        self.classes = dataset.classes
        self.shape = tuple(int(n) for n in dataset.x.shape[1:])
        self.stored = dataset.x if partition.rotation is None else np.array(dataset.x)
        if partition.looks is not None:
            self.stored = self._dressed(dataset, partition, partition.looks)
            self.shape = tuple(self.stored.shape[1:])
        self.x = readable(self.stored).to(self.device)
        labels = np.array(dataset.y)
        if partition.label_map is not None:
            for client, owned in enumerate(self._owned(partition)):
                labels[owned] = partition.label_map[client][labels[owned]]
        self.y = torch.from_numpy(labels).to(self.device)
        self.zero, self.one = dataset.target_unit
        self.target: Tensor | None = None  # as networks predict it
        if dataset.target is not None:
            self.target = torch.from_numpy((dataset.target - self.zero) / self.one).to(self.device, dtype)
        channels = (1, -1, *[1] * (len(self.shape) - 1))
        self.mean = torch.tensor(dataset.mean, dtype=dtype, device=self.device).view(channels)
        self.inverse = (1 / (torch.tensor(dataset.std, dtype=dtype) * dataset.scale)).to(self.device)
        self.inverse = self.inverse.view(channels)
        self.scale = dataset.scale
        self.offset = self.mean * dataset.scale
        self.black = -self.offset * self.inverse  # a zero after normalisation [1, C, 1, 1]
        if partition.rotation is not None:
            self._rotate(partition, partition.rotation)
        self.sets = {
            "train": Ragged.of(partition.train, self.device),
            "val": Ragged.of(partition.val, self.device),
            "local": Ragged.of(partition.test, self.device),
        }
        self.global_test = torch.arange(dataset.num_train, len(dataset.y), device=self.device)
        self.ids = list(range(len(self.sets["train"])))  # what each client's randomness is keyed by
        self.population = self._population()

    def first(self, count: int) -> Federation:
        """The first `count` clients, over the same arrays of samples."""
        part = copy.copy(self)
        part.sets = {name: each.first(count) for name, each in self.sets.items()}
        part.ids = self.ids[:count]
        part.population = part._population()
        return part

    def _owned(self, partition: Partition) -> list[np.ndarray]:
        return [np.concatenate(parts) for parts in zip(partition.train, partition.val, partition.test, strict=True)]

    def _rotate(self, partition: Partition, degrees: np.ndarray) -> None:
        """Rotate every client's images in place and once, because each image belongs to one client."""
        self.require_images(f"partition {partition.label} rotates")
        for owned, angle in zip(self._owned(partition), degrees, strict=True):
            for block in torch.from_numpy(owned).to(self.device).split(ROTATED_AT_ONCE):
                self.x[block] = rotate_stored(self.x[block], float(angle), self.offset, partition.corners)

    def _dressed(self, dataset: Dataset, partition: Partition, looks: np.ndarray) -> np.ndarray:
        """Return the images in colour, those of each client and label with their looks.

        Looks [N, K, 2]: (degrees to turn, channel to fill or -1).
        """
        self.require_images(f"partition {partition.label} turns and colours")
        chosen = [
            (owned[dataset.y[owned] == label], look)
            for owned, own in zip(self._owned(partition), looks, strict=True)
            for label, look in enumerate(own)
        ]
        images = np.array(dataset.x)
        for places, (degrees, _) in chosen:  # first, while images may have one channel
            if degrees:
                images[places] = turned(torch.from_numpy(images[places]), float(degrees)).numpy()
        images = images if images.shape[1] > 1 else np.repeat(images, 3, axis=1)
        for places, (_, channel) in chosen:
            if channel >= 0:
                images[places, int(channel)] = dataset.scale
        return images

    def require_images(self, who: str) -> None:
        """Refuse samples other than images, such as text.

        Raises:
            ConfigError: samples have a single row or column; `who` names what needs images.
        """
        if min(self.shape[-2:]) == 1:
            raise ConfigError(f"{who} images; samples of shape {list(self.shape)} are none")

    def _population(self) -> Population:
        train = self.sets["train"]
        owner = torch.repeat_interleave(torch.arange(len(train)), train.sizes).to(self.device)
        flat = owner * self.classes + self.y[train.values]
        counts = torch.bincount(flat, minlength=len(train) * self.classes).view(-1, self.classes)
        return Population(train.sizes.to(torch.float64), counts.to("cpu", torch.float64))

    @property
    def clients(self) -> int:
        """N."""
        return len(self.sets["train"])

    def size(self, client: int) -> int:
        """Training samples of a client."""
        return int(self.sets["train"].sizes[client])

    def indices(self, name: str, client: int) -> Tensor:
        """Sample indices of one of a client's sets; `global` is the same for all."""
        return self.global_test if name == "global" else self.sets[name][client]

    @property
    def answers(self) -> Tensor:
        """The target of each sample: its label, or its quantity."""
        return self.y if self.target is None else self.target

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """(x [..., C, H, W] normalised, y [...]) of samples `indices` [...], y as in `answers`."""
        labels = self.answers.index_select(0, indices.reshape(-1)).view(indices.shape)
        return self._stored(indices).sub_(self.offset).mul_(self.inverse), labels

    def normalised(self, x: Tensor) -> Tensor:
        """Return samples x [n, ...] in the data set's units as networks read them; they need not be in the data set."""
        return x.to(self.device, self.dtype).sub(self.offset).mul_(self.inverse)

    def in_units(self, predicted: np.ndarray) -> np.ndarray:
        """Return predictions or `answers` in the data set's own units, float64."""
        return predicted.astype(np.float64) * self.one + self.zero

    def unit(self, indices: Tensor) -> Tensor:
        """Samples `indices` [...] in the data set's own units divided by its scale: pixels in [0, 1]."""
        return self._stored(indices).div_(self.scale)

    def _stored(self, indices: Tensor) -> Tensor:
        """Return copies of samples `indices` [...] as stored, in the federation's precision.

        On a CPU `index_select`, and arithmetic in place on what it gives, are several times as fast as `x[indices]` and
        new tensors.
        """
        chosen = self.x.index_select(0, indices.reshape(-1)).to(self.dtype)
        return chosen.view(*indices.shape, *self.x.shape[1:])

    def all_of(self, client: int) -> Batch:
        """All training samples of a client as one batch."""
        return Batch(*self.gather(self.sets["train"][client]))

    def validation_indices(self, client: int) -> Tensor:
        """A client's validation samples, or its training samples if it has none."""
        held_out = self.sets["val"][client]
        return held_out if len(held_out) else self.sets["train"][client]

    def placed(self, tree: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a tree on the federation's device, with models in its precision."""
        return {
            key: leaf.to(self.device, self.dtype if leaf.dtype == torch.float32 else leaf.dtype)
            for key, leaf in tree.items()
        }

    def share_memory(self) -> Federation:
        """Move the sample arrays to shared memory, so that worker processes read them without copies."""
        if not self.x.is_shared():
            shared = torch.empty_like(self.x).share_memory_()
            for target, source in zip(shared.split(SHARED_AT_ONCE), self.x.split(SHARED_AT_ONCE), strict=True):
                target.copy_(source)
                release(self.stored)  # so that a mapped array is not held twice
            self.x = shared
        for tensor in (self.y, self.answers, *(each.values for each in self.sets.values())):
            tensor.share_memory_()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the source of the samples, which copies and other processes do not need."""
        return {**vars(self), "stored": np.zeros(0)}


def readable(array: np.ndarray) -> Tensor:
    """Return `array` as a tensor for reading only: the same memory if torch accepts it, else a copy."""
    view = array.view(np.ndarray)
    with suppress(ValueError):  # it is nobody's to write
        view.flags.writeable = True  # torch warns of any other; a mapped file itself is never changed
    return torch.from_numpy(view if view.flags.writeable and view.flags.c_contiguous else np.array(array))


# Augmentation on the device: whole batches, parameters drawn beforehand by keyed randomness.
#
# What is drawn depends on (seed, round, client, stage, step, position in the batch) alone, so every engine trains on
# the same images. As in torchvision, what lies outside an image is black, also after normalisation.


class Augmentation(ABC):
    """One random transform of training images."""

    @abstractmethod
    def draw(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        """Draw the parameters for `shape` images, leaves [*shape, ...]."""

    @abstractmethod
    def apply(self, x: Tensor, drawn: Tensor, black: Tensor) -> Tensor:
        """Transform images x [n, C, H, W] by `drawn` [n, ...]; `black` [1, C, 1, 1] is a normalised zero."""


@dataclass(frozen=True)
class Crop(Augmentation):
    """Pad by `pad` pixels on every side, cut out a random window of the original size (crop4)."""

    pad: int

    def draw(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        """Shifts (down, right) of the window, int16 [*shape, 2] in -pad..pad."""
        bounds = (-self.pad, self.pad + 1)
        return torch.randint(*bounds, (*shape, 2), generator=generator, dtype=torch.int16)

    def apply(self, x: Tensor, drawn: Tensor, black: Tensor) -> Tensor:
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
        return torch.where(drawn.view(-1, 1, 1, 1), x.flip(-1), x)


@dataclass(frozen=True)
class Rotate(Augmentation):
    """Rotate by an angle drawn uniformly from -degrees..degrees, bilinear (rotate15)."""

    degrees: int

    def draw(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        """Angles in degrees, float32 [*shape]."""
        return (2 * torch.rand(shape, generator=generator) - 1) * self.degrees

    def apply(self, x: Tensor, drawn: Tensor, black: Tensor) -> Tensor:
        return rotate(x, drawn, black, "black")


def augmentations(names: Sequence[str]) -> tuple[Augmentation, ...]:
    """The transforms that a protocol's `augment` names, in order."""
    return tuple(_augmentation(*parse_augmentation(name)) for name in names)


def _augmentation(kind: str, number: int) -> Augmentation:
    if kind == "flip":
        return Flip()
    return Crop(number) if kind == "crop" else Rotate(number)


def draw_augmentation(chain: Sequence[Augmentation], generator: torch.Generator, shape: tuple[int, ...]) -> Tree:
    """Parameters of every transform for `shape` = (steps, batch) images: one leaf [*shape, ...] each."""
    return {str(place): transform.draw(generator, shape) for place, transform in enumerate(chain)}


def augment(chain: Sequence[Augmentation], x: Tensor, drawn: Tree, black: Tensor) -> Tensor:
    """Augment images x [..., B, C, H, W] by the first B entries of each step of `drawn` [..., at least B, ...]."""
    lead = x.shape[:-3]
    flat = x.flatten(0, -4)
    for place, transform in enumerate(chain):
        parameters = drawn[str(place)].to(x.device).narrow(len(lead) - 1, 0, lead[-1])
        flat = transform.apply(flat, parameters.flatten(0, len(lead) - 1), black)
    return flat.view(x.shape)
