"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

Eq. 2: client k minimises F_k(w) + mu/2 ||w - w^t||^2, where w^t is the received model.

Deviations:
- Clients are drawn uniformly and weighted by n_k. Algorithm 2 draws them by p_k and averages them equally.
- All clients do the same local work, unless `protocol.work.partial` lets some stop early. In the paper slow clients do
  (gamma_k^t-inexactness).

Batch normalisation: as in FedAvg. The proximal term includes weights and no statistics.
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
