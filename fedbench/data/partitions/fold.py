"""fold<k>: clients in k groups; most of a client's samples come from its group's primary classes.

SosicFL's 2-Fold and 5-Fold (section 4.1, after Huang et al., AAAI 2021): groups of equal size, contiguous folds of
classes, 80 % primary; all clients as large. The classes within each part are as even as whole samples allow; which
samples is random. CIFAR-10 over 100 clients: 500 samples each, which uses all 50,000.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.config.domain import at_least, share
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Ints
from fedbench.data.partitions.base import (
    Assignment,
    PartitionSpec,
    Pool,
    evenly,
    largest,
    require_clients,
    require_size,
    require_stock,
)


@dataclass(frozen=True)
class Fold(PartitionSpec):
    """A fold of the classes is primary for a group of clients."""

    name: ClassVar[str] = "fold"
    family_field: ClassVar[str] = "folds"

    folds: int = at_least(2, 5)  # groups of clients, and folds of classes
    # share of a client's samples from its group's classes; SosicFL also tries 0.7
    primary: float = share(0.8)
    num_clients: int = at_least(1, 100)
    # samples a client, training and test together; null: the most that the data allow
    size: int | None = at_least(1, None)

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """See `PartitionSpec.assign`."""
        return Assignment(clients=pool.deal(self.counts(pool.stock), rng))

    def counts(self, stock: Ints) -> Ints:
        """Samples of each class for each client, int64 [N, K], given those of each class.

        Raises:
            ConfigError: fewer classes or clients than folds, or too few samples.
        """
        total = int(stock.sum())
        require_clients(self.num_clients, total)
        if self.folds > min(len(stock), self.num_clients):
            raise ConfigError(
                f"{self.label}: {len(stock)} classes and {self.num_clients} clients do not make {self.folds} folds"
            )
        if self.size is not None:
            require_size(self.num_clients, self.size, total)
            counts = self._table(self.size, len(stock))
            require_stock(counts.sum(0), stock)
            return counts
        fitting = largest(
            total // self.num_clients,
            lambda size: bool((self._table(size, len(stock)).sum(0) <= stock).all()),
        )
        if fitting == 0:
            raise ConfigError(
                f"{self.label}: the rarest class has too few samples for {self.num_clients} clients"
            )
        return self._table(fitting, len(stock))

    def _table(self, size: int, classes: int) -> Ints:
        counts = np.zeros((self.num_clients, classes), dtype=np.int64)
        own = int(self.primary * size + 0.5)
        clients = np.array_split(np.arange(self.num_clients), self.folds)
        for members, fold in zip(clients, np.array_split(np.arange(classes), self.folds), strict=True):
            others = np.setdiff1d(np.arange(classes), fold)
            for turn, client in enumerate(members):
                counts[client, fold] = evenly(own, len(fold), turn)
                counts[client, others] = evenly(size - own, len(others), turn)
        return counts
