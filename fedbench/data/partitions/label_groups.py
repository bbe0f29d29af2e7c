"""label_groups: each client holds a run of labels, and shares each of them evenly with the others that hold it.

pFedSim's measurement study (section 4.1, Table 2): four clients i, i', j and k with CIFAR-10's labels 0-4, 0-4, 2-6
and 5-9. The paper does not say how a label is divided; even parts give data similarities of 1, 1/2, 1/3 and 0 where
it prints 1, .53, .32 and 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.config.domain import at_least
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Ints
from fedbench.data.partitions.base import Assignment, PartitionSpec, Pool, evenly


@dataclass(frozen=True)
class LabelGroups(PartitionSpec):
    """A run of labels a client."""

    name: ClassVar[str] = "label_groups"

    starts: tuple[int, ...] = at_least(0, (0, 0, 2, 5))  # the first label of each client
    width: int = at_least(1, 5)  # labels a client; past the last label they go on at 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.starts:
            raise ConfigError("partition.starts must list the first label of at least one client")

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """See `PartitionSpec.assign`."""
        return Assignment(clients=pool.deal(self.counts(pool.stock), rng))

    def counts(self, stock: Ints) -> Ints:
        """Samples of each class for each client, int64 [N, K], given those of each class.

        Raises:
            ConfigError: fewer classes than labels a client, or than a client's first label.
        """
        classes = len(stock)
        if max(self.width, max(self.starts) + 1) > classes:
            raise ConfigError(
                f"{self.label}: runs of {self.width} labels that start at {list(self.starts)} need more than the "
                f"{classes} classes of the data set; lower partition.width or partition.starts"
            )
        owned = (np.arange(classes) - np.array(self.starts)[:, np.newaxis]) % classes < self.width  # [N, K]
        counts = np.zeros(owned.shape, dtype=np.int64)
        for label, holders in enumerate(owned.T):
            if holders.any():
                counts[holders, label] = evenly(int(stock[label]), int(holders.sum()), turn=label)
        return counts
