"""Data sets that are not here in outline: as many samples of the same shape, labels in equal shares, no pixels.

Enough to divide them among clients and to count what training takes; what is drawn by the samples themselves differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Dataset, DataSource
from fedbench.data.datasets.cub import Cub
from fedbench.data.datasets.domainnet import LISTED, DomainNet
from fedbench.data.datasets.small_images import CIFAR100_LABELS, Cifar100
from fedbench.data.files import FileSource
from fedbench.runs import fingerprint

SIDES = {  # channels, and pixels across and up
    "cifar10": (3, 32),
    "cifar100": (3, 32),
    "cinic10": (3, 32),
    "emnist": (1, 28),
    "fashion_mnist": (1, 28),
    "mnist": (1, 28),
    "tiny_imagenet": (3, 64),
}
CAPTIONS = 10  # of a bird
ALL_CLASSES = 345  # of DomainNet


@dataclass(frozen=True)
class Outline:
    """What is known of a data set without its files."""

    shape: tuple[int, int, int]  # [C, H, W] of a sample
    counts: tuple[NDArray[np.int64], NDArray[np.int64]]  # training and test samples of each domain
    classes: int
    words: int = 0  # of all captions of a sample

    @classmethod
    def of(cls, source: FileSource) -> Outline:
        """Of the data set that `source` describes.

        Raises:
            ConfigError: none of those that tables use.
        """
        train, test = (np.array([count]) for count in source.published)
        if isinstance(source, DomainNet):
            share = source.ratio * source.num_classes / ALL_CLASSES
            train, test = (np.array([share * each[split] for each in LISTED.values()]) for split in (0, 1))
            counts = train.astype(np.int64), test.astype(np.int64)
            return cls((3, source.size, source.size), counts, source.num_classes)
        if isinstance(source, Cub):
            words = CAPTIONS * source.words if source.text else 0
            return cls((3, source.size, source.size), (train, test), source.label_count, words)
        if source.name not in SIDES:
            raise ConfigError(f"the shape of {source.name} is not known without its samples")
        channels, side = SIDES[source.name]
        classes = CIFAR100_LABELS[source.labels] if isinstance(source, Cifar100) else source.label_count
        return cls((channels, side, side), (train, test), classes)

    def dataset(self, name: str) -> Dataset:
        """As a data set whose values are all zero and take no memory."""
        train, test = self.counts
        total = int(train.sum() + test.sum())
        places = [np.repeat(np.arange(len(each)), each) for each in self.counts]
        half = (0.5,) * self.shape[0]
        options: dict[str, Any] = {"domain": np.concatenate(places)} if len(train) > 1 else {}
        if self.words:
            tokens = np.broadcast_to(np.zeros((), dtype=np.int32), (total, 1, self.words))
            options |= {"text": tokens, "vocabulary": ("",)}
        pixels = np.broadcast_to(np.zeros((), dtype=np.uint8), (total, *self.shape))
        labels = np.arange(total, dtype=np.int64) % self.classes
        return Dataset(name, pixels, labels, int(train.sum()), self.classes, half, half, **options)


def outlined(source: DataSource) -> Dataset:
    """The data set itself where it is on this machine, else its outline.

    Raises:
        ConfigError: its shape is not known without it.
    """
    if source.state().ready or not isinstance(source, FileSource):
        return fingerprint.load(source)
    return Outline.of(source).dataset(source.name)
