"""kNN-Per: Marfoq et al., Personalized Federated Learning through Local Memorization, ICML 2022.

The model is FedAvg's. Each client keeps the features z of its training samples and their labels. It predicts lambda
h_knn(x) + (1 - lambda) softmax(logits(x)). The class probabilities h_knn are the normalised weights exp(-d(z, z_j)) of
the k nearest samples. As in the authors' code, d is the squared distance over (width of z) * scale.
In pFedGraph's code (`votes: softmax`), which also produced FedSaC's row, d is the squared distance itself and h_knn the
softmax of the weights' sums by class. These sums are at most k and often near 0, so that h_knn is close to uniform.
Both terms are probabilities. No message but FedAvg's model crosses the network.
Deviation: lambda is one constant. In the paper each client has its own. The code chooses none: it scores a grid of
lambdas for all clients.
Batch normalisation: parameters and statistics are shared and averaged. Features use the running statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least, one_of, positive, share
from fedbench.config.schema import added
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.parts.features import blocks
from fedbench.models.task import Task


@dataclass(frozen=True)
class KNNPer(FedAvg):
    """FedAvg's prediction, interpolated with the nearest neighbours among a client's own samples."""

    k: int = at_least(1, 10)  # number of neighbours
    weight: float = share(0.5)  # lambda, weight of the neighbours against the model
    scale: float = positive(1.0)  # width of their kernel
    # h_knn: "shares" of the weights, or the "softmax" of their sums by class, without a scale (pFedGraph's code)
    votes: str = added(one_of("shares", "softmax"))

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Marfoq et al., ICML 2022"
    unfit: ClassVar[Mapping[str, str]] = {"regression": "lets neighbours vote for classes"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.votes == "softmax" and self.scale != 1:
            raise ConfigError(f"method.scale={self.scale} needs votes=shares; leave it out, or set that")

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """Return the hooks that make a personal model, of which each reads the memorised samples."""
        return frozenset({"personal", "model"})

    def model(self, work: Tree, client: Client) -> Tree:
        """Return the model and the datastore: features [n, d], labels one-hot [n, K], and which rows are real [n]."""
        task, data = client.task, client.data
        features = torch.cat([task.features(work, block.x) for block in blocks(data)])
        labels = functional.one_hot(data.y, task.classes).to(features.dtype)
        real = torch.ones_like(data.y, dtype=torch.bool) if data.mask is None else data.mask
        return {**work, **trees.join(store={"z": features, "y": labels, "real": real})}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        return client.task.loss(work, batch)

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """Return the interpolated probabilities [B, K]."""
        store, model = trees.part(model, "store"), trees.plain(model)
        z = task.features(model, x)
        own = task.head(model, z).softmax(1)
        lengths = z.square().sum(1).unsqueeze(1) + store["z"].square().sum(1)
        squared = (lengths - 2 * z @ store["z"].t()).clamp(min=0)  # [B, n]
        shares = self.votes == "shares"
        nearness = (-squared / (z.shape[1] * self.scale if shares else 1)).masked_fill(~store["real"], -torch.inf)
        nearest = nearness.topk(min(self.k, nearness.shape[1]), dim=1)
        weights = nearest.values.softmax(1) if shares else nearest.values.exp()
        votes = (weights.unsqueeze(2) * store["y"][nearest.indices]).sum(1)
        return self.weight * (votes if shares else votes.softmax(1)) + (1 - self.weight) * own
