"""Procedural images with captions: two views of the same thing, for tests and machines without CUB-200-2011.

A class is a few normal numbers, its traits. They mix smooth fields into the class's image, and say how likely each word
is in its captions; so classes that look alike are described alike. `shift` replaces a share of the traits that captions
are made of by others, which the images do not have: at 1 the two views order the classes independently.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.domain import at_least, share
from fedbench.core.progress import Report, silent
from fedbench.core.rng import numpy_rng
from fedbench.data.dataset import Dataset
from fedbench.data.datasets.synthetic import Synthetic, smooth

SPECIAL = ("<pad>", "<unknown>")  # tokens 0 and 1


@dataclass(frozen=True)
class Captioned(Synthetic):
    """As Synthetic, with prototypes made of traits, and captions made of the same."""

    name: ClassVar[str] = "captioned"

    model: str = "cub_cnn"
    classes: int = at_least(1, 20)
    channels: int = at_least(1, 3)
    traits: int = at_least(1, 8)  # numbers that a class is
    shift: float = share(0.0)  # share of the captions' traits that the images do not have
    captions: int = at_least(1, 2)  # of an image
    words: int = at_least(1, 8)  # of a caption
    vocabulary: int = at_least(3, 200)  # word numbers, the two for padding and the unknown among them
    chatter: float = share(0.5)  # share of the words that say nothing of the class

    def read(self, report: Report = silent) -> Dataset:
        """See `DataSource.read`."""
        data = super().read(report)
        number = np.arange(self.vocabulary - len(SPECIAL))
        return dataclasses.replace(
            data,
            text=self._captions(data.y),
            vocabulary=(*SPECIAL, *(f"word{i}" for i in number)),
        )

    def _prototypes(self) -> NDArray[np.float64]:
        """See Synthetic."""
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
        leaning = traits @ rng.standard_normal((self.traits, self.vocabulary - len(SPECIAL)))
        likely = np.exp(leaning - leaning.max(1, keepdims=True))
        reach = np.cumsum(likely / likely.sum(1, keepdims=True), 1)  # [classes, V]
        shape = (len(y), self.captions, self.words)
        said = np.empty(shape, dtype=np.int64)
        for label in range(self.classes):
            mine = y == label
            said[mine] = np.searchsorted(reach[label], rng.random(said[mine].shape))
        said = np.minimum(said, reach.shape[1] - 1)
        idle = rng.integers(reach.shape[1], size=shape)
        return (np.where(rng.random(shape) < self.chatter, idle, said) + len(SPECIAL)).astype(np.int32)
