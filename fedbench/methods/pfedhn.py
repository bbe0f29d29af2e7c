"""pFedHN: Shamsian et al., Personalized Federated Learning using Hypernetworks, ICML 2021.

Algorithm 1. The server holds embeddings v_i and a hypernetwork h. Client i receives theta_i = h(v_i; phi), trains it to
theta~_i and returns the change Delta theta_i = theta_i - theta~_i. phi and v_i step against the vector-Jacobian product
(d theta_i / d (phi, v_i))^T Delta theta_i by SGD with momentum. h is an MLP with `layers` hidden layers after the
first, ReLU between them, and a linear map of the last to all weights. The gradient of a cohort is the mean over its
clients. In the paper a round has one client (protocol.cohort=1). Settings of FedSaC's comparison: embedding 20, width
100, 3 layers, momentum .9, weight decay .001, gradient norm clipped at 50.
Batch normalisation: affine parameters and statistics stay on the clients. The hypernetwork does not make them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, positive, selectors, share
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Client, Cohort, Conformance
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.parts.layers import linear
from fedbench.models.task import Task


@dataclass(frozen=True)
class PFedHN(FedAvg):
    """A hypernetwork on the server makes each client's personal model.

    Server: phi/*, the hypernetwork and embeddings [N, e]; momentum/*, of phi; like/* [1, ...], the shapes it makes
    Message: * [...], theta_i
    Upload: * [...], Delta theta_i
    """

    embedding: int = at_least(1, 20)  # width of a client's embedding
    hidden: int = at_least(1, 100)  # width of the hypernetwork
    layers: int = at_least(0, 3)  # hidden layers after the first
    lr: float = positive(0.01)  # learning rate of the hypernetwork
    momentum: float = share(0.9, below=True)  # its momentum
    weight_decay: float = at_least(0, 1e-3)  # its weight decay
    clip: float = positive(50.0)  # largest norm of its gradient
    private: tuple[str, ...] = selectors(("@norm",), may_be_empty=True)

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Shamsian et al., ICML 2021"
    unfit: ClassVar[Mapping[str, str]] = {"modalities": "makes the leaves of one network"}

    # ---- server

    def shares(self, sizes: Tensor) -> Tensor | None:
        return None

    @property
    def conformance(self) -> Conformance:
        return Conformance(draws_by_position="clients' embeddings are drawn in order")

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return a random hypernetwork (phi/*), its momentum, and the shapes it makes (like/*, one row)."""
        shared, memory = super().init(task, population, generator)
        total = sum(leaf.numel() for leaf in shared.values())
        widths = [self.embedding, *[self.hidden] * (self.layers + 1), total]
        phi = {"embeddings": torch.randn(population.clients, self.embedding, generator=generator)}
        for place, (wide, narrow) in enumerate(pairwise(widths)):
            phi |= linear(str(place), wide, narrow, generator)
        momentum = {name: torch.zeros_like(leaf) for name, leaf in phi.items()}
        return trees.join(phi=phi, momentum=momentum, like=trees.expand(shared, 1)), memory

    def generate(self, phi: Tree, ids: Tensor) -> Tensor:
        """Return h(v_i) of the clients `ids`, flat [C, P]."""
        last = self.layers + 1
        z = phi["embeddings"][sent(ids, phi["embeddings"].device)]
        for layer in range(last + 1):
            z = z @ phi[f"{layer}.weight"].t() + phi[f"{layer}.bias"]
            z = z.relu() if layer < last - 1 else z
        return z

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Return theta_i of each client."""
        models = self.generate(trees.part(server, "phi"), cohort.ids)
        return trees.unflatten(models, trees.part(server, "like"))

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Make one step of the hypernetwork on the clients' changes."""
        phi = trees.part(server, "phi")
        pull_back = torch.func.vjp(partial(self.generate, ids=cohort.ids), phi)[1]
        gradient: Tree = pull_back(trees.flatten(uploads) / len(cohort.ids))[0]
        norm = trees.dot(gradient, gradient).sqrt()
        scale = (self.clip / norm.clamp(min=self.clip)).to(norm)
        momentum = {
            name: self.momentum * leaf + scale * gradient[name] + self.weight_decay * phi[name]
            for name, leaf in trees.part(server, "momentum").items()
        }
        moved = {name: leaf - self.lr * momentum[name] for name, leaf in phi.items()}
        return {**server, **trees.join(phi=moved, momentum=momentum)}

    def common(self, server: Tree, task: Task) -> Tree | None:
        """There is no global model."""
        return None

    # ---- client

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Return Delta theta, the received model minus the trained one."""
        trained, memory = super().finish(work, client)
        return {name: client.message[name] - leaf for name, leaf in trained.items()}, memory
