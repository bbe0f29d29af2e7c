"""Oracle: coalitions given beforehand, and any method inside each; what a clustered method that finds them can reach.

If the coalitions are the partition's own types of clients, this is the usual upper bound of clustered federated
learning. With other coalitions it is the result of a method that finds those. If the method inside is a clustered one,
it first groups all clients, across these coalitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from fedbench.config.fields import at_least
from fedbench.core.batch import Population
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Preparation
from fedbench.methods.parts.clustered import Coalitions, default_base, server_of, server_of_groups
from fedbench.models.task import Task


@dataclass(frozen=True)
class Oracle(Coalitions):
    """The user gives the coalition of each client.

    Server: coalition [N]; base/** [M, ...], the base servers
    Memory: ** [N, ...] if the base has any
    Message: **, the base's
    Upload: **, the base's
    """

    base: Any = field(default_factory=default_base)  # the method inside
    # coalition number of each client, in the clients' order; (): all clients are in one
    coalition: tuple[int, ...] = at_least(0, ())

    paper: ClassVar[str] = "-"

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start with one coalition of all.

        Raises:
            ConfigError: `coalition` has not one number a client.
        """
        if self.coalition and len(self.coalition) != population.clients:
            raise ConfigError(
                f"method.coalition must give the coalition of each of {population.clients} clients, it has "
                f"{len(self.coalition)} numbers"
            )
        return super().init(task, population, generator)

    def group(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Give each coalition a copy of the base server."""
        groups = self.coalition or (0,) * preparation.population.clients
        base, memory = self.inner.prepare(preparation, server_of(server, 0), memory)
        coalition = np.unique(groups, return_inverse=True)[1].astype(np.int64)
        preparation.keep("coalition", coalition)
        return server_of_groups(base, coalition, int(coalition.max()) + 1), memory
