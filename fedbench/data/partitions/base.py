"""What a partition sees and what it decides: candidate samples in, samples of each client out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.data.dataset import Ints
from fedbench.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Pool:
    """The samples that a partition may hand out."""

    index: Ints  # [m] sample numbers in the data set
    labels: Ints  # [m]
    classes: int
    domain: Ints | None = None  # [m]

    def __len__(self) -> int:
        return len(self.index)

    def by_class(self, rng: np.random.Generator) -> list[Ints]:
        """For each class the indices of its samples, in random order."""
        return [rng.permutation(self.index[self.labels == label]) for label in range(self.classes)]


@dataclass(frozen=True, eq=False)
class Assignment:
    """The samples of each client, and what happens to them.

    Give either `clients`, to be split into train and test as the protocol says, or `train` and `test`.
    """

    clients: list[Ints] | None = None
    train: list[Ints] | None = None
    test: list[Ints] | None = None
    rotation: np.ndarray | None = None  # float64 [N], degrees by which a client's images are turned
    label_map: Ints | None = None  # [N, classes]: a client sees label y as label_map[client, y]


@dataclass(frozen=True)
class PartitionSpec(ABC):
    """Describes a partition; the fields are its parameters in YAML."""

    name: ClassVar[str]
    family_field: ClassVar[str] = (
        ""  # the field that a number behind the name sets: dir0.1 is dir with alpha 0.1
    )
    pools: ClassVar[bool] = False  # always draws from train and test split, whatever the protocol says
    fixes_test: ClassVar[bool] = False  # its assignment says what is train and what is test

    @property
    def label(self) -> str:
        """The name with its family's number, as on the command line; part of the random key."""
        return f"{self.name}{getattr(self, self.family_field):g}" if self.family_field else self.name

    @abstractmethod
    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """Hand out samples of `pool`.

        Raises:
            ConfigError: the parameters ask for more than the pool has.
        """


def require_clients(num_clients: int, samples: int) -> None:
    """Refuse fewer than one client, and more clients than samples."""
    if num_clients < 1:
        raise ConfigError(f"partition.num_clients must be at least 1, got {num_clients}")
    if num_clients > samples:
        raise ConfigError(
            f"partition.num_clients={num_clients} is more than the {samples} samples; "
            "lower it or raise dataset.limit"
        )
