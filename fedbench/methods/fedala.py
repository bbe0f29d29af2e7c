"""FedALA: Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023.

Algorithm 1, lines 6 to 16: in the top layers a client starts from w = w^k + (w^g - w^k) * A, where w^k is its last
local model, w^g the received model, and A has a weight in [0, 1] for each entry. A starts at 1. In the layers below, w
= w^g. Before a client trains, and before it is scored, it learns A on s % of its samples and keeps all else fixed: A <-
clip(A - eta dF/dw * (w^g - w^k), 0, 1). The server averages as FedAvg does.

Deviations:
- A is learned for `start_epochs` epochs in the second round and for one epoch in later rounds, even if a later round is
  the client's first. The authors' first learning continues until the standard deviation of the losses of its last ten
  epochs is below a threshold (.01 in their README, .1 in their code), so it takes at least 11 epochs.
- A is learned from the first s % of each mini-batch. The authors draw a contiguous part of the samples in each round.
- If a client is not drawn, the A and the mixture that it is scored with are discarded. The authors' code keeps both,
  and the mixture becomes its local model.

Batch normalisation: running statistics stay local, as in the authors' code. Learning A does not change them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fedbench.config.fields import at_least, selectors, share
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.methods.fedavg import FedAvg
from fedbench.models.task import Task, gradient


@dataclass(frozen=True)
class FedALA(FedAvg):
    """FedAvg whose clients learn, entry by entry, how much of the global model's top layers to take.

    Memory: * [N, ...] if private; own/* [N, ...], w^k of the top layers; A/* [N, ...]
    """

    private: tuple[str, ...] = selectors(("@stats",), may_be_empty=True)
    top: tuple[str, ...] = selectors(("@head",), among="weights")  # leaves that have an A, see Task.select
    eta: float = at_least(0, 1.0)  # learning rate of A
    samples: float = share(0.8, above=True)  # s, the share of the samples that A is learned from
    start_epochs: int = at_least(1, 11)  # epochs of learning A in the second round; later rounds have one

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Zhang et al., AAAI 2023"

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start as FedAvg, with A of ones."""
        server, memory = super().init(task, population, generator)
        top = trees.expand(task.weights(task.split(server, self.top)[0]), population.clients)
        return server, {**memory, **trees.join(own=top, A=trees.map_leaves(torch.ones_like, top))}

    def start(self, client: Client) -> Tree:
        """Return the mixed model, and A beside it."""
        A = trees.under(client.memory, "A")
        received = {**client.message, **trees.plain(client.memory)}
        return {**received, **self.mixed(A, client), **trees.join(A=A)}

    def mixed(self, A: Tree, client: Client) -> Tree:
        """Return the top layers w^k + (w^g - w^k) * A."""
        own = trees.under(client.memory, "own")
        return {name: torch.lerp(own[name], client.message[name], weight) for name, weight in A.items()}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Learn A, then train the model as FedAvg does.

        In round 0 a stage without epochs holds the place of A's, as clients keep an optimiser's state by place.
        """
        learn = self.adapt(local, clock) or (Stage(direction=self.learn, moves=(), epochs=0, order=1),)
        return (*learn, Stage(self.loss, fixed=("A/*",)))

    def adapt(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Learn A, once there is a local model that differs from the global one."""
        epochs = self.start_epochs if clock.round == 1 else 1
        return (Stage(direction=self.learn, moves=(), epochs=epochs, order=1),) if clock.round else ()

    def learn(self, work: Tree, client: Client, batch: Batch) -> Tree:
        """Return A after a projected step, and the model mixed by it."""
        A, model, task = trees.under(work, "A"), trees.plain(work), client.task
        some = first(batch, self.samples)
        free = {name: leaf for name, leaf in model.items() if name in A or task.is_buffer(name)}
        slope, _ = gradient(lambda top: self.loss({**model, **top}, client, some), free, task)
        own = trees.under(client.memory, "own")
        A = {
            name: (weight - self.eta * slope[name] * (client.message[name] - own[name])).clamp(0, 1)
            for name, weight in A.items()
        }
        return {**self.mixed(A, client), **trees.join(A=A)}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the shared leaves; keep the private ones, the top layers and A."""
        A, model = trees.under(work, "A"), trees.plain(work)
        shared, private = super().finish(model, client)
        return shared, {**private, **trees.join(own={name: model[name] for name in A}, A=A)}

    def model(self, work: Tree, client: Client) -> Tree:
        """Return the model without A."""
        return trees.plain(work)


def first(batch: Batch, share: float) -> Batch:
    """Return a batch that counts the first `share` of its real samples, at least one."""
    chosen = torch.arange(len(batch.y), device=batch.y.device) < (share * batch.count).floor().clamp(min=1)
    return replace(batch, mask=chosen if batch.mask is None else batch.mask & chosen)
