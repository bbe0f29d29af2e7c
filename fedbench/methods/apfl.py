"""APFL: Deng et al., Adaptive Personalized Federated Learning, 2020.

Client i keeps a personal model v_i. It is scored on the mixture v^ = alpha_i v_i + (1 - alpha_i) w with the global
model w. Algorithm 1 takes two steps on each mini-batch, w <- w - eta grad f(w) and v_i <- v_i - eta alpha_i grad f(v^).
Both gradients are taken at the old values. The server averages w.
With `alpha_lr` alpha adapts: once a round, before the other steps, alpha_i loses alpha_lr <grad f(v^), v_i - w> and is
clipped to [0, 1].

Deviations:
- Averages are weighted by n_i / n. The paper's are uniform.
- A protocol's gradient clipping applies to the joint norm of both gradients.

The authors' code (FedTorch) differs from the paper in five ways, and none of them is followed. It mixes the logits of
v_i and w instead of their weights. It steps w before it takes v_i's gradient. It steps alpha after the steps of a
round's first mini-batch. Its gradient of alpha is the product of v_i - w with a mean of the gradients in v_i and w, by
alpha. It adds .02 alpha to it.

Batch normalisation: w's running statistics are shared. v^ has its own; they are private and not mixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import positive, share
from fedbench.config.schema import LocalConfig, OptimizerConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Conformance, Stage
from fedbench.engine.method import Method
from fedbench.models.task import Task


@dataclass(frozen=True)
class APFL(Method):
    """A mixture of the global and a local model on every client.

    Server: * [...], w
    Memory: personal/* [N, ...], v_i; alpha [N]
    Message: * [...], w
    Upload: * [...], w
    """

    alpha: float = share(0.5)  # share of the local model; its first value if alpha adapts
    alpha_lr: float | None = positive(None)  # learning rate of alpha; null: alpha stays constant

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Deng et al., 2020"

    @property
    def conformance(self) -> Conformance:
        return Conformance(inert={} if self.alpha_lr else {"alpha": "without method.alpha_lr it stays as it is"})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start w and all v_i from the same model."""
        model = task.init(generator)
        memory = trees.join(personal=trees.expand(model, population.clients))
        memory["alpha"] = torch.full((population.clients,), self.alpha)
        return model, memory

    def start(self, client: Client) -> Tree:
        """Return shared/*, w, personal/*, v_i with the statistics of v^, and alpha."""
        return {**trees.join(shared=client.message), **client.memory}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Make one step on alpha where it adapts, then train w and v_i together."""
        both = Stage(self.loss, moves=("shared/*", "personal/*"))
        if self.alpha_lr is None:
            return (both,)
        plain = OptimizerConfig(lr=self.alpha_lr)
        return Stage(self.mixed_loss, moves=("alpha",), iterations=1, optimizer=plain), both

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return the sum f(w) + f(v^), w held fixed within v^."""
        held = {**work, **{k: v.detach() for k, v in work.items() if k.startswith("shared/")}}
        return client.task.loss(trees.part(work, "shared"), batch) + self.mixed_loss(held, client, batch)

    def mixed_loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return the loss f(v^)."""
        return client.task.loss(self.model(work, client), batch)

    def model(self, work: Tree, client: Client) -> Tree:
        """Return the mixture v^ = alpha v + (1 - alpha) w."""
        own, shared = trees.part(work, "personal"), trees.part(work, "shared")
        alpha = work["alpha"].clamp(0, 1)
        mixed = {k: alpha * v + (1 - alpha) * shared[k] for k, v in client.task.weights(own).items()}
        return {**own, **mixed}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload w, keep v_i and alpha."""
        own = trees.join(personal=trees.part(work, "personal"))
        return trees.part(work, "shared"), {**own, "alpha": work["alpha"].clamp(0, 1)}
