"""domain: every client sees one domain; within a domain the samples are divided at random.

pFedSim's DomainNet experiment (appendix B): six domains, 20 clients each, clients in the order of the domains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.data.partitions.base import Assignment, PartitionSpec, Pool, require_at_least
from fedbench.errors import ConfigError


@dataclass(frozen=True)
class Domain(PartitionSpec):
    """Feature shift by where the images come from."""

    name: ClassVar[str] = "domain"

    clients_per_domain: int = 20

    def __post_init__(self) -> None:
        require_at_least(self, 1, "clients_per_domain")

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """See `PartitionSpec.assign`."""
        if pool.domain is None:
            raise ConfigError("partition=domain needs a data set made of domains, such as dataset=domainnet")
        clients = []
        for domain in np.unique(pool.domain):
            members = rng.permutation(pool.index[pool.domain == domain])
            if len(members) < self.clients_per_domain:
                raise ConfigError(
                    f"domain {domain} has {len(members)} samples for {self.clients_per_domain} clients; "
                    "lower partition.clients_per_domain or raise dataset.limit"
                )
            clients += np.array_split(members, self.clients_per_domain)
        return Assignment(clients=clients)
