"""MOON: Li et al., Model-Contrastive Federated Learning, CVPR 2021.

Eq. 4: client k minimises F_k(w) + mu l_con. For each sample l_con (Eq. 3) = -log [ exp(s_glob / tau) / (exp(s_glob /
tau) + exp(s_prev / tau)) ]. s_glob and s_prev are the cosine similarities of the representation z(w) to those of the
received model and of the client's previous local model, which it keeps. Before the client's first round that is the
initial model, so in round 1 l_con is the constant log 2.

Deviations:
- z is the input of the classifier layer. The paper puts a two-layer projection head before it; benchmarks that compare
  models of a given shape leave it out, as the code does with `use_project_head 0`.
- In the code l_con is 0 in round 1, and a client that is first drawn later meets a random model of its own.

Batch normalisation: running statistics are shared. The two reference models use their own and move none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least, positive
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Conformance
from fedbench.methods.fedavg import FedAvg
from fedbench.models.task import Task


@dataclass(frozen=True)
class Moon(FedAvg):
    """FedAvg with a contrastive loss between the global and the client's previous representation.

    Memory: previous/* [N, ...], the last local model; private/* [N, ...] if private
    """

    mu: float = at_least(0, 1.0)  # weight of the contrastive loss
    tau: float = positive(0.5)  # temperature

    paper: ClassVar[str] = "Li et al., CVPR 2021"

    @property
    def conformance(self) -> Conformance:
        """The contrast is of features."""
        return Conformance(inert={"previous/@head": "the authors keep the whole model too"})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start as FedAvg; the first previous model is the first global one."""
        server, private = super().init(task, population, generator)
        first = trees.expand(server, population.clients)
        return server, trees.join(private=private, previous={**first, **private})

    def start(self, client: Client) -> Tree:
        """Return the received leaves beside the client's own."""
        return {**client.message, **trees.under(client.memory, "private")}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_k(w) + mu l_con."""
        task = client.task
        z = task.features(work, batch.x, train=True, mask=batch.mask)
        supervised = task.criterion(task.head(work, z), batch)
        other = [
            functional.cosine_similarity(z, task.features(model, batch.x).detach(), dim=1) / self.tau
            for model in (self.start(client), trees.part(client.memory, "previous"))
        ]
        contrast = functional.softplus(other[1] - other[0])  # -log of a two-way softmax
        return supervised + self.mu * batch.mean(contrast)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the shared leaves; keep the private ones, and all as the previous model."""
        shared, private = super().finish(work, client)
        return shared, trees.join(private=private, previous=work)
