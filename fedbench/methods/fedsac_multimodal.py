"""FedSaC of several modalities: Yan et al., ICML 2024, Section 5.3 and Appendices B.2, B.3.

Inside a modality FedSaC as it is, of all leaves. Across modalities only the classification layer is mixed: there Eq. 8
has no complementarity, and S_ij is the cosine of the two classification layers. So row i of the classification layers'
W minimises over all clients sum_j (W_ij - p_j)^2 + cost_ij W_ij with cost_ij = alpha C_ij - beta S_ij for j of i's
modality and - beta S_ij for the others. "The cooperation weights for the classification layers are derived by excluding
the complementarity term" may also be meant of all pairs: `heads` = "all".
As pFedGraph's code, which FedSaC follows, S is of the updates since theta_0, and 1 above .9, in both places: cosines of
parameters that start alike tell no clients apart (Eq. 4 as printed: `similarity` = "parameters", `snap` = null).
With clients of one kind this is FedSaC; without weights across modalities, FedSaC inside each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, one_of
from fedbench.core import trees
from fedbench.core.transfer import sent
from fedbench.core.trees import Tree
from fedbench.engine.contract import Cohort
from fedbench.methods.fedsac import FedSaC


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

    unlike: ClassVar[bool] = True

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
