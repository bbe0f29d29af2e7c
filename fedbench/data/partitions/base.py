"""The interface of partitions: from candidate samples to the samples of each client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.fields import Component
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Ints

CORNERS = ("mean", "black", "edge", "reflect")  # what a rotation puts where no pixel lands: data.federation


@dataclass(frozen=True, eq=False)
class Pool:
    """The samples that a partition may hand out."""

    index: Ints  # [m] sample numbers in the data set
    labels: Ints  # [m]
    classes: int
    domain: Ints | None = None  # [m]
    origin: str = ""  # name-fingerprint of the data set
    part: NDArray[np.int8] | None = None  # [m], place in PARTS of each sample, if the data give it
    rows: Ints | None = None  # of each sample of a user's own data set: its place there
    tested: int = 0  # number of samples of the test split, which come last
    seed: int = 0  # seed of the partition, for programs with a seed for each

    def __len__(self) -> int:
        return len(self.index)

    @property
    def stock(self) -> Ints:
        """Samples of each class, int64 [classes]."""
        return np.bincount(self.labels, minlength=self.classes)

    def by_class(self, rng: np.random.Generator) -> list[Ints]:
        """For each class the indices of its samples, in random order."""
        return [rng.permutation(self.index[self.labels == label]) for label in range(self.classes)]

    def deal(self, counts: Ints, rng: np.random.Generator) -> list[Ints]:
        """Draw random samples without replacement: `counts` [N, K] of each class for each client.

        Raises:
            ConfigError: a class has too few samples.
        """
        require_stock(counts.sum(0), self.stock[: counts.shape[1]])
        parts: list[list[Ints]] = [[] for _ in counts]
        for label, members in enumerate(self.by_class(rng)[: counts.shape[1]]):
            for taker, part in enumerate(np.split(members, np.cumsum(counts[:, label]))[:-1]):
                parts[taker].append(part)
        return [np.concatenate(part) for part in parts]


@dataclass(frozen=True, eq=False)
class Assignment:
    """The samples of each client, and their transforms.

    Give either `clients`, to be split into train and test as the protocol says, or `train` and `test`.
    """

    clients: list[Ints] | None = None
    train: list[Ints] | None = None
    val: list[Ints] | None = None  # None: split off the training samples as the protocol says
    test: list[Ints] | None = None
    rotation: np.ndarray | None = None  # float64 [N], degrees by which a client's images are turned
    corners: str = "mean"  # one of CORNERS
    label_map: Ints | None = None  # [N, classes]: a client sees label y as label_map[client, y]
    looks: np.ndarray | None = None  # float64 [N, classes, 2] of each label's images: see Federation
    shared: bool = False  # true: a sample may be on several clients (never in training and in test)
    repeats: bool = False  # true: a client may hold a sample several times


@dataclass(frozen=True)
class PartitionSpec(Component, ABC):
    """Describes a partition; the fields are its parameters in YAML."""

    section: ClassVar[str] = "partition"
    name: ClassVar[str]
    family_field: ClassVar[str] = ""  # the field that a number after the name sets: dir0.1 is dir with alpha 0.1
    pools: ClassVar[bool] = False  # true: it draws from train and test split under any protocol
    fixes_test: ClassVar[bool] = False  # true: its assignment gives the training and test samples
    by_label: ClassVar[bool] = True  # true: it uses labels, which a quantity does not have

    @property
    def label(self) -> str:
        """The name with its family's number, as on the command line; part of the random key."""
        return f"{self.name}{getattr(self, self.family_field):g}" if self.family_field else self.name

    @abstractmethod
    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """The sample numbers of each client: `clients`, or `train` and `test` if the class has `fixes_test = True`.

        It may also rotate a client's images (`rotation`) or permute its labels (`label_map`).

        Raises:
            ConfigError: the parameters ask for more than the pool has.
        """


def require_clients(num_clients: int, samples: int) -> None:
    """Refuse more clients than samples."""
    if num_clients > samples:
        raise ConfigError(
            f"partition.num_clients={num_clients} is more than the {samples} samples; lower it or raise dataset.limit"
            if samples
            else "the partition divides a test split, which the data set has not; choose another partition"
        )


def require_size(num_clients: int, size: int, samples: int) -> None:
    """Refuse clients of `size` samples each that need more samples than there are."""
    if num_clients * size > samples:
        raise ConfigError(
            f"{num_clients} clients of {size} samples need {num_clients * size}, there are {samples}; "
            "lower partition.size or partition.num_clients"
        )


def require_stock(wanted: Ints, stock: Ints) -> None:
    """Refuse to hand out more samples of a class than there are; both int64 [K]."""
    lacking = wanted - stock
    label = int(np.argmax(lacking))
    if lacking[label] > 0:
        raise ConfigError(
            f"the partition needs {wanted[label]} samples of label {label}, there are {stock[label]}; "
            "lower the sizes it asks for, or raise dataset.limit"
        )


def evenly(total: int, parts: int, turn: int = 0) -> Ints:
    """`total` as `parts` numbers that differ by at most one, int64 [parts].

    The larger ones move with each `turn`, so the sums over successive turns also differ by at most one.
    """
    share, extra = divmod(total, parts)
    numbers = np.full(parts, share, dtype=np.int64)
    numbers[(turn * extra + np.arange(extra)) % parts] += 1
    return numbers


def largest(upper: int, fits: Callable[[int], bool]) -> int:
    """The largest number in [1, upper] that `fits`, given that all smaller ones do; 0 if none."""
    return bisect_right(range(1, upper + 1), 0, key=lambda number: int(not fits(number)))
