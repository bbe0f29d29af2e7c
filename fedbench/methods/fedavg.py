"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

Algorithm 1: w_{t+1} = sum_k (n_k / n) w_k. With `private` leaves it is the base of every method that averages a part of
the model: private leaves stay on their clients. With clients of several modalities each leaf is averaged over the
clients that have it.
Deviations: n counts the samples of the round's clients, so the weights sum to one. Local steps are those of the
protocol's optimiser, which need not be plain gradient steps.
Batch normalisation: affine parameters and running statistics are averaged like all other leaves that are not private.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import selectors
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client
from fedbench.engine.method import Method
from fedbench.models.task import Task


@dataclass(frozen=True)
class FedAvg(Method):
    """Size-weighted average of the clients' models.

    Server: * [...], the shared leaves
    Memory: * [N, ...] if private
    Message: * [...]
    Upload: * [...]
    """

    private: tuple[str, ...] = selectors(())  # leaves that never leave a client, see Task.select

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    unfit: ClassVar[Mapping[str, str]] = {}  # a leaf is averaged over the clients that have it

    @property
    def family(self) -> str:  # type: ignore[override]
        """A client with private leaves has a model of its own."""
        return "personalised" if self.private else "global"

    def shares(self, sizes: Tensor) -> Tensor | None:
        return None if "*" in self.private else sizes

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return one model: its shared leaves on the server, its private ones on every client."""
        private, shared = task.split(task.init(generator), self.private)
        return shared, trees.expand(private, population.clients)

    def start(self, client: Client) -> Tree:
        """Return the received leaves beside the client's own."""
        return {**client.message, **client.memory}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the shared leaves, keep the private ones."""
        private, shared = client.task.split(work, self.private)
        return shared, private
