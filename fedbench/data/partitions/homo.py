"""homo: every client holds a random sample of the same size (up to one); the IID reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.config.domain import at_least
from fedbench.data.partitions.base import Assignment, PartitionSpec, Pool, require_clients


@dataclass(frozen=True)
class Homogeneous(PartitionSpec):
    """Shuffle, then cut into equal parts."""

    name: ClassVar[str] = "homo"

    num_clients: int = at_least(1, 10)

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """See `PartitionSpec.assign`."""
        require_clients(self.num_clients, len(pool))
        return Assignment(clients=np.array_split(rng.permutation(pool.index), self.num_clients))
