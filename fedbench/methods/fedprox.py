"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

Eq. 2: client k minimises F_k(w) + mu/2 ||w - w^t||^2, w^t the received model.
Deviations: Algorithm 2 draws clients by p_k and averages them alike; here they are drawn alike and weighed by n_k.
Every client does the protocol's whole local work: none stops early (gamma_k^t-inexactness), as slow ones do there.
Batch normalisation: as FedAvg's; the term is over weights, statistics are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedbench.config.fields import at_least
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client
from fedbench.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term."""

    mu: float = at_least(0, 0.1)  # weight of the proximal term

    paper: ClassVar[str] = "Li et al., MLSys 2020"

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_k(w) + mu/2 ||w - w^t||^2 over the received weights (no statistics)."""
        proximal = trees.squared_distance(client.task.weights(client.message), work)
        return super().loss(work, client, batch) + self.mu / 2 * proximal
