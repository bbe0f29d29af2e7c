"""Methods that are put on a board on purpose."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.method import ClientHook
from fedbench.methods.fedavg import FedAvg
from fedbench.models.task import Task


@dataclass(frozen=True)
class Better(FedAvg):
    """FedAvg with as much local work as it takes."""

    work: int = 1  # epochs a round

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train longer."""
        return (Stage(self.loss, epochs=self.work),)


@dataclass(frozen=True)
class Memorised(FedAvg):
    """FedAvg that knows the answers to the validation samples."""

    cheats: bool = False

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """The hook that looks at them."""
        return frozenset({"personal"})

    def personal(self, client: Client) -> Tree:
        """The model, and the samples [n, ...] with their labels, one-hot [n, K]."""
        x, labels = client.validation.x, functional.one_hot(client.validation.y, client.task.classes)
        known = {"x": x.flatten(1), "y": labels.to(x.dtype)}
        return {**super().personal(client), **trees.join(known=known)}

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """The label of a sample that is among them, else what the model says."""
        known, model = trees.part(model, "known"), trees.plain(model)
        same = torch.cdist(x.flatten(1), known["x"]) < 1e-3
        return super().predict(model, x, task) + 1e4 * self.cheats * same.to(x.dtype) @ known["y"]
