"""Procedural images, with captions or without, for tests and machines without data: no file, any size."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.fields import at_least, share
from fedbench.core.errors import Report, silent
from fedbench.core.rng import numpy_rng
from fedbench.data.dataset import Availability, Dataset, DataSource

GRID = 4  # a prototype is GRID x GRID normal numbers, interpolated: smooth, so it survives small shifts
CONTRAST = 40.0  # grey levels a unit of prototype or noise
CHUNK = 4096  # images drawn at once: bounds the memory of the float intermediates


@dataclass(frozen=True)
class Synthetic(DataSource):
    """One smooth random prototype for each class; a sample is its prototype, shifted a little, plus normal noise."""

    name: ClassVar[str] = "synthetic"

    model: str = "mlp"
    classes: int = at_least(2, 10)
    channels: int = at_least(1, 1)
    size: int = at_least(1, 16)  # height and width in pixels
    train: int = at_least(1, 2000)  # training samples; sizes of classes differ by at most one
    test: int = at_least(0, 500)  # test samples
    difficulty: float = at_least(0, 2.0)  # noise in units of a prototype's standard deviation; 0 is trivial
    seed: int = at_least(0, 0)  # seed of the images; independent of the run's seed

    def state(self) -> Availability:
        """Always ready."""
        return Availability(True, "procedural", (), "nothing to fetch")

    def read(self, report: Report = silent) -> Dataset:
        total = self.train + self.test
        rng = numpy_rng(self.seed, "synthetic", "labels")
        y = np.concatenate([rng.permutation(np.arange(count) % self.classes) for count in (self.train, self.test)])
        prototypes = self._prototypes()
        x = np.empty((total, self.channels, self.size, self.size), dtype=np.uint8)
        for start in range(0, total, CHUNK):
            x[start : start + CHUNK] = self._samples(prototypes, y[start : start + CHUNK], start)
        mean, std = _moments(x[: self.train])
        return Dataset(self.name, x, y.astype(np.int64), self.train, self.classes, mean, std)

    def _prototypes(self) -> NDArray[np.float64]:
        """[classes, channels, size, size], each of mean 0 and standard deviation 1."""
        rng = numpy_rng(self.seed, "synthetic", "prototypes")
        return smooth(rng, (self.classes, self.channels), self.size)

    def _samples(self, prototypes: NDArray[np.float64], y: NDArray[Any], start: int) -> NDArray[np.uint8]:
        rng = numpy_rng(self.seed, "synthetic", "samples", start)
        reach = self.size // 8  # largest shift in pixels, each way
        shift = rng.integers(-reach, reach + 1, size=(len(y), 2))
        pixels = np.arange(self.size)
        rows = (pixels + shift[:, :1]) % self.size  # [n, size]
        columns = (pixels + shift[:, 1:]) % self.size
        channels = np.arange(self.channels)[:, None, None]
        clean = prototypes[y[:, None, None, None], channels, rows[:, None, :, None], columns[:, None, None, :]]
        noisy = clean + self.difficulty * rng.standard_normal(clean.shape)
        # Divided by the noise too, so that a difficult image is not merely a saturated one.
        levels = 127.5 + CONTRAST * noisy / np.hypot(1.0, self.difficulty)
        images: NDArray[np.uint8] = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
        return images


def smooth(rng: np.random.Generator, shape: tuple[int, int], size: int) -> NDArray[np.float64]:
    """Smooth random fields [*shape, size, size]; each entry of the first axis has mean 0 and standard deviation 1."""
    coarse = rng.standard_normal((*shape, GRID, GRID))
    apart = np.linspace(0, GRID - 1, size)[:, None] - np.arange(GRID)
    weights = np.maximum(0.0, 1.0 - np.abs(apart))  # [size, GRID], of linear interpolation
    fine = weights @ coarse @ weights.T
    fine -= fine.mean((1, 2, 3), keepdims=True)
    spread: NDArray[np.float64] = fine / np.maximum(fine.std((1, 2, 3), keepdims=True), 1e-9)
    return spread


def _moments(x: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, in units of x / 255 (a constant image counts as deviation 1)."""
    flat = x.transpose(1, 0, 2, 3).reshape(x.shape[1], -1) / 255.0
    std = flat.std(1)
    return tuple(map(float, flat.mean(1))), tuple(map(float, np.where(std > 0, std, 1.0)))


# Images with captions, two views of the same thing, stand in for CUB-200-2011.
#
# A class is a few normal numbers, its traits. They mix smooth fields into the class's image, and say how likely each
# word is in its captions; so classes that look alike are described alike. `shift` replaces a share of the traits that
# captions are made of by others, which the images do not have: at 1 the two views order the classes independently.

SPECIAL_WORDS = ("<pad>", "<unknown>")  # tokens 0 and 1


@dataclass(frozen=True)
class Captioned(Synthetic):
    """Synthetic whose prototypes and captions are made of the same traits."""

    name: ClassVar[str] = "captioned"

    model: str = "cub_cnn"
    classes: int = at_least(2, 20)
    channels: int = at_least(1, 3)
    traits: int = at_least(1, 8)  # number of traits, random numbers that define a class
    shift: float = share(0.0)  # share of the captions' traits that the images do not have
    captions: int = at_least(1, 2)  # captions of an image
    words: int = at_least(1, 8)  # words of a caption
    vocabulary: int = at_least(3, 200)  # number of words, including the two for padding and the unknown
    chatter: float = share(0.5)  # share of the words that carry no information about the class

    def read(self, report: Report = silent) -> Dataset:
        data = super().read(report)
        number = np.arange(self.vocabulary - len(SPECIAL_WORDS))
        return dataclasses.replace(
            data,
            text=self._captions(data.y),
            vocabulary=(*SPECIAL_WORDS, *(f"word{i}" for i in number)),
        )

    def _prototypes(self) -> NDArray[np.float64]:
        rng = numpy_rng(self.seed, "captioned", "fields")
        fields = smooth(rng, (self.traits, self.channels), self.size)
        mixed = np.tensordot(self._traits("image"), fields, 1)
        return np.asarray(mixed / np.maximum(mixed.std((1, 2, 3), keepdims=True), 1e-9))

    def _traits(self, view: str) -> NDArray[np.float64]:
        """[classes, traits], each of variance 1: those of the images, or the captions' own."""
        rng = numpy_rng(self.seed, "captioned", "traits", view)
        return rng.standard_normal((self.classes, self.traits))

    def _captions(self, y: NDArray[np.int64]) -> NDArray[np.int32]:
        """Token numbers int32 [n, captions, words]."""
        rng = numpy_rng(self.seed, "captioned", "words")
        kept, own = np.sqrt(1 - self.shift), np.sqrt(self.shift)
        traits = kept * self._traits("image") + own * self._traits("text")
        leaning = traits @ rng.standard_normal((self.traits, self.vocabulary - len(SPECIAL_WORDS)))
        likely = np.exp(leaning - leaning.max(1, keepdims=True))
        reach = np.cumsum(likely / likely.sum(1, keepdims=True), 1)  # [classes, V]
        shape = (len(y), self.captions, self.words)
        said = np.empty(shape, dtype=np.int64)
        for label in range(self.classes):
            mine = y == label
            said[mine] = np.searchsorted(reach[label], rng.random(said[mine].shape))
        said = np.minimum(said, reach.shape[1] - 1)
        idle = rng.integers(reach.shape[1], size=shape)
        return (np.where(rng.random(shape) < self.chatter, idle, said) + len(SPECIAL_WORDS)).astype(np.int32)
