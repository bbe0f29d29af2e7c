"""feature_shift and concept_shift: FedCollab's four types of clients, with rotated images or permuted labels.

Bao et al., ICML 2023, section 5.1, Figure 4, Table 4. Twenty clients, five of each type, samples of the train and the
test split together, at random (the authors' program gives each client as many of each label, whence 340 = 34 x 10 and
120 = 6 x 20: feature_shift_code, concept_shift_code); 0-9 are large, 10-19 small:

| | large: train / test | small: train / test | type 0, 1, 2, 3 |
|---|---|---|---|
| feature shift (CIFAR-10) | 2500 / 500 | 340 / 500 | images rotated by +25, -25, +155, -155 degrees |
| concept shift (CIFAR-100, 20 coarse labels) | 2500 / 500 | 120 / 500 | labels permuted, see `permutations` |

On a smaller data set `scale` shrinks all counts alike.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.config.fields import at_least, finite, one_of, share
from fedbench.config.schema import added
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Ints
from fedbench.data.partitions.base import CORNERS, Assignment, PartitionSpec, Pool, largest

CLIENTS = 20
TYPE = np.arange(CLIENTS) // 5  # of each client


@dataclass(frozen=True)
class Shift(PartitionSpec):
    """Large and small clients with IID samples, before rotations or permutations."""

    pools: ClassVar[bool] = True
    fixes_test: ClassVar[bool] = True

    large: int = at_least(1, 2500)  # training samples of clients 0-9
    small: int = at_least(1, 340)  # training samples of clients 10-19
    test: int = at_least(1, 500)  # test samples of every client
    # factor on all three counts; null: 1, or the largest that the data set allows
    scale: float | None = share(None, above=True)
    # additional large clients after the twenty, of types 0, 1, 2, 3, 0, ...; protocol.unseen takes the last ones
    further: int = added(at_least(0, 0))

    @property
    def types(self) -> Ints:
        """The type of each client."""
        return np.concatenate([TYPE, np.arange(self.further) % (TYPE.max() + 1)])

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        train, test = self.counts(len(pool))
        parts = np.split(rng.permutation(pool.index), np.cumsum([*train, *test]))[:-1]
        return self.shifted(parts[: len(train)], parts[len(train) :], pool.classes)

    @abstractmethod
    def shifted(self, train: list[Ints], test: list[Ints], classes: int) -> Assignment:
        """Return the assignment of these samples with the transforms of the four types."""

    def counts(self, samples: int) -> tuple[Ints, Ints]:
        """Return (train, test) samples of each client, int64 [20 + further], given the number of samples.

        Raises:
            ConfigError: there are too few samples, at `scale` or at any scale.
        """
        if self.scale is not None:
            large = max(1, int(self.scale * self.large + 1e-9))
        else:
            large = max(1, largest(self.large, lambda size: sum(map(np.sum, self._tables(size))) <= samples))
        train, test = self._tables(large)
        if (needed := int(train.sum() + test.sum())) > samples:
            raise ConfigError(
                f"{self.label} needs {needed} samples, there are {samples}; "
                "lower partition.scale or raise dataset.limit"
            )
        return train, test

    def _tables(self, large: int) -> tuple[Ints, Ints]:
        """Return (train, test) samples if large clients get `large`; other counts are in proportion."""
        small = max(1, self.small * large // self.large)
        test = max(1, self.test * large // self.large)
        train = np.repeat([large, small, large], [CLIENTS // 2, CLIENTS // 2, self.further])
        return train, np.full(len(train), test)


@dataclass(frozen=True)
class FeatureShift(Shift):
    """Each type's images, training and test, are rotated by its own angle, counter-clockwise."""

    name: ClassVar[str] = "feature_shift"
    by_label: ClassVar[bool] = False

    angles: tuple[float, ...] = finite((25.0, -25.0, 155.0, -155.0))  # degrees, one for each type
    corners: str = one_of("mean", *CORNERS)  # fill of the corners; mean: the data set's colour

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.angles) != TYPE.max() + 1:
            raise ConfigError(f"partition.angles needs four angles, got {list(self.angles)}")

    def shifted(self, train: list[Ints], test: list[Ints], classes: int) -> Assignment:
        rotation = np.array(self.angles, dtype=np.float64)[self.types]
        return Assignment(train=train, test=test, rotation=rotation, corners=self.corners)


@dataclass(frozen=True)
class ConceptShift(Shift):
    """Each type's labels, training and test, are permuted in its own way."""

    name: ClassVar[str] = "concept_shift"

    small: int = at_least(1, 120)  # training samples of clients 10-19

    def shifted(self, train: list[Ints], test: list[Ints], classes: int) -> Assignment:
        if classes < 4:
            raise ConfigError(f"concept_shift needs at least 4 classes, this data set has {classes}")
        return Assignment(train=train, test=test, label_map=permutations(classes)[self.types])


def permutations(classes: int) -> Ints:
    """Return the label that clients of each type see for label y, int64 [4, K].

    Identity; the first block reversed; everything reversed; everything reversed, then the last block put in order. The
    block is the even number nearest to 30 % of the classes: 6 of the paper's 20, so types 0 and 1 agree in 14 labels,
    as types 2 and 3 do, and the former agree with the latter in none (with an odd K, in the middle label).
    """
    block = 2 * max(1, int(0.15 * classes + 0.5))
    label = np.arange(classes)
    first = label < block
    backwards = classes - 1 - label
    return np.stack(
        [
            label,
            np.where(first, block - 1 - label, label),
            backwards,
            np.where(first, classes - block + label, backwards),
        ]
    )
