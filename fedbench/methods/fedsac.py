"""FedSaC: Yan et al., Balancing Similarity and Complementarity for Federated Learning, ICML 2024.

Algorithm 1. Clients train on Eq. 9 (see `cosine`), then upload theta_i and U_i, the k leading singular directions of
their training samples' features before the classifier (Eq. 5). Server: S_ij = cos(theta_i, theta_j) (Eq. 4),
C_ij = cos of the mean principal angle of U_i and U_j (Eqs. 6-7), and row i of W minimises over the simplex
sum_j (W_ij - p_j)^2 + alpha C_ij W_ij - beta S_ij W_ij (Eq. 8): the projection of p - (alpha C_i - beta S_i) / 2.
alpha is 0 after 70 % of the rounds (Appendix B.1). Where the text gives way to the authors' code: fields of `cosine`,
and `angles`, `centred` and the values of alpha, beta, lambda and alpha_share.
As printed this comes close to FedAvg: models that start alike keep cosines of all but 1 (.9994 and more on digits after
20 rounds), so that S tells no clients apart, W is p without C and leans to the least alike with it (C_ii = 1), and no C
counts after 70 % of the rounds. FedCollab's label shift on digits, 20 rounds: 54.3 % (FedAvg 48.6); `similarity` =
"updates", as in the code, alone makes it 85.7.
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

from fedbench.core.errors import ConfigError, unknown
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Cohort
from fedbench.methods.parts import simplex, subspace
from fedbench.methods.parts.cosine import CosineMixing


@dataclass(frozen=True)
class FedSaC(CosineMixing):
    """Mixtures of clients with similar models and complementary data."""

    alpha: float = 0.9  # weight of complementarity; .5 where partitions are pathological
    beta: float = 1.4  # weight of similarity; 1.6 where partitions are pathological
    k: int = 3  # directions of a subspace
    alpha_share: float = 0.7  # share of the rounds after which alpha is 0; the code: 1
    angles: str = "principal"  # "principal", or the code's "greedy" matching
    centred: bool = False  # features minus their mean: principal components, as in the code
    collaborators: int = 0  # clients drawn a round to mix with; 0: the whole cohort

    paper: ClassVar[str] = "Yan et al., ICML 2024"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.angles not in ("principal", "greedy"):
            raise unknown("method.angles", self.angles, ("principal", "greedy"))
        for name, least in (("alpha", 0), ("beta", 0), ("k", 1), ("collaborators", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"method.{name} must be at least {least}, got {getattr(self, name)}")

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """For the subspace."""
        return frozenset({"finish"})

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Theta_i and U_i."""
        upload, memory = super().finish(work, client)
        U = subspace.directions(work, client.data, client.task, self.k, self.centred)
        return {**upload, "subspace/U": U}, memory

    def graph(self, server: Tree, uploads: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        """W from sizes, complementarity and similarity."""
        similarity = self.similarities(server, uploads, cohort)
        complementarity = subspace.complementarity(uploads["subspace/U"], self.angles == "greedy")
        early = cohort.clock.round < self.alpha_share * cohort.clock.rounds
        alpha = self.alpha if early else 0.0
        allowed = self._allowed(cohort).to(similarity.device)
        p = cohort.weights.to(similarity) * allowed
        p = p / p.sum(1, keepdim=True)
        return {"*": simplex.project(p - (alpha * complementarity - self.beta * similarity) / 2, allowed)}

    def _allowed(self, cohort: Cohort) -> Tensor:
        """Whom each client may mix with, bool [C, C]."""
        count = len(cohort.ids)
        if not 0 < self.collaborators < count:
            return torch.ones(count, count, dtype=torch.bool)
        drawn = torch.randperm(count, generator=cohort.generator)[: self.collaborators]
        allowed = torch.eye(count, dtype=torch.bool)
        allowed[:, drawn] = True
        return allowed
