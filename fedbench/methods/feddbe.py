"""FedDBE: Zhang et al., Eliminating Domain Bias for Federated Learning in Representation Space, NeurIPS 2023.

FedAvg with a domain bias eliminator. Client k keeps a bias z_k of the features, which it trains and never sends. It
minimises CE(h(f(x) + z_k), y) + kappa mean_d (r - m)^2 / 2 over f, h and z_k, where r is the running mean feature of
its samples and m the mean of all clients. r starts at 0 in each round and follows r = (1 - mu) r + mu (the mini-batch's
mean). Its gradient goes through the newest mini-batch only. With mu 1 r is the mean of the last mini-batch alone.
Before round 1 every client does the local work of one round without z_k and penalty. m is the size-weighted mean of
their r and stays constant. The models that they train there are discarded. The received model with the client's own z_k
is scored.

The authors' code has kappa 50 and mu 1 for Fashion-MNIST on a CNN, and halves the square as here.
Deviations: the protocol's optimiser moves z_k; in the code plain SGD does. No training loss is shown, because r carries
over from step to step.
Batch normalisation: running statistics are shared and averaged; in the code they stay on the client. m and r are
computed in training mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, share
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Conformance, Preparation, Stage
from fedbench.methods.fedavg import FedAvg
from fedbench.models.task import Task, gradient

OWN = ("bias", "mean", "running")  # leaves beside the network's


@dataclass(frozen=True)
class FedDBE(FedAvg):
    """FedAvg whose clients keep a bias of their features and pull their features' mean to the global mean.

    Memory: * [N, ...] if private; bias [N, d], z_k; mean [N, d], m
    """

    kappa: float = at_least(0, 50.0)  # weight of the pull
    mu: float = share(1.0, above=True)  # weight of the newest mini-batch in the running mean

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Zhang et al., NeurIPS 2023"
    unfit: ClassVar[Mapping[str, str]] = {"modalities": "averages features over all clients"}

    @property
    def conformance(self) -> Conformance:
        return Conformance(inert={"mean": "the mean of all is measured once, before the first round"})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start as FedAvg, with biases of zero."""
        server, private = super().init(task, population, generator)
        width = task.features(task.init(generator), torch.zeros(1, *task.shape)).shape[1]
        return server, {**private, "bias": torch.zeros(population.clients, width)}

    def prepare(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Give every client the mean feature of all, after local work without bias and pull."""
        message = self.send(server, preparation.everyone)
        means = preparation.round(message, memory, sends=lambda upload: {"mean": upload["running"]})
        common = trees.expand(preparation.everyone.mean(means), preparation.population.clients)
        preparation.meter.sent(common)
        return server, {**memory, **common}

    # ---- client

    def start(self, client: Client) -> Tree:
        """Return the model, z_k as bias and r as running."""
        own = {name: leaf for name, leaf in client.memory.items() if name != "mean"}
        return {**client.message, **own, "running": torch.zeros_like(own["bias"])}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train model and bias together, r beside them."""
        return (Stage(direction=self.step, fixed=("running",)),)

    def step(self, work: Tree, client: Client, batch: Batch) -> Tree:
        """Return the gradient of model and bias, the new statistics, and r where it is used again."""
        task, model = client.task, {name: leaf for name, leaf in work.items() if name != "running"}
        slope, statistics = gradient(lambda moved: self.objective(moved, work["running"], client, batch), model, task)
        if self.mu == 1 and "mean" in client.memory:
            return {**slope, **statistics}
        copy = {name: leaf.detach().clone() for name, leaf in model.items()}  # whose statistics this pass moves
        mean = batch.mean(task.features(copy, batch.x, train=True, mask=batch.mask))
        return {**slope, **statistics, "running": (1 - self.mu) * work["running"] + self.mu * mean}

    def objective(self, model: Tree, running: Tensor, client: Client, batch: Batch) -> Tensor:
        """Return CE(h(f(x) + z_k), y) + kappa mean_d (r - m)^2 / 2; before m is known, CE(h(f(x)), y)."""
        task = client.task
        z = task.features(model, batch.x, train=True, mask=batch.mask)
        if "mean" not in client.memory:
            return task.criterion(task.head(model, z), batch)
        running = (1 - self.mu) * running + self.mu * batch.mean(z)
        pull = (running - client.memory["mean"]).square().mean() / 2
        return task.criterion(task.head(model, z + model["bias"]), batch) + self.kappa * pull

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the shared leaves, before m is known r too; keep the private ones, z_k and m."""
        shared, private = super().finish({name: leaf for name, leaf in work.items() if name not in OWN}, client)
        kept = {name: leaf for name, leaf in client.memory.items() if name == "mean"}
        return (
            shared if kept else {**shared, "running": work["running"]},
            {**private, "bias": work["bias"], **kept},
        )

    def model(self, work: Tree, client: Client) -> Tree:
        """Return the model and z_k."""
        return {name: leaf for name, leaf in work.items() if name != "running"}

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """Return h(f(x) + z_k)."""
        return task.head(model, task.features(model, x) + model["bias"])
