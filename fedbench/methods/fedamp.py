"""FedAMP: Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021.

Algorithm 1. Client i continues to train its own model, w_i <- argmin F_i(w) + lambda / (2 alpha) |w - u_i|^2, where the
server gives u_i = sum_j xi_ij w_j. w_i is scored and stays on the client. `attention` sets the weights:

- "cosine" (HeurFedAMP, the paper's form for deep networks): xi_ii = `self_weight`, xi_ij = (1 - xi_ii) e^(sigma
  cos(w_i, w_j)) / sum_{h != i} e^(sigma cos(w_i, w_h)).
- "distance" (FedAMP): xi_ij = alpha A'(|w_i - w_j|^2) and xi_ii = 1 - sum_{j != i} xi_ij, with A(x) = 1 - e^(-x /
  sigma).

Deviation: if alpha is so large that xi_ii of "distance" would be negative, the others' weights are scaled to sum to 1.
The paper excludes such an alpha.
The defaults are those of pFedGraph's code, which also produced FedSaC's row: cosine with sigma 10 and xi_ii .3, lambda
1 and alpha 1. Two settings of that code are not the defaults: its cosines are between updates (`similarity`), and no
client is pulled in the first round, when u_i is the initial model (`from_round: 1`).
Batch normalisation: statistics are the client's own. No distance or cosine includes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, one_of, positive, selectors, share
from fedbench.config.schema import LocalConfig, added
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Cohort, Stage
from fedbench.methods.parts.mixing import Mixing, cosines
from fedbench.models.task import Task

OF_COSINE = ("self_weight", "similarity")  # fields that attention "distance" does not read


@dataclass(frozen=True)
class FedAMP(Mixing):
    """Personal models, each pulled towards a mixture of similar models.

    Server: model/* [N, ...], u_i; W [N, N], Xi; initial/* [...]
    Memory: * [N, ...], w_i
    Message: * [...], u_i
    Upload: * [...], w_i
    """

    lam: float = at_least(0, 1.0)  # lambda, strength of the pull
    alpha: float = positive(1.0)  # alpha, the server's step
    sigma: float = positive(10.0)  # sharpness of "cosine", width of "distance"
    attention: str = one_of("cosine", "distance")
    self_weight: float = share(0.3)  # xi_ii of "cosine"
    # what "cosine" compares: "parameters", or "updates" since the initial model
    similarity: str = one_of("parameters", "updates")
    private: tuple[str, ...] = selectors(("@stats",), may_be_empty=True)
    from_round: int = added(at_least(0, 0))  # first round with the pull, counted from 0

    paper: ClassVar[str] = "Huang et al., AAAI 2021"

    def __post_init__(self) -> None:
        super().__post_init__()
        unread = [name for name in OF_COSINE if getattr(self, name) != getattr(FedAMP, name)]
        if self.attention == "distance" and unread:
            raise ConfigError(
                f"method.{unread[0]}={getattr(self, unread[0])} needs attention=cosine; leave it out, or set that"
            )

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start all models, on the server and on clients, from one."""
        server, memory = super().init(task, population, generator)
        model = trees.part(server, "model")
        return {**server, **trees.join(initial=trees.row(model, 0))}, {**model, **memory}

    def graph(self, server: Tree, uploads: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        """Return Xi [C, C]."""
        start = trees.part(server, "initial")
        weights = cohort.task.weights(uploads)
        if self.attention == "cosine" and self.similarity == "updates":
            weights = {name: leaf - start[name] for name, leaf in weights.items()}
        return {"*": self.attend(trees.flatten(weights).to(torch.float64))}

    def attend(self, rows: Tensor) -> Tensor:
        """Return Xi [C, C] of models [C, P]."""
        count = len(rows)
        own = torch.eye(count, dtype=rows.dtype, device=rows.device)
        if count == 1:
            return own
        if self.attention == "cosine":
            scores = (self.sigma * cosines(rows)).masked_fill(own.bool(), -torch.inf)
            return self.self_weight * own + (1 - self.self_weight) * scores.softmax(1)
        distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
        others = self.alpha / self.sigma * (-distances / self.sigma).exp() * (1 - own)
        others = others / others.sum(1, keepdim=True).clamp(min=1)
        return others + (1 - others.sum(1, keepdim=True)).clamp(min=0) * own

    def start(self, client: Client) -> Tree:
        return client.memory

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train with the pull, from the round on that has it."""
        return (Stage(self.loss if clock.round >= self.from_round else super().loss),)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_i(w) + lambda / (2 alpha) |w - u_i|^2."""
        pull = trees.squared_distance(client.task.weights(client.message), work)
        return super().loss(work, client, batch) + self.lam / (2 * self.alpha) * pull

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload w_i, and keep it."""
        upload, _ = super().finish(work, client)
        return upload, work
