"""FedCAC: Wu et al., Bold but Cautious: Unlocking the Potential of Personalized Federated Learning [...], ICCV 2023.

After local training from w_0 to w the criticality of an entry is |(w - w_0) w|. In each tensor the share tau of entries
with the highest criticality is critical. Q^k marks client k's critical entries. Two clients overlap by O_kl = 1 - |Q^k
- Q^l|_1 / (2 |Q^k|_1).
In round t = 1, 2, ... the server averages client k with all clients l of O_kl >= mean O + t / beta (max O - mean O)
into u^k, where mean and maximum are over pairs k != l. It averages all clients by n_k into w^g. The next round starts
from u^k in the critical entries and from w^g in the others. After round beta a client does not share its critical
entries, unless all overlaps are equal, as with two clients.

As in the authors' code (Fling) u^k is a plain mean, and an entry of zero criticality is not critical.

Deviations:
- Criticality up to 1e-10 counts as zero, so that rounding does not decide. Their code's limit is 1e-20, and where no
  entry moves all entries are critical.
- u^k and Q^k of a client that does not take part stay as they are. In their code all clients take part.

A client downloads two models, w^g and u^k. It uploads Q^k with one byte for each entry.
Batch normalisation: running statistics stay local, as in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import positive, selectors, share
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Cohort, Conformance
from fedbench.methods.parts.mixing import Mixing
from fedbench.models.task import Task

ZERO = 1e-10  # criticality up to this counts as zero


@dataclass(frozen=True)
class FedCAC(Mixing):
    """Critical entries come from clients with similar critical entries, all others from the global model.

    Server: model/* [N, ...], u^k; common/* [...], w^g; W [N, N]
    Memory: * [N, ...] if private; critical/* [N, ...], Q^k
    Message: * [...], u^k; common/* [...], w^g
    Upload: * [...]; critical/* [...], Q^k
    """

    private: tuple[str, ...] = selectors(("@stats",), may_be_empty=True)
    tau: float = share(0.5)  # share of critical entries in a tensor
    beta: float = positive(100.0)  # round after which clients do not share critical entries

    paper: ClassVar[str] = "Wu et al., ICCV 2023"

    @property
    def conformance(self) -> Conformance:
        """Whom a client mixes with is decided by all its masks; a bias before batch normalisation has no gradient."""
        return Conformance(inert={"critical/*": "a threshold on the overlap of all masks together"})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start all from one model, with no entry critical."""
        server, memory = super().init(task, population, generator)
        common = trees.row(trees.under(server, "model"), 0)
        none = {name: torch.zeros_like(leaf, dtype=torch.bool) for name, leaf in task.weights(common).items()}
        critical = trees.expand(none, population.clients)
        return {**server, **trees.join(common=common)}, {**memory, **trees.join(critical=critical)}

    # ---- server

    def graph(self, server: Tree, uploads: Tree, cohort: Cohort) -> dict[str, Tensor]:
        """Return W [C, C]: equal weights of a client and of all whose critical entries overlap enough with its own."""
        overlap = overlaps(trees.under(uploads, "critical"))
        alone = torch.eye(len(overlap), dtype=torch.bool, device=overlap.device)
        if len(overlap) == 1:
            return {"*": alone.to(overlap)}
        average, highest = overlap[~alone].mean(), overlap[~alone].max()
        threshold = average + (cohort.clock.round + 1) / self.beta * (highest - average)
        chosen = (alone | (overlap >= threshold)).to(overlap)
        return {"*": chosen / chosen.sum(1, keepdim=True)}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Mix u^k for the cohort, average w^g."""
        return {**super().aggregate(server, uploads, cohort), **trees.join(common=cohort.mean(trees.plain(uploads)))}

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send each client its u^k, and w^g."""
        common = trees.expand(trees.under(server, "common"), len(cohort.ids))
        return {**super().send(server, cohort), **trees.join(common=common)}

    def common(self, server: Tree, task: Task) -> Tree | None:
        """Return w^g, unless a part of the model is private."""
        return super().common(trees.under(server, "common"), task)

    # ---- client

    def start(self, client: Client) -> Tree:
        """Return u^k where Q^k, w^g elsewhere, beside the private leaves."""
        own = trees.plain(client.message)
        model = trees.under(client.message, "common")
        for name, critical in trees.under(client.memory, "critical").items():
            model[name] = torch.where(critical, own[name], model[name])
        return {**model, **trees.plain(client.memory)}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the model and Q^k, keep Q^k."""
        before, (model, private) = self.start(client), super().finish(work, client)
        weights = client.task.weights(model)
        moved = {name: most(((leaf - before[name]) * leaf).abs(), self.tau) for name, leaf in weights.items()}
        critical = trees.join(critical=moved)
        return {**model, **critical}, {**private, **critical}


def overlaps(masks: Tree) -> Tensor:
    """Return O [C, C] of `masks` (bool [C, ...]); counts are exact up to 2^24 entries of a tensor."""
    rows = [leaf.flatten(1).to(torch.float32) for leaf in masks.values()]
    both = torch.stack([each @ each.t() for each in rows]).sum(0, dtype=torch.float64)
    count = both.diagonal()
    apart = count.unsqueeze(1) + count - 2 * both
    return 1 - apart / (2 * count.clamp(min=1)).unsqueeze(1)


def most(values: Tensor, share: float) -> Tensor:
    """Return which of `values` [...] are among the highest `share` of them and not zero, bool [...]."""
    count = int(share * values.numel())
    if count == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    threshold = values.flatten().topk(count).values[-1]
    return (values >= threshold) & (values > ZERO)
