"""domain: every client sees one domain; within a domain the samples are divided at random.

pFedSim's DomainNet experiment (appendix B): six domains, 20 clients each, clients in the order of the domains. Where a
data set has none, `angles` make some: each is a random part of the samples, turned by its angle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.config.domain import at_least, finite
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Ints
from fedbench.data.partitions.base import Assignment, PartitionSpec, Pool


@dataclass(frozen=True)
class Domain(PartitionSpec):
    """Feature shift by where the images come from."""

    name: ClassVar[str] = "domain"

    clients_per_domain: int = at_least(1, 20)
    # degrees, one a domain, for data without domains; none: the data set's own
    angles: tuple[float, ...] = finite(())

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """See `PartitionSpec.assign`."""
        domains = self._domains(pool, rng)
        clients = []
        for name, samples in domains.items():
            if len(samples) < self.clients_per_domain:
                raise ConfigError(
                    f"domain {name} has {len(samples)} samples for {self.clients_per_domain} clients; "
                    "lower partition.clients_per_domain or raise dataset.limit"
                )
            clients += np.array_split(samples, self.clients_per_domain)
        rotation = np.repeat(np.array(self.angles, dtype=np.float64), self.clients_per_domain)
        return Assignment(clients=clients, rotation=rotation if self.angles else None)

    def _domains(self, pool: Pool, rng: np.random.Generator) -> dict[int, Ints]:
        """The samples of each domain, in random order."""
        if self.angles:
            parts = np.array_split(rng.permutation(pool.index), len(self.angles))
            return dict(enumerate(parts))
        if pool.domain is None:
            raise ConfigError(
                "partition=domain needs a data set made of domains, such as dataset=domainnet, or partition.angles"
            )
        return {
            int(name): rng.permutation(pool.index[pool.domain == name]) for name in np.unique(pool.domain)
        }
