"""FedDyn: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.

Algorithm 1, client k: minimise L_k(w) - <g_k, w> + alpha/2 ||w - w^t||^2 (Eq. 1), then g_k -= alpha (w_k - w^t).
Server: h -= alpha/N sum_S (w_k - w^t), w^{t+1} = mean_S w_k - h / alpha. The states are stored divided by alpha:
lambda_k = g_k / alpha on client k, and `drift` = -h / alpha = sum over rounds of 1/N sum_S (w_k - w^t) on the server.
The paper averages clients uniformly and so minimises the unweighted mean of their losses. `weighted` follows the code's
alpha_k = alpha mean(n) / n_k, which minimises the mean weighted by samples. It makes the terms of small clients stiff.
The server's model w^{t+1} is scored. The code sends it too, but scores mean_S w_k and the mean of all clients' last
models.
Batch normalisation: running statistics are shared and averaged uniformly, unless they are private. The dynamic terms
include shared weights only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import positive, selectors
from fedbench.config.schema import added
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Client, Cohort
from fedbench.engine.method import Method
from fedbench.models.task import Task


@dataclass(frozen=True)
class FedDyn(Method):
    """FedAvg with local objectives whose joint stationary point is that of the global objective.

    Server: model/* [...]; drift/* [...], of the weights
    Memory: * [N, ...], lambda_k of the shared weights, and the private leaves
    Message: * [...]; mean_size [] if weighted
    Upload: * [...]
    """

    alpha: float = positive(0.01)  # strength of the dynamic regulariser
    weighted: bool = False  # true: clients are weighted by their samples
    private: tuple[str, ...] = added(selectors(()))  # leaves that never leave a client, see Task.select

    paper: ClassVar[str] = "Acar et al., ICLR 2021"

    @property
    def family(self) -> str:  # type: ignore[override]
        """A client with private leaves has a model of its own."""
        return "personalised" if self.private else "global"

    def shares(self, sizes: Tensor) -> Tensor:
        return torch.ones_like(sizes)

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return the shared leaves, and on every client the private ones; drift and all lambda_k are zero."""
        private, shared = task.split(task.init(generator), self.private)
        zero = trees.map_leaves(torch.zeros_like, task.weights(shared))
        return trees.join(model=shared, drift=zero), trees.expand({**zero, **private}, population.clients)

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Return the model, and where needed the mean size."""
        message = trees.expand(trees.part(server, "model"), len(cohort.ids))
        if self.weighted:
            mean = cohort.population.sizes[cohort.served].mean()
            message["mean_size"] = sent(mean.expand(len(cohort.ids)), next(iter(server.values())).device)
        return message

    def start(self, client: Client) -> Tree:
        """Return the received leaves beside the client's own."""
        own = {name: leaf for name, leaf in client.memory.items() if name not in client.message}
        return {**_received(client), **own}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return L_k(w) + alpha_k (||w - w^t||^2 / 2 - <lambda_k, w>)."""
        received = client.task.weights(_received(client))
        states = {name: client.memory[name] for name in received}
        dynamic = trees.squared_distance(received, work) / 2 - trees.dot(states, work)
        if self.weighted:
            dynamic = (client.message["mean_size"] / client.size).to(dynamic.dtype) * dynamic
        return client.task.loss(work, batch) + self.alpha * dynamic

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload w_k, keep the private leaves; lambda_k -= w_k - w^t."""
        private, shared = client.task.split(work, self.private)
        states = {name: client.memory[name] for name in client.task.weights(shared)}
        moved = {name: leaf - (work[name] - client.message[name]) for name, leaf in states.items()}
        return shared, {**moved, **private}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Return mean_S w_k + drift."""
        count = len(cohort.ids)
        mean = trees.mean(uploads, torch.full((count,), 1 / count, dtype=torch.float64))
        model = trees.part(server, "model")
        share = count / len(cohort.served)
        drift = {name: leaf + share * (mean[name] - model[name]) for name, leaf in trees.part(server, "drift").items()}
        moved = {name: mean[name] + leaf for name, leaf in drift.items()}
        return trees.join(model={**mean, **moved}, drift=drift)

    def common(self, server: Tree, task: Task) -> Tree | None:
        return super().common(trees.part(server, "model"), task)


def _received(client: Client) -> Tree:
    return {name: leaf for name, leaf in client.message.items() if name != "mean_size"}
