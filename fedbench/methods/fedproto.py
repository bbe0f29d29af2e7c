"""FedProto: Tan et al., Federated Prototype Learning across Heterogeneous Clients, AAAI 2022.

Algorithm 1: prototype C_k^(j) = mean feature of client k's samples of class j; the server's C^(j) =
1/|N_j| sum_k |D_kj| / N_j C_k^(j) over the clients that have class j; the factor 1/|N_j| would shrink every prototype
and is left out, as it is in the authors' code, which averages the clients alike (`weighting: clients`).
Clients: min CE + lambda sum_j d(C_k^(j), C^(j)). As in the code, d is the mean squared error, taken sample by sample.
Inference: the class of the nearest global prototype; with `inference: head` the classifier's.
Deviation: the latest prototypes of clients that are not in the cohort count too.
Batch normalisation: statistics are the client's own, as its model is; prototypes are of evaluation mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import one_of
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client
from fedbench.methods.parts.features import ClassMeans
from fedbench.models.task import Task

ABSENT = -1e30  # score of a class without a prototype


@dataclass(frozen=True)
class FedProto(ClassMeans):
    """Own models, shared mean features.

    Server: sums [N, K, d]; counts [N, K]
    Memory: * [N, ...]
    Message: classes/means [K, d]; classes/present [K]
    Upload: sums [K, d]; counts [K]
    """

    # of a class's prototypes: by "samples" (paper) or "clients" alike (code)
    weighting: str = one_of("samples", "clients")
    inference: str = one_of("prototype", "head")  # by the nearest "prototype", or the "head"

    paper: ClassVar[str] = "Tan et al., AAAI 2022"

    def split(self, features: Tensor, logits: Tensor) -> Tensor:
        """The features."""
        return features

    def means(self, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Global prototypes, the same for all."""
        if self.weighting == "clients":
            sums, counts = sums / counts.clamp(min=1).unsqueeze(2), (counts > 0).to(counts.dtype)
        total = counts.sum(0, keepdim=True)
        return sums.sum(0, keepdim=True) / total.clamp(min=1).unsqueeze(2), total > 0

    def pull(self, values: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of the features."""
        return (values - targets).square().mean(1)

    def model(self, work: Tree, client: Client) -> Tree:
        """The client's model, and the prototypes if they decide."""
        return {**work, **client.message} if self.inference == "prototype" else work

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """Minus the squared distance from each prototype; logits as long as there are none."""
        if self.inference == "head":
            return task.apply(model, x)
        features = task.features(model, x)
        distances = (features.unsqueeze(1) - model["classes/means"]).square().sum(2)
        present = model["classes/present"]
        scores = torch.where(present, -distances, ABSENT)
        return torch.where(present.any(), scores, task.head(model, features))
