"""FedProto: Tan et al., Federated Prototype Learning across Heterogeneous Clients, AAAI 2022.

Algorithm 1: the prototype C_k^(j) is the mean feature of client k's samples of class j. The server's prototype is the
mean over the m_j clients that have class j, weighted by their n_kj samples of it (`weighting: samples`): C^(j) = sum_k
(n_kj / n_j) C_k^(j). The text has a further factor 1 / m_j, which would shrink every prototype. Like the authors' code
we leave it out. The code's mean gives all clients equal weights (`weighting: clients`).
Clients minimise CE + lambda sum_j d(C_k^(j), C^(j)). As in the code, d is taken for each sample: the mean squared
difference between its feature and the global prototype of its class. Inference gives the class of the nearest global
prototype; with `inference: head` the classifier decides.

Deviations:
- The latest prototypes of clients that are not in the cohort count too.
- All classes compete at inference. In the code only those that the client holds do.
- Prototypes are of the trained model. The code collects features while the last epoch trains.
- Traffic counts a row for every class. The code sends the rows of a client's own classes.

Batch normalisation: statistics are the client's own, as its model is. Prototypes are computed in evaluation mode.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, one_of
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Cohort
from fedbench.engine.method import Method
from fedbench.methods.parts.features import class_sums
from fedbench.models.task import Task

ABSENT = -1e30  # score of a class without a prototype


@dataclass(frozen=True)
class ClassMeans(Method):
    """The base of FedProto and FedDistill: clients send class means of values that their models compute, and no model.

    For each class of its data client k uploads the sum and the count of a value v(x): features in FedProto, logits in
    FedDistill. It receives a mean over clients for each class and pulls v(x) of its samples towards it in local
    training. Uploaded values are computed in evaluation mode.
    """

    lam: float = at_least(0, 1.0)  # weight of the pull towards the received means

    family: ClassVar[str] = "personalised"
    unfit: ClassVar[Mapping[str, str]] = {"regression": "compares means of classes"}

    def shares(self, sizes: Tensor) -> Tensor | None:
        return None

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return frozenset({"finish"})

    # ---- what a subclass says

    @abstractmethod
    def split(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return v(x) [B, d], one of the two."""

    @abstractmethod
    def means(self, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return each client's means from all class sums [N, K, d] and counts [N, K].

        These are means [N, K, d] or [1, K, d], and a mask, bool [N, K] or [1, K], of the classes that have one.
        """

    @abstractmethod
    def pull(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return how far v(x) [B, d] is from the means of the samples' classes [B, d], [B]."""

    # ---- server

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start all clients from one model, or one of each network, without means."""
        model = task.init(generator)
        first = task.modalities[0]
        features = first.features(model, torch.zeros(1, *first.shape))
        width = self.split(features, first.head(model, features)).shape[1]
        shape = (population.clients, task.classes)
        server = {"sums": torch.zeros(*shape, width), "counts": torch.zeros(shape)}
        return server, trees.expand(model, population.clients)

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send the class means of the latest uploads of this server's clients."""
        means, present = self.means(server["sums"], server["counts"])
        rows = cohort.ids if len(means) > 1 else torch.zeros_like(cohort.ids)
        return trees.take({"classes/means": means, "classes/present": present}, rows)

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Remember each client's latest upload."""
        return trees.put(server, cohort.ids, uploads)

    # ---- client

    def start(self, client: Client) -> Tree:
        return client.memory

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return cross-entropy + lam * mean over samples of the pull, where their class has a mean."""
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

        sums, counts = class_sums(values, client.data, client.task.classes)
        return {"sums": sums, "counts": counts}, work


@dataclass(frozen=True)
class FedProto(ClassMeans):
    """Each client has its own model; clients share mean features.

    Server: sums [N, K, d]; counts [N, K]
    Memory: * [N, ...]
    Message: classes/means [K, d]; classes/present [K]
    Upload: sums [K, d]; counts [K]
    """

    # weights in a class's prototype: "samples" (paper), or "clients" equally (code)
    weighting: str = one_of("samples", "clients")
    inference: str = one_of("prototype", "head")  # prediction by the nearest "prototype", or by the "head"

    paper: ClassVar[str] = "Tan et al., AAAI 2022"

    def split(self, features: Tensor, logits: Tensor) -> Tensor:
        return features

    def means(self, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the global prototypes, the same for all."""
        if self.weighting == "clients":
            sums, counts = sums / counts.clamp(min=1).unsqueeze(2), (counts > 0).to(counts.dtype)
        total = counts.sum(0, keepdim=True)
        return sums.sum(0, keepdim=True) / total.clamp(min=1).unsqueeze(2), total > 0

    def pull(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error of the features."""
        return (values - targets).square().mean(1)

    def model(self, work: Tree, client: Client) -> Tree:
        """Return the client's model, and the prototypes if they decide."""
        return {**work, **client.message} if self.inference == "prototype" else work

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """Return minus the squared distance from each prototype; logits as long as there are none."""
        if self.inference == "head":
            return task.apply(model, x)
        features = task.features(model, x)
        distances = (features.unsqueeze(1) - model["classes/means"]).square().sum(2)
        present = model["classes/present"]
        scores = torch.where(present, -distances, ABSENT)
        return torch.where(present.any(), scores, task.head(model, features))
