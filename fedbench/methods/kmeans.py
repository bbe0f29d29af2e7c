"""KMeans: Ghosh et al., Robust Federated Learning in a Heterogeneous Environment, arXiv 1906.06629, 2019.

Every client minimises its own loss and sends the minimiser; the server groups these by k-means; then each group learns
by itself. A minimiser here is what `pretrain_rounds` rounds of local work make of the initial weights.
Not given by FedCollab's comparison, and chosen: k = 4, its true number of client types, ten rounds.
All weights count in distances; `compared` selects some.
Deviations: no defence against adversaries (the paper's third stage); a group runs FedAvg, from the initial weights; the
best of several starts of k-means counts (parts/clustered.py).
Batch normalisation: statistics do not count in distances; within a group they are shared and averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbench.config.fields import at_least, selectors
from fedbench.config.schema import added
from fedbench.core.trees import Tree
from fedbench.engine.contract import Preparation
from fedbench.engine.method import Method
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.parts.clustered import Coalitions, cluster_local_models, server_of, server_of_groups


@dataclass(frozen=True)
class KMeans(Coalitions):
    """Clients grouped once by where training alone leads them, FedAvg in each group.

    Server: coalition [N]; base/* [k, ...]
    Memory: nothing
    Message: * [...]
    Upload: * [...]
    """

    k: int = at_least(1, 4)  # groups
    pretrain_rounds: int = at_least(1, 10)  # rounds each client trains alone before it is grouped
    # weights that distances are over, see Task.select
    compared: tuple[str, ...] = added(selectors(("*",), among="weights"))

    paper: ClassVar[str] = "Ghosh et al., arXiv 1906.06629, 2019"

    @property
    def inner(self) -> Method:
        return FedAvg()

    def prepare(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Train every client alone, group the results; all groups start from the initial weights."""
        message = self.send(server, preparation.everyone)
        coalition = cluster_local_models(preparation, message, memory, self.k, self.pretrain_rounds, self.compared)
        return server_of_groups(server_of(server, 0), coalition, self.k), memory
