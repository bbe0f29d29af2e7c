"""SosicFL+: Solution Simplex Clustering for Heterogeneous Federated Learning, arXiv 2403.03333, 2024, Section 3.6.

Ditto on the solution simplex: beside its share in SosicFL's endpoints, client k keeps endpoints of its own that
minimise E_{alpha in R_k} F_k(sum_m alpha_m theta_m) + lambda/2 sum_m ||theta_m - theta_m^t||^2; it is scored by these
at the centre of R_k.
The paper applies Ditto "after SosicFL training"; here, as in Ditto (Algorithm 1), a round ends with it. lambda is not
stated (Ditto's 1); Omega_tr = 10 draws of alpha a round for its own endpoints (Appendix A, which is not followed for
the shared ones: see sosicfl.py). The global model is SosicFL's, as Ditto's is FedAvg's: their curves are the same,
while the published ones differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.methods.sosicfl.sosicfl import SosicFL, at, shared
from fedbench.models.task import Task


@dataclass(frozen=True)
class SosicFLPlus(SosicFL):
    """SosicFL, and personal endpoints pulled towards the shared ones.

    Memory: personal/* [N, ...] if without endpoints; personal/endpoints/* [N, E, ...]
    """

    lam: float = at_least(0, 1.0)  # lambda, strength of the pull
    # on the personal endpoints; null: as many as on the shared ones
    personal_epochs: int | None = at_least(0, None)
    # Omega_tr of the personal endpoints; null: a new alpha every step
    personal_samples: int | None = at_least(1, 10)

    family: ClassVar[str] = "personalised"

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Personal endpoints start as the shared ones."""
        server, _ = super().init(task, population, generator)
        return server, trees.join(personal=trees.expand(shared(server), population.clients))

    def start(self, client: Client) -> Tree:
        """Both sets of endpoints: shared/* and personal/*."""
        return {**trees.join(shared=shared(client.message)), **client.memory}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """The shared endpoints, then the personal ones on the same mini-batches."""
        return (
            Stage(self.loss, moves=("shared/*",)),
            Stage(self.personal_loss, moves=("personal/*",), epochs=self.personal_epochs),
        )

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """Alpha of every step of either stage, [S, n]."""
        drawn = super().draw(generator, steps, client)  # first, so that it is what SosicFL draws
        return {**drawn, "personal": self.alphas(generator, steps, client, self.personal_samples)}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """As SosicFL, of the shared endpoints."""
        return super().loss(trees.part(work, "shared"), client, batch)

    def personal_loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """F_k at this step's alpha + lambda/2 of the squared distance from all that was received."""
        personal = trees.part(work, "personal")
        pull = trees.squared_distance(client.task.weights(shared(client.message)), personal)
        return client.task.loss(at(personal, batch.noise["personal"]), batch) + self.lam / 2 * pull

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the shared endpoints, keep the personal ones."""
        return trees.part(work, "shared"), trees.join(personal=trees.part(work, "personal"))

    def model(self, work: Tree, client: Client) -> Tree:
        """The personal endpoints at the centre of the client's subregion."""
        return super().model(trees.part(work, "personal"), client)
