"""GPFL: Zhang et al., Simultaneously Learning Global and Personalized Feature Information for pFL, ICCV 2023.

Features z go through a conditional valve, V(z, c) = relu(z (gamma(c) + 1) + beta(c)). gamma and beta are each a linear
layer, ReLU and layer normalisation (Eqs. 3, 4). Client i minimises (Eqs. 8 to 11)
CE(h_i(V(z, p_i)), y) + CE(cos(V(z, g), E), y) + lambda ||V(z, g) - E^_y|| + mu ||V|| + mu ||E||
over body, valve, class embeddings E and its own head h_i. E^ are the received E. The conditions are fixed in a round: g
= mean_u E^_u and p_i = sum_u a_iu E^_u / K, where a_i are client i's shares of classes (Eqs. 5, 7). Body, V and E are
averaged by n_i / n. A client is scored on h_i(V(z, p_i)).

The code differs in four ways, and each is a setting:
- `conditions` come from the client's own last E, before it receives the next one. They start at zero.
- p_i is not `divided` by K.
- The `distance` to E^ is one norm over a mini-batch, not a mean over its samples.
- V and E have weight decay, so their norms are `squared` and halved.

Deviations:
- The shares a_i count all samples. The code's loader leaves out samples that fill no mini-batch.
- With `conditions: own` a client that misses rounds has the conditions of its last round. In the code it receives E in
  every round, so its conditions are one round old.

Batch normalisation: affine parameters and running statistics below the head are shared and averaged. In the code
statistics stay on the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least, one_of
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Conformance, Stage
from fedbench.engine.method import ONE_NETWORK, Method
from fedbench.methods.parts.layers import linear
from fedbench.models.task import Task

LEAST = 1e-12  # of a sum of squares under a root, whose slope at zero is infinite


@dataclass(frozen=True)
class GPFL(Method):
    """A shared body and a valve that separates global features from features for the client's personal head.

    Server: * [...], the body; valve/**; classes/embeddings [K, d]
    Memory: * [N, ...], the head; own/shares [N, K]; own/conditions [N, 2, d] if conditions are own, g and p_i
    Message: * [...], the body; valve/**; classes/embeddings [K, d]
    Upload: * [...], the body; valve/**; classes/embeddings [K, d]
    """

    lam: float = at_least(0, 0.01)  # lambda, weight of the distance to the received embeddings
    mu: float = at_least(0, 0.1)  # weight of the norms of valve and embeddings
    conditions: str = one_of("received", "own")  # from the "received" embeddings, or the client's "own" last ones
    divided: bool = True  # p_i is a mean over classes, as in Eq. 7, not a sum
    distance: str = one_of("sample", "batch")  # the mean of the norms of each "sample", or one norm of the "batch"
    squared: bool = False  # true: the norms of valve and embeddings are squared and halved

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Zhang et al., ICCV 2023"
    unfit: ClassVar[Mapping[str, str]] = {**ONE_NETWORK, "regression": "learns embeddings of classes"}

    @property
    def conformance(self) -> Conformance:
        return Conformance(inert={"own/shares": "a client's samples stay the same"})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return one model, its head on every client, a valve with torch's initial weights, embeddings from N(0, 1)."""
        head, body = task.split(model := task.init(generator), ("@head",))
        width = task.features(model, torch.zeros(1, *task.shape)).shape[1]
        valve: Tree = {}
        for name in ("gamma", "beta"):
            valve |= linear(name, width, width, generator)
            valve |= {f"{name}.scale": torch.ones(width), f"{name}.shift": torch.zeros(width)}
        embeddings = torch.randn(task.classes, width, generator=generator)
        counts = population.label_counts
        own = {"shares": (counts / counts.sum(1, keepdim=True).clamp(min=1)).float()}
        if self.conditions == "own":
            own["conditions"] = torch.zeros(population.clients, 2, width)
        memory = {**trees.expand(head, population.clients), **trees.join(own=own)}
        return {**body, **trees.join(valve=valve, classes={"embeddings": embeddings})}, memory

    def start(self, client: Client) -> Tree:
        """Return body, valve, embeddings and head, and the conditions of the round [2, d]."""
        conditions = (
            client.memory["own/conditions"]
            if self.conditions == "own"
            else self.averages(client.message["classes/embeddings"], client.memory["own/shares"])
        )
        return {**client.message, **trees.plain(client.memory), "conditions": conditions}

    def averages(self, embeddings: Tensor, shares: Tensor) -> Tensor:
        """Return g and p_i [2, d] of embeddings [K, d] and a client's shares of classes [K]."""
        own = shares.to(embeddings.dtype) @ embeddings
        return torch.stack([embeddings.mean(0), own / len(shares) if self.divided else own])

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train all together, under fixed conditions."""
        return (Stage(self.loss, fixed=("conditions",)),)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return the sum of Eq. 11."""
        task, embeddings = client.task, work["classes/embeddings"]
        z = task.features(work, batch.x, train=True, mask=batch.mask)
        common, own = (turned(work, z, condition) for condition in work["conditions"].unbind())
        cosines = functional.normalize(common, dim=1) @ functional.normalize(embeddings, dim=1).t()
        apart = (common - client.message["classes/embeddings"][batch.y]).square().sum(1)
        distance = batch.mean(root(apart)) if self.distance == "sample" else root(batch.sum(apart))
        total = task.criterion(task.head(work, own), batch) + task.criterion(cosines, batch) + self.lam * distance
        for name in ("valve", "classes"):
            part = dict(sorted(trees.part(work, name).items()))  # sums do not depend on an order
            square = trees.dot(part, part)
            total = total + self.mu * (square / 2 if self.squared else root(square))
        return total

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload all but the head; own conditions are of the trained embeddings."""
        kept = {name: work.get(name, leaf) for name, leaf in client.memory.items()}
        if self.conditions == "own":
            kept["own/conditions"] = self.averages(work["classes/embeddings"], client.memory["own/shares"])
        return {name: leaf for name, leaf in work.items() if name not in kept and name != "conditions"}, kept

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """Return h_i(V(z, p_i))."""
        return task.head(model, turned(model, task.features(model, x), model["conditions"][1]))


def turned(model: Tree, z: Tensor, condition: Tensor) -> Tensor:
    """Return V(z, c) [B, d] of features z [B, d] and a condition c [d]."""
    valve, made = trees.part(model, "valve"), []
    for name in ("gamma", "beta"):
        hidden = functional.linear(condition, valve[f"{name}.weight"], valve[f"{name}.bias"]).relu()
        made.append(functional.layer_norm(hidden, hidden.shape, valve[f"{name}.scale"], valve[f"{name}.shift"]))
    return (z * (made[0] + 1) + made[1]).relu()


def root(squares: Tensor) -> Tensor:
    """Return the square root, with a slope of zero at zero."""
    return squares.clamp(min=LEAST).sqrt()
