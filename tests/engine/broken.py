"""A method of which one hook fails."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbench.config.schema import LocalConfig
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Cohort, Preparation, Stage
from fedbench.methods.fedavg import FedAvg
from fedbench.models.task import Task


@dataclass(frozen=True)
class Broken(FedAvg):
    """FedAvg of which one hook fails, from the second round on where it knows the round."""

    hook: str = ""
    error: Exception = field(default_factory=lambda: KeyError("momentum"))

    def fail(self, name: str, clock: Clock | None = None) -> None:
        if name == self.hook and (clock is None or clock.round == 1):
            raise self.error

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        self.fail("init")
        return super().init(task, population, generator)

    def prepare(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        self.fail("prepare")
        return super().prepare(preparation, server, memory)

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        self.fail("send", cohort.clock)
        return super().send(server, cohort)

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        self.fail("aggregate", cohort.clock)
        return super().aggregate(server, uploads, cohort)

    def common(self, server: Tree, task: Task) -> Tree | None:
        self.fail("common")
        return super().common(server, task)

    def start(self, client: Client) -> Tree:
        self.fail("start", client.clock)
        return super().start(client)

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        self.fail("stages", clock)
        directed = Stage(direction=self.towards) if self.hook == "towards" else Stage(self.loss)
        return (directed,)

    def adapt(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        self.fail("adapt", clock)
        return super().adapt(local, clock)

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        self.fail("draw", client.clock)
        return super().draw(generator, steps, client)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        self.fail("loss", client.clock)
        return client.task.loss(work, batch)

    def towards(self, work: Tree, client: Client, batch: Batch) -> Tree:
        self.fail("towards", client.clock)
        return {name: torch.zeros_like(leaf) for name, leaf in work.items()}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        self.fail("finish", client.clock)
        return super().finish(work, client)

    def model(self, work: Tree, client: Client) -> Tree:
        if self.hook != "personal":
            self.fail("model", client.clock)
        return super().model(work, client)

    def personal(self, client: Client) -> Tree:
        self.fail("personal", client.clock)
        return super().personal(client)

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        self.fail("predict")
        return super().predict(model, x, task)
