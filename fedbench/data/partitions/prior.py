"""dir_prior<beta>: every client has as many samples, its labels drawn from its own Dirichlet(beta) prior.

SosicFL (section 4.1, after Yurochkin et al., ICML 2019, and Gao et al., CVPR 2022): phi_k ~ Dir(beta) over labels,
client k's labels ~ Multinomial(phi_k). Samples are drawn without replacement: when a class runs out, those who still
want it draw again from their prior over the classes that are left. Every pass but the last uses up a class, so the draw
is finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.config.domain import at_least
from fedbench.data.dataset import Ints
from fedbench.data.partitions.base import Assignment, PartitionSpec, Pool, require_clients, require_size
from fedbench.data.partitions.dirichlet import SMALLEST_ALPHA, dirichlet


@dataclass(frozen=True)
class DirichletPrior(PartitionSpec):
    """Dirichlet over labels, for each client; equal sizes."""

    name: ClassVar[str] = "dir_prior"
    family_field: ClassVar[str] = "beta"

    beta: float = at_least(SMALLEST_ALPHA, 0.3)  # small: a client has few classes; large: close to homo
    num_clients: int = at_least(1, 100)
    # samples a client, training and test together; null: all there are, divided
    size: int | None = at_least(1, None)

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """See `PartitionSpec.assign`."""
        counts = self.counts(pool.stock, rng)
        return Assignment(clients=pool.deal(counts, rng))

    def counts(self, stock: Ints, rng: np.random.Generator) -> Ints:
        """Samples of each class for each client, int64 [N, K], given those of each class.

        Raises:
            ConfigError: there are fewer samples than the clients need.
        """
        require_clients(self.num_clients, int(stock.sum()))
        size = self.size or int(stock.sum()) // self.num_clients
        require_size(self.num_clients, size, int(stock.sum()))
        priors = dirichlet(self.beta, (self.num_clients, len(stock)), rng)
        counts = np.zeros((self.num_clients, len(stock)), dtype=np.int64)
        while (counts.sum(1) < size).any():
            left = stock - counts.sum(0)
            shares = priors * (left > 0)
            lost = shares.sum(1) == 0  # nothing is left of what the prior allows
            shares[lost] = left
            asked = rng.multinomial(size - counts.sum(1), shares / shares.sum(1, keepdims=True))
            for label in np.flatnonzero(asked.sum(0) > left):
                asked[:, label] = rng.multivariate_hypergeometric(
                    asked[:, label], left[label], method="marginals"
                )
            counts += asked
        return counts
