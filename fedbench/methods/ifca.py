"""IFCA: Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020.

Algorithm 1 (model averaging): the server sends all k models. Client i takes the one with the least loss on its training
data, argmin_j F_i(theta_j), trains it and returns it with j. The server averages the models returned under each j. The
models start from independent draws. A client that no round met takes its model in the same way.
FedCollab's comparison does not state k. The default is its number of client types, 4; its Table 2 has the validated 3.

Deviations:
- Averages are weighted by size, as in FedAvg.
- A client is scored by the model that it would take now. The code for CIFAR chooses it by the test loss.
- The models are drawn once. That code draws them again until 10 % of the clients or more choose each (35 % with k = 2).
- The paper's gradient averaging, and layers that all k models share (its FEMNIST), are not here.

Batch normalisation: each of the k models has its own statistics. Losses are compared in evaluation mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Cohort
from fedbench.engine.method import Method
from fedbench.methods.parts import features
from fedbench.models.task import Task


@dataclass(frozen=True)
class IFCA(Method):
    """k models; each client trains the one that fits its data best.

    Server: * [k, ...]
    Memory: nothing
    Message: * [k, ...]
    Upload: * [...]; choice []
    """

    k: int = at_least(1, 4)  # number of models

    family: ClassVar[str] = "clustered"
    paper: ClassVar[str] = "Ghosh et al., NeurIPS 2020"

    def shares(self, sizes: Tensor) -> Tensor | None:
        """A model is an average of those clients' that chose it."""
        return None

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return frozenset({"start", "personal"})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return the models [k, ...]."""
        return trees.stack([task.init(generator) for _ in range(self.k)]), {}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Average the models returned under each j; a model that no client took stays."""
        models, choice = _model(uploads), uploads["choice"].cpu()
        taken = choice.unique()
        shares = (taken.unsqueeze(1) == choice) * cohort.sizes  # [models taken, C]
        return trees.put(server, taken, trees.mix(shares / shares.sum(1, keepdim=True), models))

    def common(self, server: Tree, task: Task) -> Tree | None:
        """Return the model, if there is one only."""
        return trees.row(server, 0) if self.k == 1 else None

    def start(self, client: Client) -> Tree:
        """Return the model with the least training loss, and which it is."""
        losses = [features.mean_loss(trees.row(client.message, j), client.data, client.task) for j in range(self.k)]
        choice = torch.stack(losses).argmin()
        rows = trees.map_leaves(lambda leaf: leaf.index_select(0, choice.view(1))[0], client.message)
        return {**rows, "choice": choice}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the trained model and its number."""
        return work, {}

    def model(self, work: Tree, client: Client) -> Tree:
        """Return the chosen model."""
        return _model(work)


def _model(tree: Tree) -> Tree:
    return {key: leaf for key, leaf in tree.items() if key != "choice"}
