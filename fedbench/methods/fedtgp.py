"""FedTGP: Zhang et al., Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning, AAAI 2024.

FedProto whose global prototypes T_c are trained. A network with an embedding for each class and two linear layers makes
them. In each round the server trains it on all received prototypes P. For each (P, c) the loss is the cross-entropy of
the scores -(||P - T_j|| + margin [j = c]). So a prototype must be nearer to its own T_c than to any other by the
margin. The margin is the largest gap between a class's average prototype and the nearest other one, at most `margin`.
Clients minimise CE + lam MSE(f(x), T_y). Inference gives the class of the nearest T_c. The defaults are those of the
authors' run_me.sh. As in the code, every class has a T_c, even if no client of the round has it. The network is kept
over rounds, its optimiser is not. A class's average counts clients equally.

Deviations:
- The classifier predicts before the first round's training. The code does not score then.
- Features have the networks' own width. The code pools them to one width.
- Prototypes are of the trained model. The code computes them before it saves that model, so from the one of the round
  before.
- Traffic counts a row for every class. The code sends those of a client's own classes.

Batch normalisation: as in FedProto, statistics are the client's own, and prototypes are computed in evaluation mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least, one_of, positive
from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Cohort, Conformance
from fedbench.engine.optim import fit
from fedbench.methods.fedproto import FedProto
from fedbench.methods.parts import features
from fedbench.methods.parts.layers import linear
from fedbench.models.task import Task


@dataclass(frozen=True)
class FedTGP(FedProto):
    """Each client has its own model; the server trains prototypes that are far apart.

    Server: tgp/embedding [K, d]; tgp/** [...]; trained []
    """

    lam: float = at_least(0, 10.0)  # weight of the pull towards T
    weighting: str = one_of("clients", "samples")  # weights in a class's average prototype, for the margin
    margin: float = at_least(0, 100.0)  # largest margin
    epochs: int = at_least(0, 100)  # the server's epochs over the round's prototypes
    batch: int = at_least(1, 10)  # prototypes in a step
    lr: float = positive(0.01)  # learning rate of the server (SGD)

    paper: ClassVar[str] = "Zhang et al., AAAI 2024"

    @property
    def conformance(self) -> Conformance:
        return Conformance(draws_by_position="prototypes are shuffled in their clients' order", settings={"epochs": 3})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start all clients from one model; torch's initial values for the network behind T."""
        server, memory = super().init(task, population, generator)
        width = server["sums"].shape[2]
        tgp = {"embedding": torch.randn(task.classes, width, generator=generator)}
        for layer in ("0", "1"):
            tgp |= linear(layer, width, width, generator)
        return {**trees.join(tgp=tgp), "trained": torch.zeros(())}, memory

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send T, once it is trained."""
        T = prototypes(trees.part(server, "tgp"))
        message = {"classes/means": T, "classes/present": (server["trained"] > 0).expand(len(T))}
        return trees.expand(message, len(cohort.ids))

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Train the network behind T on the uploads of the round's clients."""
        sums, counts = uploads["sums"], uploads["counts"]  # [C, K, d], [C, K]
        points, labels = features.class_points(sums, counts)
        means, known = self.means(sums, counts)
        margin = largest_gap(means[0, known[0]]).clamp(max=self.margin)
        steps = features.shuffled(len(labels), self.epochs, self.batch, cohort.generator)

        def loss(tgp: Tree, drawn: Tree) -> Tensor:
            return contrast(points[drawn["rows"]], labels[drawn["rows"]], prototypes(tgp), margin)

        tgp = fit(trees.part(server, "tgp"), loss, steps, OptimizerConfig(lr=self.lr))
        return {**trees.join(tgp=tgp), "trained": torch.ones_like(server["trained"])}


def prototypes(tgp: Tree) -> Tensor:
    """Return T [K, d]."""
    hidden = functional.linear(tgp["embedding"], tgp["0.weight"], tgp["0.bias"]).relu()
    return functional.linear(hidden, tgp["1.weight"], tgp["1.bias"])


def contrast(points: Tensor, labels: Tensor, T: Tensor, margin: Tensor) -> Tensor:
    """Return the cross-entropy of -(||P - T_j|| + margin [j = c]) over prototypes P [B, d] of classes c [B]."""
    distances = torch.cdist(points, T, compute_mode="donot_use_mm_for_euclid_dist")
    own = functional.one_hot(labels, len(T)).to(distances.dtype)
    return functional.cross_entropy(-(distances + margin * own), labels)


def largest_gap(means: Tensor) -> Tensor:
    """Return the largest distance of one of `means` [M, d] from its nearest other, a scalar; infinite of one alone."""
    distances = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.fill_diagonal_(torch.inf).amin(1).max()
