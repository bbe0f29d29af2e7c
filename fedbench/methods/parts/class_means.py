"""Base of methods in which no model crosses the network, only class means of what the clients' models compute.

Client k uploads sums and counts of a value v(x) for each class of its data (features: FedProto, logits: FedDistill),
and receives for each class a mean over clients, to which it pulls v(x) of its samples in local training.
Batch normalisation: each client's model is its own, statistics included; v is computed in evaluation mode for upload.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Cohort
from fedbench.engine.method import Method
from fedbench.methods.parts import passes
from fedbench.models.task import Task


@dataclass(frozen=True)
class ClassMeans(Method):
    """Clients with models of their own share class means."""

    lam: float = at_least(0, 1.0)  # weight of the pull towards the received means

    family: ClassVar[str] = "personalised"

    @property
    def averages(self) -> bool:
        """No model crosses."""
        return False

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """The means are over all training samples."""
        return frozenset({"finish"})

    # ---- what a subclass says

    @abstractmethod
    def split(self, features: Tensor, logits: Tensor) -> Tensor:
        """v(x) [B, d], one of the two."""

    @abstractmethod
    def means(self, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """What each client receives from all class sums [N, K, d] and counts [N, K].

        Returns means [N, K, d] or [1, K, d], and as bool [N, K] or [1, K] for which classes there is one.
        """

    @abstractmethod
    def pull(self, values: Tensor, targets: Tensor) -> Tensor:
        """How far v(x) [B, d] is from the means of the samples' classes [B, d], [B]."""

    # ---- server

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """No means yet; all clients start from one model."""
        model = task.init(generator)
        features = task.features(model, torch.zeros(1, *task.shape))
        width = self.split(features, task.head(model, features)).shape[1]
        shape = (population.clients, task.classes)
        server = {"sums": torch.zeros(*shape, width), "counts": torch.zeros(shape)}
        return server, trees.expand(model, population.clients)

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """The class means of the latest uploads of this server's clients."""
        means, present = self.means(server["sums"], server["counts"])
        rows = cohort.ids if len(means) > 1 else torch.zeros_like(cohort.ids)
        return trees.take({"classes/means": means, "classes/present": present}, rows)

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Remember each client's latest upload."""
        return trees.put(server, cohort.ids, uploads)

    # ---- client

    def start(self, client: Client) -> Tree:
        """The client's own model."""
        return client.memory

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Cross-entropy + lam * mean over samples of the pull, where their class has a mean."""
        task = client.task
        features = task.features(work, batch.x, train=True, mask=batch.mask)
        logits = task.head(work, features)
        targets = client.message["classes/means"][batch.y]
        known = client.message["classes/present"][batch.y]
        pull = torch.where(known, self.pull(self.split(features, logits), targets), 0.0)
        return task.criterion(logits, batch) + self.lam * batch.mean(pull)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload class sums and counts, keep the model."""

        def values(block: Batch) -> Tensor:
            features = client.task.features(work, block.x)
            return self.split(features, client.task.head(work, features))

        sums, counts = passes.class_sums(values, client.data, client.task.classes)
        return {"sums": sums, "counts": counts}, work
