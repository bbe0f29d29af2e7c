"""FedPHP: Li et al., FedPHP: Federated Personalization with Inherited Private Models, ECML PKDD 2021.

FedAvg whose client k also keeps a private model v_k. v_k starts at the initial model. The client minimises (1 - lambda)
F_k(w) + lambda R(w), where R keeps w near v_k:

- `kd`: R is the mean cross-entropy of w's softmax with the softmax of v_k's logits over a temperature.
- `mmd`: R is the squared maximum mean discrepancy of both models' features, by five Gaussian kernels whose widths
  follow the mini-batch.

After training v_k = m v_k + (1 - m) w with m = q min(1, c / floor(share T)). c counts the earlier rounds that the
client took part in, and share T those that it takes part in out of T. v_k is scored. Inside coalitions or modalities
`share` counts their members in the round. It then differs from round to round if not all clients take part.
As in the authors' code, the temperature 4 divides only v_k's logits, and v_k is in evaluation mode. PFLlib's version
computes m from rounds, has four fixed widths, and scores w as trained.
Batch normalisation: w's statistics are averaged. v_k's are mixed like its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import one_of, positive, share
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Cohort, Conformance
from fedbench.engine.method import Method
from fedbench.methods.parts.features import discrepancy, squared_distances
from fedbench.models.task import Task

KERNELS = (0.25, 0.5, 1.0, 2.0, 4.0)  # widths in mean squared distances


@dataclass(frozen=True)
class FedPHP(Method):
    """Each client keeps a moving average of its trained models, which teaches the next model.

    Server: * [...], w
    Memory: personal/* [N, ...], v_k; count [N], c
    Message: * [...], w; share []
    Upload: * [...], w
    """

    lam: float = share(0.1)  # lambda, weight of R against the loss
    transfer: str = one_of("kd", "mmd")  # R compares outputs ("kd") or features ("mmd")
    temperature: float = positive(4.0)  # temperature of v_k's outputs
    q: float = share(0.9)  # largest weight of the old v_k in the new one

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Li et al., ECML PKDD 2021"

    @property
    def unfit(self) -> Mapping[str, str]:
        """A leaf is averaged over the clients that have it."""
        return {"regression": "compares probabilities of classes"} if self.transfer == "kd" else {}

    @property
    def conformance(self) -> Conformance:
        return Conformance(sends_by_cohort="the share of clients that are drawn is sent")

    # ---- server

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start w and every v_k from the same model."""
        model = task.init(generator)
        memory = trees.join(personal=trees.expand(model, population.clients))
        return model, {**memory, "count": torch.zeros(population.clients)}

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send w, and the share of this server's clients that are drawn, whether or not their uploads will arrive."""
        leaf = next(iter(server.values()))
        share = torch.full((), len(cohort.ids) / len(cohort.served), dtype=leaf.dtype, device=leaf.device)
        return trees.expand({**server, "share": share}, len(cohort.ids))

    # ---- client

    def start(self, client: Client) -> Tree:
        return {name: leaf for name, leaf in client.message.items() if name != "share"}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return (1 - lambda) F_k(w) + lambda R(w)."""
        task, private = client.task, trees.part(client.memory, "personal")
        z = task.features(work, batch.x, train=True, mask=batch.mask)
        logits, target = task.head(work, z), task.features(private, batch.x)
        if self.transfer == "mmd":
            R = discrepancy(z, target, batch, widths(z, target, batch))
        else:
            teacher = (task.head(private, target) / self.temperature).softmax(1)
            R = batch.mean(-(teacher * functional.log_softmax(logits, 1)).sum(1))
        return (1 - self.lam) * task.criterion(logits, batch) + self.lam * R

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload w, keep v_k."""
        return work, {**trees.join(personal=self.model(work, client)), "count": client.memory["count"] + 1}

    def model(self, work: Tree, client: Client) -> Tree:
        """Return v_k = m v_k + (1 - m) w."""
        expected = (client.message["share"] * client.clock.rounds + 1e-6).floor().clamp(min=1)
        m = self.q * (client.memory["count"] / expected).clamp(max=1)
        return {name: leaf + m * (client.memory[f"personal/{name}"] - leaf) for name, leaf in work.items()}

    def personal(self, client: Client) -> Tree:
        """Return v_k as it is kept."""
        return trees.part(client.memory, "personal")


def widths(z: Tensor, v: Tensor, batch: Batch) -> list[Tensor]:
    """Return the kernels' widths: multiples of the mean squared distance of two different rows of both [B, d]."""
    pairs = squared_distances(z, z) + squared_distances(v, v) + 2 * squared_distances(z, v)
    mean = batch.mean(batch.mean(pairs.detach())) * batch.count / (4 * batch.count - 2) + 1e-8
    return [mean * scale for scale in KERNELS]
