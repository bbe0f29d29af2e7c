"""quantity<beta>: clients differ only in size, drawn from Dirichlet(beta); their samples are IID.

The quantity skew of Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022 (section IV-C).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.config.domain import at_least
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Ints
from fedbench.data.partitions.base import Assignment, PartitionSpec, Pool, require_clients
from fedbench.data.partitions.dirichlet import SMALLEST_ALPHA, dirichlet

BATCH = 2000  # draws at once


@dataclass(frozen=True)
class Quantity(PartitionSpec):
    """Shuffle, then cut into parts of random size."""

    name: ClassVar[str] = "quantity"
    family_field: ClassVar[str] = "beta"

    beta: float = at_least(SMALLEST_ALPHA, 0.5)  # small: one client has nearly everything; large: equal sizes
    num_clients: int = at_least(1, 10)
    min_size: int = at_least(1, 10)  # smallest client, training and test samples together
    max_tries: int = at_least(1, 2000)  # draws before giving up

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """See `PartitionSpec.assign`."""
        sizes = self.sizes(len(pool), rng)
        return Assignment(clients=np.split(rng.permutation(pool.index), np.cumsum(sizes)[:-1]))

    def sizes(self, samples: int, rng: np.random.Generator) -> Ints:
        """Samples of each client, int64 [N], given how many there are.

        Raises:
            ConfigError: no draw out of `max_tries` gives every client `min_size` samples.
        """
        require_clients(self.num_clients, samples)
        for done in range(0, self.max_tries, BATCH):
            tries = min(BATCH, self.max_tries - done)
            shares = dirichlet(self.beta, (tries, self.num_clients), rng)
            cuts = np.floor(np.cumsum(shares, 1) * samples).astype(np.int64)
            cuts[:, -1] = samples  # the cumulative sum may end a rounding error below 1
            sizes = np.diff(cuts, axis=1, prepend=0)
            good = np.flatnonzero(sizes.min(1) >= self.min_size)
            if len(good):
                first: Ints = sizes[good[0]]
                return first
        raise ConfigError(
            f"{self.label}: none of {self.max_tries} draws gave each of {self.num_clients} clients "
            f"{self.min_size} of {samples} samples; raise partition.beta, or lower partition.min_size or "
            "partition.num_clients"
        )
