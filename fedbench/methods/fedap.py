"""f-FedAP: Lu et al., Personalized Federated Learning with Adaptive Batchnorm for Healthcare, IEEE T. Big Data 2022.

This is the variant of FedAP without a pre-trained model. `warmup` of the rounds are FedBN. Then the weights between
clients are fixed, from the clients' batch-normalisation statistics. mu_il and sigma_il are the mean and deviation of
the inputs of client i's layer l. The distance of two clients is d_ij = sum_l sqrt(|mu_il - mu_jl|^2 + |sigma_il -
sigma_jl|^2), the 2-Wasserstein distance of normal distributions, summed over layers. The weights are W_ii = mu and W_ij
= (1 - mu) d_ij^-1 / sum_{h != i} d_ih^-1. From then on client i receives sum_j W_ij theta_j over the latest models of
all clients, selected or not. pFedSim's appendix sets warmup and mu to .5.

Deviations:
- The warm-up averages by n_k / n. FL-bench counts clients equally.
- d uses the running statistics that clients upload in each warm-up round. FL-bench uses the statistics of the layers'
  inputs over each client's training samples after the warm-up. The authors' code has no warm-up: it is FedAP, with the
  statistics of a pre-trained model.
- Clients of a network without batch normalisation are compared by the mean and variance of their features before the
  classifier, over their training samples.

Batch normalisation: affine parameters and running statistics are private throughout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import selectors, share
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Clock, Cohort
from fedbench.methods.parts.features import blocks
from fedbench.methods.parts.mixing import ModelStore
from fedbench.models.task import Task

MEAN, VARIANCE = "running_mean", "running_var"


@dataclass(frozen=True)
class FedAP(ModelStore):
    """FedBN, then mixtures by the distance of batch-normalisation statistics.

    Server: model/* [N, ...]; statistics/** [N, ...], of the last warm-up round
    Memory: * [N, ...] if private
    Message: * [...]
    Upload: * [...]; statistics/** if warm-up
    """

    warmup: float = share(0.5)  # share of the rounds that run FedBN
    momentum: float = share(0.5)  # mu, weight of the client's own model
    private: tuple[str, ...] = selectors(("@norm",), may_be_empty=True)

    paper: ClassVar[str] = "Lu et al., IEEE Transactions on Big Data 2022"

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return frozenset({"finish"})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start with statistics that are alike, as nothing is known of any client's."""
        server, memory = super().init(task, population, generator)
        statistics = {name: leaf for name, leaf in memory.items() if task.is_buffer(name)}
        if not statistics:
            model = trees.row(trees.under(server, "model"), 0)
            width = task.features(model, torch.zeros(1, *task.shape)).shape[1]
            shape = (population.clients, width)
            statistics = {f"features.{MEAN}": torch.zeros(shape), f"features.{VARIANCE}": torch.ones(shape)}
        return {**server, **trees.join(statistics=statistics)}, memory

    def warm(self, clock: Clock) -> bool:
        return clock.round < math.floor(self.warmup * clock.rounds)

    # ---- server

    def rows(self, server: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        """Return W's rows over the clients of this server."""
        served = cohort.served
        statistics = trees.take(trees.part(server, "statistics"), served)
        weights = torch.zeros(len(served), cohort.population.clients, dtype=torch.float64)
        weights[:, served] = closeness(statistics, self.momentum).cpu()
        index = torch.searchsorted(served, cohort.ids)
        return {"*": weights[index]}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Store the models, or average them while warm; statistics are those of the warm-up."""
        statistics = trees.join(statistics=trees.under(uploads, "statistics"))
        return trees.put(super().aggregate(server, uploads, cohort), cohort.ids, statistics)

    def collaboration(self, server: Tree, population: Population) -> Tensor:
        return closeness(trees.part(server, "statistics"), self.momentum)

    # ---- client

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload all but batch normalisation, in the warm-up also its statistics."""
        upload, memory = super().finish(work, client)
        if not self.warm(client.clock):
            return upload, memory
        statistics = {name: leaf for name, leaf in work.items() if client.task.is_buffer(name)}
        return {**upload, **trees.join(statistics=statistics or feature_statistics(work, client))}, memory


def feature_statistics(model: Tree, client: Client) -> Tree:
    """Return the mean and variance [d] of the features of all training samples."""
    data = client.data
    features = [(client.task.features(model, block.x), block) for block in blocks(data)]
    count = data.count.to(features[0][0].dtype)
    mean = torch.stack([block.sum(z) for z, block in features]).sum(0) / count
    variance = torch.stack([block.sum((z - mean).square()) for z, block in features]).sum(0) / count
    return {f"features.{MEAN}": mean, f"features.{VARIANCE}": variance}


def distances(statistics: Tree) -> Tensor:
    """Return D [N, N] from leaves *.running_mean and *.running_var [N, channels]."""
    D = torch.zeros(())
    for name, mean in statistics.items():
        if name.endswith(MEAN):
            deviation = statistics[name.removesuffix(MEAN) + VARIANCE].to(torch.float64).clamp(min=0).sqrt()
            point = torch.cat([mean.to(torch.float64), deviation], dim=1)
            difference = point.unsqueeze(1) - point.unsqueeze(0)
            D = D + difference.norm(dim=2)
    return D


def closeness(statistics: Tree, momentum: float) -> Tensor:
    """Return W [N, N] from clients' statistics; clients at distance 0 share all weight."""
    D = distances(statistics)
    count = len(D)
    if count == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    others = ~torch.eye(count, dtype=torch.bool, device=D.device)
    smallest = D.masked_fill(~others, torch.inf).amin(1, keepdim=True)
    same = (D == 0).to(torch.float64)
    inverse = torch.where(smallest == 0, same, smallest / D).masked_fill(~others, 0)
    weights = (1 - momentum) * inverse / inverse.sum(1, keepdim=True)
    return weights + momentum * torch.eye(count, dtype=torch.float64, device=D.device)
