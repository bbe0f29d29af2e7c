"""FeSEM: Long et al., Multi-Center Federated Learning: Clients Clustering for Better Personalization, WWW J. 2022.

Stochastic EM on sum_i sum_k r_ik ||W_i - V_k||^2 with assignments r and centres V. A client belongs to the centre
nearest to its model W_i (E step). A centre is the mean of its clients' models (M step). Clients continue to train from
their centre.

Centres start from random draws (`drawn`), and so does the first assignment. If all weights of the centres are drawn,
centres are farther apart than training moves a model. A client's model then stays nearest to the centre that it trains
from, and no client moves. (Of a pretrained model only the head is drawn.) Centres that start equal (`drawn` false) work
better, but are not the paper's. Their clusters start at random, or by k-means of the models that `pretrain_rounds` of
training alone give. FedCollab's comparison does not state k; we chose k = 4.

Deviations:
- Means are weighted by size, as in FedAvg.
- A round's clients are first averaged and then assigned anew, so that all centres may start from the initial weights. A
  client is thus assigned by centres that already contain its own model of the round. It moves later than in the paper,
  and a client that outweighs the others of its cluster hardly ever moves.
- The paper has no rule for a client that no round met. Ours is an E step with W_i trained from each centre in turn: the
  client takes the centre to which its model stays nearest, argmin_k ||W_ik - V_k||.

Batch normalisation: statistics do not count in distances. Within a cluster they are shared and averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, selectors
from fedbench.config.schema import added
from fedbench.core import rng, trees
from fedbench.core.batch import Population
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Cohort, Conformance, Preparation
from fedbench.engine.method import Method
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.parts import clustered
from fedbench.methods.parts.clustered import Coalitions, server_of, server_of_groups
from fedbench.models.task import Task


@dataclass(frozen=True)
class FeSEM(Coalitions):
    """Clients move to the centre that is nearest to their model; FedAvg's rounds move the centres.

    Server: coalition [N]; base/* [k, ...]
    Memory: nothing
    Message: * [...]
    Upload: * [...]
    """

    k: int = at_least(1, 4)  # number of centres

    # rounds that each client trains alone before the first assignment; 0: it is random
    pretrain_rounds: int = at_least(0, 1)
    # weights that the distances compare, see Task.select
    compared: tuple[str, ...] = added(selectors(("*",), among="weights"))
    drawn: bool = added(False)  # true: each centre has its own random weights; needs a random first assignment

    paper: ClassVar[str] = "Long et al., WWW Journal 2022"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drawn and self.pretrain_rounds:
            raise ConfigError("method.drawn needs method.pretrain_rounds=0: trained centres would start equal")

    @property
    def inner(self) -> Method:
        return FedAvg()

    @property
    def conformance(self) -> Conformance:
        return Conformance(draws_by_position="the first assignment is drawn in order")

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start with one centre, from which all will start, or k of them."""
        server, memory = super().init(task, population, generator)
        if self.drawn:
            others = [self.inner.init(task, population, generator)[0] for _ in range(self.k - 1)]
            server |= trees.join(base=trees.stack([server_of(server, 0), *others]))
        return server, memory

    def group(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Group as KMeans, or draw a cluster for every client."""
        if self.pretrain_rounds:
            message = self.send(server, preparation.everyone)
            coalition = clustered.cluster_local_models(
                preparation, message, memory, self.k, self.pretrain_rounds, self.compared
            )
            return server_of_groups(server_of(server, 0), coalition, self.k), memory
        generator = rng.numpy_rng(preparation.seed, "centres")
        coalition = generator.integers(self.k, size=preparation.population.clients)
        preparation.keep("coalition", coalition)
        if self.drawn:
            centres = clustered.weight_vectors(trees.part(server, "base"), preparation.task, self.compared)
            distances = clustered.distances(centres.cpu().numpy())
            preparation.keep("distances", distances[coalition][:, coalition])  # of two clients' centres
            return {**server, "coalition": torch.from_numpy(coalition)}, memory
        return server_of_groups(server_of(server, 0), coalition, self.k), memory

    def place(self, preparation: Preparation, server: Tree, memory: Tree) -> Tensor:
        """Return the centre to which each client's model stays nearest when it trains from it."""
        return clustered.least_moved(preparation, server, memory, self.compared)

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Update centres by the cohort's models (M step), then the cohort's assignment to centres (E step)."""
        server = super().aggregate(server, uploads, cohort)
        models, centres = (
            clustered.weight_vectors(each, cohort.task, self.compared) for each in (uploads, trees.part(server, "base"))
        )
        nearest = torch.cdist(models, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
        coalition = server["coalition"].clone()
        coalition[sent(cohort.ids, coalition.device)] = nearest.to(coalition.device)
        return {**server, "coalition": coalition}
