"""FedSaC: Yan et al., Balancing Similarity and Complementarity for Federated Learning, ICML 2024.

Algorithm 1. Clients train on Eq. 9 (see `cosine`), then upload theta_i and U_i, the k leading singular directions of
their training samples' features before the classifier (Eq. 5). Server: S_ij, the cosine of two models (Eq. 4),
C_ij = cos of the mean principal angle of U_i and U_j (Eqs. 6-7), and row i of W minimises over the simplex
sum_j (W_ij - p_j)^2 + alpha C_ij W_ij - beta S_ij W_ij (Eq. 8): the projection of p - (alpha C_i - beta S_i) / 2.
alpha is 0 after 70 % of the rounds (Appendix B.1). Where the text gives way to the authors' code: fields of `cosine`,
and `angles`, `centred` and the values of alpha, beta, lambda and alpha_share.
S: Appendix A.2 follows Ye et al., whose code takes cosines of the updates since theta_0 and counts those above .9 as 1;
so does the default. Printed are cosines of the parameters (Eq. 4, preset `literal`). For models that start alike those
stay near 1 and tell no clients apart: with C a client mixes with the least alike and loses its own model (C_ii = 1),
without C W is p. That contradicts Figure 3(d), where with S alone clients mostly keep their own models.
With 50-100 clients (Appendix D) `collaborators` are drawn each round, for all clients the same; each client mixes
among them and itself. (The code draws the round's cohort of 10 instead: protocol.cohort=10.)
Deviation: a client whose features span fewer than k directions uploads as many, and an angle is averaged over the
smaller subspace's (Appendix A.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, one_of, share
from fedbench.core import trees
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Client, ClientHook, Cohort
from fedbench.methods.parts import features, mixing
from fedbench.methods.parts.mixing import CosineMixing


@dataclass(frozen=True)
class FedSaC(CosineMixing):
    """Mixtures of clients with similar models and complementary data.

    Server: model/* [N, ...], theta_tilde; W [N, N]; initial/* [...] if updates; direction/* [N, ...] if directions
    Memory: * [N, ...] if private
    Message: * [...], theta_tilde_i; direction/* [...] if directions
    Upload: * [...], theta_i; subspace/U [d, k]
    """

    alpha: float = at_least(0, 0.9)  # weight of complementarity; .5 where partitions are pathological
    beta: float = at_least(0, 1.4)  # weight of similarity; 1.6 where partitions are pathological
    k: int = at_least(1, 3)  # directions of a subspace
    alpha_share: float = share(0.7)  # share of the rounds after which alpha is 0; the code: 1
    angles: str = one_of("principal", "greedy")  # "principal", or the code's "greedy" matching
    centred: bool = False  # features minus their mean: principal components, as in the code
    collaborators: int = at_least(0, 0)  # clients drawn a round to mix with; 0: the whole cohort

    paper: ClassVar[str] = "Yan et al., ICML 2024"

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """For the subspace."""
        return frozenset({"finish"})

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Theta_i and the products of its features, of which it sends U_i alone."""
        upload, memory = super().finish(work, client)
        products = features.products(work, client.data, client.task, self.centred)
        return {**upload, **trees.join(products=products)}, memory

    def compress(self, upload: Tree) -> Tree:
        """Theta_i and U_i."""
        U = features.directions(trees.part(upload, "products"), self.k)
        return {**trees.plain(upload), "subspace/U": U}

    def graph(self, server: Tree, uploads: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        """W from sizes, complementarity and similarity."""
        return {"*": self.rows(self.cost(server, uploads, cohort), self.allowed(cohort), cohort)}

    def cost(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tensor:
        """Alpha C - beta S, [C, C]."""
        return self.weighed(uploads, cohort) - self.beta * self.similarities(server, uploads, cohort)

    def weighed(self, uploads: Tree, cohort: Cohort) -> Tensor:
        """Alpha C, [C, C]."""
        early = cohort.clock.round < self.alpha_share * cohort.clock.rounds
        alpha = self.alpha if early else 0.0
        return alpha * features.complementarity(uploads["subspace/U"], self.angles == "greedy")

    def rows(self, cost: Tensor, allowed: Tensor, cohort: Cohort) -> Tensor:
        """The rows of W that minimise Eq. 8 over the clients `allowed` (bool [C, C])."""
        allowed = sent(allowed, cost.device)
        p = sent(cohort.weights, cost.device).to(cost.dtype) * allowed
        return mixing.closest(p / p.sum(1, keepdim=True), cost, allowed, self.solver)

    def allowed(self, cohort: Cohort) -> Tensor:
        """Whom each client may mix with, bool [C, C]."""
        count = len(cohort.ids)
        if not 0 < self.collaborators < count:
            return torch.ones(count, count, dtype=torch.bool)
        drawn = torch.randperm(count, generator=cohort.generator)[: self.collaborators]
        allowed = torch.eye(count, dtype=torch.bool)
        allowed[:, drawn] = True
        return allowed


# FedSaC of several modalities: Yan et al., ICML 2024, Section 5.3 and Appendices B.2, B.3.
#
# Inside a modality FedSaC as it is, of all leaves. Across modalities only the classification layer is mixed:
# there Eq. 8
# has no complementarity, and S_ij is the cosine of the two classification layers. So row i of the
# classification layers'
# W minimises over all clients sum_j (W_ij - p_j)^2 + cost_ij W_ij with cost_ij = alpha C_ij - beta S_ij for j of i's
# modality and - beta S_ij for the others. "The cooperation weights for the classification layers are derived by
# excluding
# the complementarity term" may also be meant of all pairs: `heads` = "all".
# As pFedGraph's code, which FedSaC follows, S is of the updates since theta_0, and 1 above .9, in both places:
# cosines of
# parameters that start alike tell no clients apart (Eq. 4 as printed: `similarity` = "parameters", `snap` = null).
# With clients of one kind this is FedSaC; without weights across modalities, FedSaC inside each.


@dataclass(frozen=True)
class MultimodalFedSaC(FedSaC):
    """FedSaC inside a modality, and mixed classification layers across modalities."""

    alpha: float = at_least(0, 0.7)  # weight of complementarity (Appendix B.3)
    beta: float = at_least(0, 1.2)  # weight of similarity (Appendix B.3)
    similarity: str = one_of("updates", "parameters")
    snap: float | None = at_least(-1, 0.9)
    # whose classification layers are mixed without C, by their own cosines: clients of two modalities ("across"), or
    # any two ("all"); "apart": none are mixed across modalities
    heads: str = one_of("across", "all", "apart")

    @property
    def why_one_kind(self) -> str:
        """Nothing: bodies are mixed inside a modality, classification layers across."""
        return ""

    def graph(self, server: Tree, uploads: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        """W of the classification layers, over all clients, and of the other leaves, inside a modality."""
        cost = self.weighed(uploads, cohort)  # of a pair across modalities it is left out below
        inside = torch.zeros(cost.shape, dtype=torch.bool)
        for chosen, alike in cohort.alike():
            places = sent(chosen.nonzero().flatten(), cost.device)
            own = trees.rows(alike.task.own(uploads), chosen)
            cost[places[:, None], places] -= self.beta * self.similarities(server, own, alike)
            inside |= chosen[:, None] & chosen
        allowed = self.allowed(cohort)
        body = self.rows(cost, allowed & inside, cohort)
        if self.heads == "apart":
            return {"*": body}
        heads, _ = cohort.task.split(trees.plain(uploads), ("@head",))
        across = -self.beta * self.similarities(server, heads, cohort)
        kept = sent(inside, cost.device) & (self.heads == "across")
        return {"@head": self.rows(torch.where(kept, cost, across), allowed, cohort), "*": body}
