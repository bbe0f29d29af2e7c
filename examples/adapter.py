"""FedAvg with an adapter: a linear layer between body and classifier that stays on its client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.parts.layers import linear
from fedbench.models.task import Task


@dataclass(frozen=True)
class Adapter(FedAvg):
    """FedAvg with a linear layer of the client's own on the features, added to them.

    Memory: adapter/* [N, ...]
    """

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "an example"

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        width = math.prod(task.shape_before(task.boundary))  # d
        adapter = trees.join(adapter=linear("fc", width, width, generator))
        return task.init(generator), trees.expand(adapter, population.clients)

    def start(self, client: Client) -> Tree:
        return {**client.message, **client.memory}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        z = client.task.features(work, batch.x, train=True, mask=batch.mask)
        return client.task.criterion(client.task.head(work, adapted(work, z)), batch)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        return trees.without(work, "adapter"), trees.join(adapter=trees.part(work, "adapter"))

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        return task.head(model, adapted(model, task.features(model, x)))

    def common(self, server: Tree, task: Task) -> Tree | None:
        return None  # no client has a model without an adapter


def adapted(work: Tree, z: Tensor) -> Tensor:
    """Return z + W z + b [B, d] for features z [B, d]."""
    adapter = trees.part(work, "adapter")
    return z + functional.linear(z, adapter["fc.weight"], adapter["fc.bias"])
