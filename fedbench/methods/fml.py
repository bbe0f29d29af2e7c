"""FML: Shen et al., Federated Mutual Learning, 2020.

Client k trains a private network and a "meme", its copy of the global model. Each learns from the other (deep mutual
learning). The private network minimises alpha CE(own) + (1 - alpha) KL(meme || own), the meme beta CE(meme) +
(1 - beta) KL(own || meme). KL compares probabilities, and its first argument is held fixed. The server averages the
memes. Clients are scored by their own networks.
As in the authors' code, both networks step on each mini-batch from the same outputs, and start from different weights.
The meme has the first network of the federation, as in HtFLlib. We read only the paper's abstract.

Deviations:
- Memes are averaged by n_k / n. The code counts clients equally.
- One optimiser, and so one clipped norm, serves both networks.
- HtFLlib holds neither argument fixed, so both losses change both networks. It divides KL by the number of classes. Its
  default of alpha and beta is 1, with which the networks learn nothing from each other.

Batch normalisation: each network has its own. The meme's statistics are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import share
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client
from fedbench.engine.method import ONE_VIEW, Method
from fedbench.methods.parts.features import divergence
from fedbench.models.task import Task


@dataclass(frozen=True)
class FML(Method):
    """Private networks, and a global meme that each client trains beside its own network.

    Server: meme/* [...]
    Memory: * [N, ...]
    Message: meme/* [...]
    Upload: meme/* [...]
    """

    alpha: float = share(0.5)  # weight of the labels in the private loss; the meme has the rest
    beta: float = share(0.5)  # weight of the labels in the meme's loss; the private network has the rest

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Shen et al., 2020"
    unfit: ClassVar[Mapping[str, str]] = {**ONE_VIEW, "regression": "compares probabilities of classes"}

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return a meme on the server, and private networks with the same weights."""
        own = task.init(generator)
        return trees.join(meme=task.shared.init(generator)), trees.expand(own, population.clients)

    def start(self, client: Client) -> Tree:
        """Return both networks."""
        return {**client.message, **client.memory}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return the sum of both losses."""
        task = client.task
        own = task.apply(work, batch.x, train=True, mask=batch.mask)
        meme = task.shared.apply(trees.part(work, "meme"), batch.x, train=True, mask=batch.mask)
        total = torch.zeros(())
        for weight, logits, other in ((self.alpha, own, meme), (self.beta, meme, own)):
            learned = batch.mean(divergence(other.detach(), logits))
            total = total + weight * task.criterion(logits, batch) + (1 - weight) * learned
        return total

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the meme, keep the private network."""
        return trees.join(meme=trees.part(work, "meme")), trees.plain(work)

    def model(self, work: Tree, client: Client) -> Tree:
        """Return the private network."""
        return trees.plain(work)

    def common(self, server: Tree, task: Task) -> Tree | None:
        """Return the meme, if all clients have its network."""
        return trees.part(server, "meme") if len(task.modalities) == 1 else None
