"""FedExP: Jhunjhunwala et al., FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023.

w_{t+1} = w_t + eta_t Delta_t, Delta_t the mean of the clients' updates Delta_i = w_i - w_t, and
eta_t = max(1, sum_i ||Delta_i||^2 / (2 M (||Delta_t||^2 + epsilon))) over the round's M clients. What is scored is the
mean of the last two models, as iterates swing around the solution.
The authors' code has M epsilon for epsilon (`per_client`), p_i = n_i / n for 1 / M, and lets epsilon decay with the
square of the clients' rate.
Deviations: p_i = n_i / n, as in the code and in FedAvg here; epsilon does not decay; the mean of two models is sent in
every round, though only the scores need it.
Batch normalisation: running statistics are averaged, and no part of Delta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedbench.config.fields import positive
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Cohort
from fedbench.methods.fedavg import FedAvg
from fedbench.models.task import Task
from fedbench_fedexp.step import extrapolated


@dataclass(frozen=True)
class FedExP(FedAvg):
    """FedAvg whose server extrapolates by how much the clients' updates disagree.

    Server: model/* [...], the shared leaves; scored/* [...], the mean of the last two models
    Message: model/* [...]; scored/* [...]
    """

    epsilon: float = positive(1e-3)  # keeps the step finite where updates cancel out
    per_client: bool = False  # epsilon counts once for each client of the round (code)

    paper: ClassVar[str] = "Jhunjhunwala et al., ICLR 2023"
    unfit: ClassVar[Mapping[str, str]] = {"modalities": "steps by the length of whole updates"}

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return FedAvg's model, which is what is scored at first."""
        model, memory = super().init(task, population, generator)
        return trees.join(model=model, scored=model), memory

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Step by eta along the mean update; statistics are averaged."""
        model, mean = trees.part(server, "model"), cohort.mean(uploads)
        weights = cohort.task.weights(model)
        updates = trees.flatten({name: uploads[name] - leaf for name, leaf in weights.items()})  # [C, P]
        shares = trees.sent(cohort.weights, updates.device).to(updates.dtype)
        eta = extrapolated(updates, shares, self.epsilon * (len(cohort.ids) if self.per_client else 1))
        moved = {**mean, **{name: leaf + eta * (mean[name] - leaf) for name, leaf in weights.items()}}
        before = model if cohort.clock.round else moved  # the initial model is no iterate to average with
        return trees.join(model=moved, scored={**moved, **{name: (moved[name] + before[name]) / 2 for name in weights}})

    def start(self, client: Client) -> Tree:
        """Train the model itself."""
        return {**trees.part(client.message, "model"), **client.memory}

    def personal(self, client: Client) -> Tree:
        """Score the mean of the last two."""
        return {**trees.part(client.message, "scored"), **client.memory}

    def common(self, server: Tree, task: Task) -> Tree | None:
        """Return the mean of the last two models."""
        return super().common(trees.part(server, "scored"), task)
