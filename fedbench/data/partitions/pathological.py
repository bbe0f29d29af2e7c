"""pathological<k>: every client holds k classes (McMahan et al. 2017, as FedSaC and pFedGraph divide them).

The classes form K / k blocks; client i holds block i mod (K / k), shared evenly with the other clients of that block.
FedSaC: 2 classes of CIFAR-10, 20 of CIFAR-100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.config.domain import at_least
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Ints
from fedbench.data.partitions.base import (
    Assignment,
    PartitionSpec,
    Pool,
    evenly,
    require_clients,
)


@dataclass(frozen=True)
class Pathological(PartitionSpec):
    """A block of classes a client."""

    name: ClassVar[str] = "pathological"
    family_field: ClassVar[str] = "skew"

    skew: int = at_least(1, 2)  # classes a client; divides the number of classes
    num_clients: int = at_least(1, 10)

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """See `PartitionSpec.assign`."""
        return Assignment(clients=pool.deal(self.counts(pool.stock), rng))

    def counts(self, stock: Ints) -> Ints:
        """Samples of each class for each client, int64 [N, K], given those of each class.

        Raises:
            ConfigError: `skew` does not divide the classes, there are too few clients to hold all of them, or too few
                samples of a class for those that hold it.
        """
        classes, clients = len(stock), self.num_clients
        require_clients(clients, int(stock.sum()))
        if classes % self.skew:
            divisors = ", ".join(str(k) for k in range(1, classes + 1) if classes % k == 0)
            reason = "are fewer" if self.skew > classes else f"do not divide into blocks of {self.skew}"
            raise ConfigError(
                f"{self.label} gives each client {self.skew} classes, the {classes} classes of the data set {reason}; "
                f"set partition.skew to one of {divisors}"
            )
        blocks = classes // self.skew
        if clients < blocks:
            raise ConfigError(
                f"{self.label}: {clients} clients of {self.skew} classes leave out some of {classes} classes; "
                f"set partition.num_clients to at least {blocks}, or raise partition.skew"
            )
        counts = np.zeros((clients, classes), dtype=np.int64)
        for label, number in enumerate(stock):
            holders = np.arange(label // self.skew, clients, blocks)
            if number < len(holders):
                raise ConfigError(
                    f"{self.label}: {len(holders)} clients share the {number} samples of class {label}, so some would "
                    "have none of it; lower partition.num_clients or raise dataset.limit"
                )
            counts[holders, label] = evenly(int(number), len(holders), turn=label)
        return counts
