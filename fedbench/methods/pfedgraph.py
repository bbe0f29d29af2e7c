"""pFedGraph: Ye et al., Personalized Federated Learning with Inferred Collaboration Graphs, ICML 2023.

Row i of the graph minimises over the simplex alpha sum_j (W_ij - p_j)^2 - sum_j W_ij S_ij, where S are the cosines
between models and p_j = n_j / n. This is the projection of p + S_i / (2 alpha). So it equals FedSaC with alpha = 0 and
beta = 1 / alpha. `CosineMixing` describes the fields shared with FedSaC, and where text and code differ.
If a round draws a part of the clients, the graph and p are over these. The other clients keep their last mixture.
Batch normalisation: statistics are mixed like weights, unless they are private. No cosine includes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedbench.config.fields import at_least, positive
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Cohort
from fedbench.methods.parts import mixing
from fedbench.methods.parts.mixing import CosineMixing


@dataclass(frozen=True)
class PFedGraph(CosineMixing):
    """Mixtures weighted by similarity and data size.

    Server: model/* [N, ...], mixtures; W [N, N]; initial/* [...] if updates; direction/* [N, ...] if directions
    Memory: * [N, ...] if private
    Message: * [...], the mixture; direction/* [...] if directions
    Upload: * [...]
    """

    alpha: float = positive(0.8)  # weight of closeness to p against similarity
    lam: float = at_least(0, 0.01)  # lambda, weight of the cosine to the received mixture

    paper: ClassVar[str] = "Ye et al., ICML 2023"

    def graph(self, server: Tree, uploads: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        """Return W from sizes and similarity."""
        similarity = self.similarities(server, uploads, cohort)
        p = sent(cohort.weights, similarity.device).to(similarity.dtype)
        return {"*": mixing.closest(p, -similarity / self.alpha, solver=self.solver)}
