"""Ditto: Li et al., Fair and Robust Federated Learning Through Personalization, ICML 2021.

Algorithm 1: client k takes part in FedAvg, which trains the global model w. It also keeps a personal model v_k and
minimises h_k(v_k; w^t) = F_k(v_k) + lambda/2 ||v_k - w^t||^2 (Eq. Ditto). v_k is scored.

Deviations:
- v_k takes the protocol's local steps, with its optimiser, on the same mini-batches as w; `personal_epochs` sets
  another number of epochs. The paper takes s plain gradient steps.
- Averages are weighted by samples, as in Ye et al.'s code. The paper and its authors' code count clients equally.

Batch normalisation: w and v_k have their own running statistics. Those of w are averaged and those of v_k stay on the
client. lambda's term includes neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.method import Method
from fedbench.models.task import Task


@dataclass(frozen=True)
class Ditto(Method):
    """A global model by FedAvg, and a personal one pulled towards it.

    Server: * [...], w
    Memory: personal/* [N, ...], v_k
    Message: * [...], w
    Upload: * [...], w
    """

    lam: float = at_least(0, 1.0)  # lambda, strength of the pull
    personal_epochs: int | None = at_least(0, None)  # epochs on v_k; null: as many as on w

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Li et al., ICML 2021"

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start w and every v_k from the same model."""
        model = task.init(generator)
        return model, trees.join(personal=trees.expand(model, population.clients))

    def start(self, client: Client) -> Tree:
        """Return both models: shared/* and personal/*."""
        return {**trees.join(shared=client.message), **client.memory}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train w as FedAvg does, then v_k on the same mini-batches."""
        return (
            Stage(self.loss, moves=("shared/*",)),
            Stage(self.personal_loss, moves=("personal/*",), epochs=self.personal_epochs),
        )

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_k(w)."""
        return client.task.loss(trees.part(work, "shared"), batch)

    def personal_loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_k(v_k) + lambda/2 ||v_k - w^t||^2 with w^t as received."""
        personal = trees.part(work, "personal")
        pull = trees.squared_distance(client.task.weights(client.message), personal)
        return client.task.loss(personal, batch) + self.lam / 2 * pull

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload w, keep v_k."""
        return trees.part(work, "shared"), trees.join(personal=trees.part(work, "personal"))

    def model(self, work: Tree, client: Client) -> Tree:
        """Return v_k."""
        return trees.part(work, "personal")

    def common(self, server: Tree, task: Task) -> Tree | None:
        return server
