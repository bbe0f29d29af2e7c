"""FedSaC: Yan et al., Balancing Similarity and Complementarity for Federated Learning, ICML 2024.

Algorithm 1. Clients train on Eq. 9 (see `CosineMixing`). They upload theta_i and U_i, the k leading singular directions
of their training samples' features before the classifier (Eq. 5). The server computes S_ij, the cosine of two models
(Eq. 4), and C_ij, the cosine of the mean principal angle of U_i and U_j (Eqs. 6-7). Row i of W minimises over the
simplex sum_j (W_ij - p_j)^2 + alpha C_ij W_ij - beta S_ij W_ij (Eq. 8). This is the projection of p - (alpha C_i - beta
S_i) / 2. alpha is 0 after 70 % of the rounds (Appendix B.1).
Text and authors' code differ in fields of `CosineMixing`, in `angles` and `centred`, and in the values of alpha, beta,
lambda and alpha_share.

S: Appendix A.2 follows Ye et al. Their code takes cosines of the updates since theta_0 and counts cosines above .9 as
1; so does the default. Eq. 4 prints cosines of the parameters (preset `literal`). For models with a common start these
stay near 1 and do not distinguish clients. With C a client then mixes with the least similar ones and loses its own
model (C_ii = 1); without C, W is p. That contradicts Figure 3(d), where with S alone clients mostly keep their own
models.
With 50-100 clients (Appendix D) `collaborators` are drawn in each round, the same for all clients. Each client mixes
among them and itself. (The code draws the round's cohort of 10 instead: protocol.cohort=10.)
Deviation: a client whose features span fewer than k directions uploads fewer. An angle is averaged over the directions
of the smaller subspace (Appendix A.2).

Several modalities (Section 5.3, Appendices B.2, B.3): FedSaC mixes all leaves inside a modality. Across modalities only
the classification layer is mixed, without complementarity, and S_ij is the cosine of the two classification layers. So
row i of that layer's W minimises Eq. 8 over all clients, with alpha C_ij - beta S_ij for clients j of i's modality and
-beta S_ij for the others. The sentence "The cooperation weights for the classification layers are derived by excluding
the complementarity term" may also mean all pairs: `heads` = "all". S and `snap` are as above in both cases. If all
clients have one modality, this is FedSaC. Without weights across modalities it is FedSaC inside each modality.
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
from fedbench.engine.contract import Client, ClientHook, Clock, Cohort, Conformance
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

    alpha: float = at_least(0, 0.9)  # weight of complementarity; .5 for pathological partitions
    beta: float = at_least(0, 1.4)  # weight of similarity; 1.6 for pathological partitions
    k: int = at_least(1, 3)  # directions of a subspace
    alpha_share: float = share(0.7)  # share of the rounds after which alpha is 0; the code: 1
    angles: str = one_of("principal", "greedy")  # "principal" angles, or the code's "greedy" matching
    centred: bool = False  # features are centred, so directions are principal components, as in the code
    collaborators: int = at_least(0, 0)  # number of clients drawn in a round to mix with; 0: the whole cohort

    paper: ClassVar[str] = "Yan et al., ICML 2024"

    @property
    def conformance(self) -> Conformance:
        """The paper's ablation removes a term of Eq. 8, but the upload stays the same."""
        return Conformance(inert={} if self.alpha else {"subspace/U": "it has no weight"})

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return frozenset({"finish"})

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Send U_i beside theta_i."""
        upload, memory = super().finish(work, client)
        products = features.products(work, client.data, client.task, self.centred)
        return {**upload, "subspace/U": features.directions(products, self.k)}, memory

    def graph(self, server: Tree, uploads: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        S = self.similarities(server, uploads, cohort)
        C, alpha = self.complementarity(uploads), self.alpha_in(cohort.clock)
        allowed = drawn_pairs(cohort, self.collaborators)
        return {"*": collaboration_graph(C, S, alpha, self.beta, cohort.weights, allowed, self.solver)}

    def complementarity(self, uploads: Tree) -> Tensor:
        """Return C [C, C] (Eqs. 6-7)."""
        return features.complementarity(uploads["subspace/U"], self.angles == "greedy")

    def alpha_in(self, clock: Clock) -> float:
        """Return alpha, or 0 in the rounds after `alpha_share` of them."""
        return self.alpha if clock.round < self.alpha_share * clock.rounds else 0.0


def collaboration_graph(
    C: Tensor, S: Tensor, alpha: float, beta: float, sizes: Tensor, allowed: Tensor, solver: str = "closed"
) -> Tensor:
    """Return W [C, C] of Eq. 8, from C and S [C, C], the clients' sample counts or shares [C], and who may mix.

        W_i = argmin_w sum_j (w_j - p_j)^2 + alpha C_ij w_j - beta S_ij w_j    s.t. sum_j w_j = 1, w_j >= 0,

    and w_j = 0 unless `allowed` (bool [C, C]) has i mix with j; p are the allowed clients' shares of the samples.
    The objective is |w - p|^2 + (alpha C_i - beta S_i)^T w up to a constant.
    """
    allowed = sent(allowed, S.device)
    p = sent(sizes, S.device).to(S.dtype) * allowed
    p = p / p.sum(1, keepdim=True)
    return mixing.closest(p, alpha * C - beta * S, allowed, solver)


def drawn_pairs(cohort: Cohort, collaborators: int) -> Tensor:
    """Return whom each client may mix with, bool [C, C]: itself and the `collaborators` drawn (0: all)."""
    count = len(cohort.ids)
    if not 0 < collaborators < count:
        return torch.ones(count, count, dtype=torch.bool)
    drawn = torch.randperm(count, generator=cohort.generator)[:collaborators]
    allowed = torch.eye(count, dtype=torch.bool)
    allowed[:, drawn] = True
    return allowed


@dataclass(frozen=True)
class MultimodalFedSaC(FedSaC):
    """FedSaC inside a modality, with classification layers mixed across modalities."""

    alpha: float = at_least(0, 0.7)  # weight of complementarity (Appendix B.3)
    beta: float = at_least(0, 1.2)  # weight of similarity (Appendix B.3)
    # classification layers mix without C "across" modalities or for "all" pairs; "apart": not across modalities
    heads: str = one_of("across", "all", "apart")

    # bodies are mixed inside a modality, classification layers across
    unfit: ClassVar[Mapping[str, str]] = {}

    def graph(self, server: Tree, uploads: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        """Return W of the classification layers, over all clients, and of the other leaves, inside a modality."""
        C, alpha = self.complementarity(uploads), self.alpha_in(cohort.clock)
        S, same = self.similarities_inside(server, uploads, cohort)
        allowed = drawn_pairs(cohort, self.collaborators)
        parameters = (alpha, self.beta, cohort.weights)
        body = collaboration_graph(C, S, *parameters, allowed & same, self.solver)
        if self.heads == "apart":
            return {"*": body}
        heads, _ = cohort.task.split(trees.plain(uploads), ("@head",))
        S_heads = self.similarities(server, heads, cohort)
        as_body = sent(same, S.device) & (self.heads == "across")
        C, S = torch.where(as_body, C, 0.0), torch.where(as_body, S, S_heads)
        return {"@head": collaboration_graph(C, S, *parameters, allowed, self.solver), "*": body}

    def similarities_inside(self, server: Tree, uploads: Tree, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Return S of each two clients of one modality, 0 of the others, and which are of one (bool), [C, C]."""
        count = len(cohort.ids)
        S = torch.zeros(count, count, dtype=torch.float64, device=uploads["subspace/U"].device)
        same = torch.zeros(count, count, dtype=torch.bool)
        for members, modality in cohort.by_modality():
            index = sent(members.nonzero().flatten(), S.device)
            own = trees.rows(modality.task.own(uploads), members)
            S[index[:, None], index] = self.similarities(server, own, modality)
            same |= members[:, None] & members
        return S, same
