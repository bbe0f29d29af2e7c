"""groups_s<s>: five groups of clients with dominant labels; a fraction s of each client's samples is IID.

FedReMa (section 5.1; code: 20 clients, consecutive blocks of 4 a group): dominant labels [0,1,2] [2,3,4] [4,5,6]
[6,7,8] [8,9,0], so neighbouring groups share one; a client has 600 samples (Table 1) or 100 (Table 2), split 4:1 by
the protocol. With K classes, group g's labels are the K // 5 + 1 from g K / 5 on, modulo K. The labels within the IID
and the dominant part are as even as whole samples allow; which samples is random.
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
)


@dataclass(frozen=True)
class Groups(PartitionSpec):
    """Dominant labels a group, and an IID share."""

    name: ClassVar[str] = "groups_s"
    family_field: ClassVar[str] = "s"

    # share of a client's samples spread over all classes; the rest is of its dominant labels
    s: float = share(0.2)
    num_clients: int = at_least(1, 20)
    groups: int = at_least(1, 5)
    size: int = at_least(1, 600)  # samples a client, training and test together; Table 2 of FedReMa: 100

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """See `PartitionSpec.assign`."""
        return Assignment(clients=pool.deal(self.counts(pool.stock), rng))

    def counts(self, stock: Ints) -> Ints:
        """Samples of each class for each client, int64 [N, K], given those of each class.

        Raises:
            ConfigError: fewer classes or clients than groups, or too few samples.
        """
        require_clients(self.num_clients, int(stock.sum()))
        if self.groups > min(len(stock), self.num_clients):
            raise ConfigError(
                f"{self.label}: {len(stock)} classes and {self.num_clients} clients do not make {self.groups} groups"
            )
        most = min(self.size, int(stock.sum()))
        counts = self._table(most, len(stock))
        if most == self.size and (counts.sum(0) <= stock).all():
            return counts
        fitting = largest(most, lambda size: bool((self._table(size, len(stock)).sum(0) <= stock).all()))
        raise ConfigError(
            f"{self.label}: {self.num_clients} clients of {self.size} samples are more than the data set has of "
            f"some label; set partition.size to at most {fitting}, or lower partition.num_clients"
        )

    def dominant(self, group: int, classes: int) -> Ints:
        """The dominant labels of a group."""
        start, width = group * classes // self.groups, min(classes, classes // self.groups + 1)
        return (start + np.arange(width)) % classes

    def _table(self, size: int, classes: int) -> Ints:
        counts = np.zeros((self.num_clients, classes), dtype=np.int64)
        iid = int(self.s * size + 0.5)
        for group, members in enumerate(np.array_split(np.arange(self.num_clients), self.groups)):
            labels = self.dominant(group, classes)
            for turn, client in enumerate(members):
                counts[client] = evenly(iid, classes, turn=int(client))
                counts[client, labels] += evenly(size - iid, len(labels), turn)
        return counts
