"""FedBABU: Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022.

Algorithm 1: the head keeps its initial weights during all of training, and they are the same on every client. Clients
train the body alone, and the server averages it by n_k / n. A client fine-tunes the received model for tau_f epochs
(body and head together) before it is scored, and discards the tuned model. The head is never sent, because all clients
draw it from a common seed.
Batch normalisation: affine parameters and running statistics belong to the body and are shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedbench.config.fields import at_least, positive, selectors
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock, Cohort, Conformance, Stage
from fedbench.methods.fedavg import FedAvg
from fedbench.models.task import Task


@dataclass(frozen=True)
class FedBABU(FedAvg):
    """A body trained under a frozen head; the model is fine-tuned before scoring.

    Server: body/* [...]; head/* [...], as drawn
    Memory: * [N, ...], the same head
    Message: * [...], the body
    Upload: * [...], the body
    """

    private: tuple[str, ...] = selectors(("@head",))  # the frozen head: globs or groups, see Task.select
    # tau_f, epochs of fine-tuning before scoring; 0: the global model is scored
    tune_epochs: int = at_least(0, 5)
    tune_lr: float | None = positive(None)  # learning rate of the fine-tuning; null: the protocol's
    tuned: tuple[str, ...] = selectors(("*",))  # leaves that are tuned; @head: the head alone

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Oh et al., ICLR 2022"

    @property
    def conformance(self) -> Conformance:
        return Conformance(inert=dict.fromkeys(self.private, "the frozen head"))

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return the body on the server; the head on every client, and on the server for the global model."""
        head, body = task.split(task.init(generator), self.private)
        return trees.join(body=body, head=head), trees.expand(head, population.clients)

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        return trees.expand(trees.under(server, "body"), len(cohort.ids))

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train the body, under the frozen head."""
        return (Stage(self.loss, fixed=self.private),)

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Return the body's average."""
        return {**server, **trees.join(body=cohort.mean(uploads))}

    def adapt(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        if self.tune_epochs == 0:
            return ()
        return (Stage(self.loss, moves=self.tuned, epochs=self.tune_epochs, lr=self.tune_lr),)

    def common(self, server: Tree, task: Task) -> Tree | None:
        """Return the averaged body under the frozen head."""
        return {**trees.under(server, "body"), **trees.under(server, "head")}
