"""FedRoD: Chen & Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022.

Two heads share one body z. The generic head h_G minimises the balanced risk (as balanced softmax): the cross-entropy of
h_G(z) + log n_m,c, where client m has n_m,c samples of class c. The personal head h_P is added to the generic logits.
It minimises the empirical risk of h_G(z) + h_P(z) and moves neither the body nor h_G (Algorithm 1). Body and h_G are
averaged by n_m / n, and h_P stays on its client. The server's model is body + h_G. Clients are scored on h_G(z) +
h_P(z).

The paper leaves two points open, and the authors published no code. We chose: h_P starts at zero, so a new client
predicts as the server does. A class that a client lacks has log n = log 1e-8, which is finite. The variant with a
hypernetwork for h_P is left out.

Two settings follow other implementations:
- `alone`: h_P(z) predicts without h_G(z), starts from h_G's initial weights, and its risk moves the body too. FL-bench
  does so. (Its clients also train on from one another's models, because the average that they receive is not loaded.)
- `generic_stays`: h_G stays on its client as h_P does, and h_P starts as its copy. pFedGraph's code, which also
  produced FedSaC's row, does so. It draws a new h_G for each client; here all start from one.

Batch normalisation: affine parameters and running statistics below the heads are shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.schema import added
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Conformance
from fedbench.engine.method import ONE_NETWORK, Method
from fedbench.models.task import Task

ABSENT = 1e-8  # the count of a class that a client has no sample of


@dataclass(frozen=True)
class FedRoD(Method):
    """A generic head with a balanced loss, and a personal head added to it or separate.

    Server: * [...], the body, and the generic head unless generic_stays
    Memory: own/* [N, ...], the personal head; * [N, ...] if generic_stays, the generic head; log_counts [N, K]
    Message: * [...]
    Upload: * [...]
    """

    alone: bool = added(False)  # the personal head predicts alone and moves the body; false: it is added to h_G
    generic_stays: bool = added(False)  # the generic head is not averaged

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Chen & Chao, ICLR 2022"
    unfit: ClassVar[Mapping[str, str]] = {**ONE_NETWORK, "regression": "weighs classes by how frequent they are"}

    @property
    def conformance(self) -> Conformance:
        return Conformance(inert={"log_counts": "a client's samples stay the same"})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return the body and generic head on the server; own/<head leaf> and log n_m,c on client m."""
        model = task.init(generator)
        generic, body = task.split(model, ("@head",))
        copied = self.alone or self.generic_stays
        head = {name: leaf if copied else torch.zeros_like(leaf) for name, leaf in generic.items()}
        counts = population.label_counts.clamp(min=ABSENT).log().float()  # [N, K]
        stays, shared = (generic, body) if self.generic_stays else ({}, model)
        memory = trees.expand({**stays, **trees.join(own=head)}, population.clients)
        return shared, {**memory, "log_counts": counts}

    def start(self, client: Client) -> Tree:
        """Return the received model and the personal head."""
        return {**client.message, **{name: leaf for name, leaf in client.memory.items() if name != "log_counts"}}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return the balanced risk of body and h_G plus h_P's empirical risk; both move the body if `alone`."""
        task = client.task
        z = task.features(work, batch.x, train=True, mask=batch.mask)
        generic = task.head(work, z)
        own = trees.part(work, "own")
        personal = task.head(own, z) if self.alone else generic.detach() + task.head(own, z.detach())
        balanced = generic + client.memory["log_counts"]
        return task.criterion(balanced, batch) + task.criterion(personal, batch)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the received leaves (body and h_G, or the body alone); keep all others."""
        shared = {name: work[name] for name in client.message}
        kept = {name: leaf for name, leaf in work.items() if name not in shared}
        return shared, {**kept, "log_counts": client.memory["log_counts"]}

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """Return h_G(z) + h_P(z), or h_P(z)."""
        z = task.features(model, x)
        personal = task.head(trees.part(model, "own"), z)
        return personal if self.alone else task.head(model, z) + personal
