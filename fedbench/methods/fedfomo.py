"""FedFomo: Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021.

Client i receives the models of M others and weighs them on its validation samples (Eq. 4), theta_i its own latest:
w_n = (L_i(theta_i) - L_i(theta_n)) / |theta_n - theta_i|. With w+_n = max(w_n, 0) / sum_m max(w_m, 0) it trains on from
theta_i + sum_n w+_n (theta_n - theta_i) (Eqs. 5-6). Server: P_in adds up the w_n that i reports; the M of highest P_in
are sent, ties by lot. For exploration a candidate ranks by lot instead with probability epsilon, which falls by `decay`
a round. Candidates are all clients, by their latest upload. Validation samples: the protocol's
(protocol.test.val_fraction; pFedSim's comparison: .2), else the training samples. Scored is a client's own latest
model. M models cross the network downwards, one upwards; where fewer others exist, copies of its own take their place.
Batch normalisation: statistics are combined like weights, but are not in the norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config import LocalConfig
from fedbench.engine import trees
from fedbench.engine.contract import Client, Clock, Cohort, Population, Stage
from fedbench.engine.trees import Tree
from fedbench.errors import ConfigError
from fedbench.methods import passes
from fedbench.methods.mixing import OneEach, leaves
from fedbench.models.task import Task

SMALLEST = 1e-12  # squared distance below which two models are the same: no weight


@dataclass(frozen=True)
class FedFomo(OneEach):
    """Clients combine others' models by how much these help on their validation samples."""

    M: int = 5  # models that a client receives
    epsilon: float = 0.3  # probability that one of them is drawn at random
    decay: float = 0.05  # by which epsilon falls each round

    paper: ClassVar[str] = "Zhang et al., ICLR 2021"

    def __post_init__(self) -> None:
        if self.M < 1 or not 0 <= self.epsilon <= 1 or self.decay < 0:
            raise ConfigError(
                "method.M must be at least 1, epsilon in [0, 1] and decay not negative, got "
                f"{self.M}, {self.epsilon} and {self.decay}"
            )

    @property
    def reads_validation(self) -> frozenset[str]:
        """To weigh the received models."""
        return frozenset({"start"})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """All start from one model; P is zero."""
        server, memory = super().init(task, population, generator)
        own = trees.part(server, "model")
        P = torch.zeros(population.clients, population.clients, dtype=torch.float64)
        return {**server, "P": P}, {**own, **memory}

    # ---- server

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """For each client, M models [C, M, ...] and whose they are [C, M]."""
        peers = self.peers(server["P"].cpu(), cohort)
        stored = trees.part(server, "model")
        flat = trees.take(stored, peers.flatten())
        models = {name: leaf.reshape(*peers.shape, *leaf.shape[1:]) for name, leaf in flat.items()}
        return {**trees.join(peer=models), "reported/peers": peers.to(server["P"].device)}

    def peers(self, P: Tensor, cohort: Cohort) -> Tensor:
        """Ids [C, M] of the clients whose models are sent; a client's own where there are no others."""
        shape = (len(cohort.ids), len(P))
        lot = torch.rand(shape, generator=cohort.generator, dtype=torch.float64)
        explored = (
            torch.rand(shape, generator=cohort.generator) < self.epsilon - self.decay * cohort.clock.round
        )
        shuffled = lot.argsort(1)
        order = P[cohort.ids].gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
        rank = shuffled.gather(1, order).argsort(1).to(torch.float64)
        rank = torch.where(explored, lot * len(P), rank)
        served = torch.zeros(len(P), dtype=torch.bool).index_fill(0, cohort.served, True)
        own = cohort.ids.unsqueeze(1)
        rank = rank.masked_fill(~served | (torch.arange(len(P)) == own), torch.inf)
        best = rank.topk(min(self.M, len(P) - 1), dim=1, largest=False)
        return torch.where(best.values.isinf(), own, best.indices)

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Store the models, add the reported weights to P."""
        models = leaves(uploads)
        ids = cohort.ids.to(server["P"].device)
        rows = server["P"][ids].scatter_add(
            1, uploads["reported/peers"], uploads["reported/weights"].to(torch.float64)
        )
        return trees.put(server, cohort.ids, {**trees.join(model=models), "P": rows})

    def collaboration(self, server: Tree, population: Population) -> Tensor:
        """P where positive, a row's sum one; without any, the identity's."""
        positive = server["P"].clamp(min=0)
        alone = torch.eye(len(positive)).to(positive)
        rows = torch.where(positive.sum(1, keepdim=True) > 0, positive, alone)
        return torch.nn.functional.normalize(rows, p=1, dim=1)

    # ---- client

    def weigh(self, client: Client) -> Tensor:
        """The weights w_n [M] of Eq. 4."""
        own, data, task = client.memory, client.validation, client.task
        models, theta = trees.part(client.message, "peer"), task.weights(own)
        before = passes.mean_loss(own, data, task)
        found = []
        for n in range(len(client.message["reported/peers"])):
            model = {**own, **trees.row(models, n)}
            squared = trees.squared_distance(theta, model)
            gain = before - passes.mean_loss(model, data, task)
            found.append(torch.where(squared > SMALLEST, gain / squared.clamp(min=SMALLEST).sqrt(), 0.0))
        return torch.stack(found) if found else before.new_zeros(0)

    def start(self, client: Client) -> Tree:
        """Eqs. 5-6, and the weights beside the model."""
        weights = self.weigh(client)
        positive = weights.clamp(min=0)
        share = positive / positive.sum().clamp(min=torch.finfo(weights.dtype).tiny)
        models, own = trees.part(client.message, "peer"), client.memory
        moved = {
            name: own[name] + torch.tensordot(share, leaf - own[name], dims=1)
            for name, leaf in models.items()
        }
        return {**own, **moved, "reported/weights": weights}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train the model alone."""
        return (Stage(self.loss, fixed=("reported/*",)),)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the model and the weights; keep the model."""
        model = leaves(work)
        upload, _ = super().finish(model, client)
        reported = {"peers": client.message["reported/peers"], "weights": work["reported/weights"]}
        return {**upload, **trees.join(reported=reported)}, model

    def model(self, work: Tree, client: Client) -> Tree:
        """Without the weights."""
        return leaves(work)

    def personal(self, client: Client) -> Tree:
        """The client's own latest model."""
        return client.memory
