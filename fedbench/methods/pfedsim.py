"""pFedSim: Tan et al., pFedSim: Similarity-Aware Model Aggregation Towards Personalized Federated Learning, 2023.

Algorithm 2. Generalisation: floor(rho T) rounds of FedAvg. Personalisation: a selected client receives the extractor
omega_i = sum_j Phi_ij omega_j / sum_j Phi_ij over all clients, selected or not, and its own classifier phi_i (Eq. 4).
It trains and returns both. Then Eq. 3 updates Phi for the pairs selected in the round, with K classes: Phi_ij = - 1/K
sum_c log(1 - max(0, cos(phi_i,c, phi_j,c))). Before its first update Phi is the identity.

Paper and authors' code differ in these settings:
- `log_of_mean`: the code takes one logarithm, of the cosines' mean over classes.
- `self_weight`: Phi_ii is 1 in the paper (the identity) and -log(1 - .9999) = 9.21 in the code. The paper has Phi in
  [0, 1]. By Eq. 3 trained classifiers reach 6 on average, so a client's own extractor weighs 2 % or less.
- `scored`: "mixed" is the mixture that a client would be sent, which the paper calls its personalised model. "own" is
  the model that it trained last, as in the code; Algorithm 2 may also be read so.

As in the code, phi_i,c is row c of the classifier's weights, without the bias.
Batch normalisation: affine parameters belong to the extractor and are mixed. Running statistics never leave a client,
as in the code (`private`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import one_of, positive, selectors, share
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Client, Clock, Cohort
from fedbench.methods.parts.mixing import ModelStore
from fedbench.models.task import Task

EPSILON = 1e-8  # epsilon of Eq. 3
CLOSEST = 1e-12  # smallest 1 - cosine: equal classifiers have a finite similarity


@dataclass(frozen=True)
class PFedSim(ModelStore):
    """Extractors are mixed by the similarity of classifiers; classifiers are personal.

    Server: model/* [N, ...]; phi [N, N]
    Memory: * [N, ...] if private; own/* [N, ...] if scored is own; trained [N] if scored is own
    Message: * [...]
    Upload: * [...]
    """

    rho: float = share(0.5)  # share of the rounds that run FedAvg
    log_of_mean: bool = False  # Eq. 3 takes the logarithm of the mean over classes; the code: true
    self_weight: float = positive(1.0)  # Phi_ii; the code: 9.2103
    # "mixed": the mixture that the client is sent; "own": the model that it trained last (code)
    scored: str = one_of("mixed", "own")
    private: tuple[str, ...] = selectors(("@stats",), may_be_empty=True)

    paper: ClassVar[str] = "Tan et al., 2023"

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return Phi without similarities; each client's own model, if it is to be scored."""
        server, memory = super().init(task, population, generator)
        if self.scored == "own":
            memory = {**memory, **trees.join(own={**trees.under(server, "model"), **memory})}
            memory["trained"] = torch.zeros(population.clients)
        server["phi"] = torch.zeros(population.clients, population.clients, dtype=torch.float64)
        return server, memory

    def warm(self, clock: Clock) -> bool:
        return clock.round < math.floor(self.rho * clock.rounds)

    # ---- server

    def rows(self, server: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        """Return Phi's rows, normalised, for the extractor."""
        weights = self.collaboration(server, cohort.population)
        return {"@body": weights[sent(cohort.ids, weights.device)]}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Store the models; update Phi for all pairs of the cohort."""
        updated = super().aggregate(server, uploads, cohort)
        if not self.warm(cohort.clock):
            ids = sent(cohort.ids, server["phi"].device)
            phi = server["phi"].clone()
            phi[ids.unsqueeze(1), ids] = self.similarity(uploads, cohort.task)
            updated["phi"] = phi.fill_diagonal_(0)
        return updated

    def similarity(self, uploads: Tree, task: Task) -> Tensor:
        """Return Eq. 3 between the last layers of the cohort, whose rows are the classes', [C, C]."""
        classifiers = [uploads[name] for name in task.select(uploads, ("head.*",)) if uploads[name].dim() > 2]
        rows = torch.cat([leaf.flatten(2) for leaf in classifiers], dim=2).to(torch.float64)  # [C, K, d]
        lengths = rows.norm(dim=2)
        products = torch.einsum("ikd,jkd->ijk", rows, rows)
        cosines = products / (torch.einsum("ik,jk->ijk", lengths, lengths) + EPSILON)
        if self.log_of_mean:
            return -(1 - cosines.mean(2).clamp(min=0)).clamp(min=CLOSEST).log()
        return -(1 - cosines.clamp(min=0)).clamp(min=CLOSEST).log().mean(2)

    def collaboration(self, server: Tree, population: Population) -> Tensor:
        """Return Phi with its diagonal, rows normalised."""
        phi = server["phi"].clone().fill_diagonal_(self.self_weight)
        return functional.normalize(phi, p=1, dim=1)

    # ---- client

    def start(self, client: Client) -> Tree:
        """Return the received model beside the client's statistics."""
        mine = {name: leaf for name, leaf in client.memory.items() if "/" not in name and name != "trained"}
        return {**client.message, **mine}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload extractor and classifier; keep the whole, if it is to be scored."""
        upload, memory = super().finish(work, client)
        if self.scored == "own":
            mark = torch.full_like(client.memory["trained"], 0.0 if self.warm(client.clock) else 1.0)
            memory = {**memory, **trees.join(own=work), "trained": mark}
        return upload, memory

    def personal(self, client: Client) -> Tree:
        """Return the model as sent, or as last trained in the personalisation phase."""
        sent = super().personal(client)
        if self.scored == "mixed":
            return sent
        own, trained = trees.part(client.memory, "own"), client.memory["trained"] > 0
        return {name: torch.where(trained, own[name], leaf) for name, leaf in sent.items()}
