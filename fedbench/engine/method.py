"""The method interface: what crosses the network, and what each side does with it.

Server hooks see trees with a client axis; client hooks see one client and know nothing of the axis (the engine may
run them one by one or batched with vmap: no data-dependent Python branches, averages through `Batch.mean`). Hooks are
pure: no hook stores anything on `self`. Evaluation takes the same road: send -> personal -> predict.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import Component
from fedbench.config.schema import LocalConfig, ProtocolConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Clock, Cohort, Conformance, Preparation, Stage
from fedbench.models.task import Task


@dataclass(frozen=True)
class Method(Component, ABC):
    """Base of all methods; a subclass's fields are its hyper-parameters, and so its schema in the config.

    A method's docstring lists its leaves in four lines; one that it lacks is as its base's. `Server` and `Memory` are
    what `init` returns, `Message` and `Upload` what crosses the network to and from one client. Leaves are written
    `name [shape] if condition, remark`: `*` for those of the network, all or some, by their own names, `[...]` for
    their own shapes, `**` for any. N clients, K classes, d features before the classifier layer.
    """

    section: ClassVar[str] = "method"
    # global, personalised, clustered, or mixture (personalised by what the server mixes): see own_score
    family: ClassVar[str] = "global"
    paper: ClassVar[str] = ""  # authors, venue, year

    @property
    def why_one_kind(self) -> str:
        """Why all its clients must be of one kind; "" if its server serves several kinds, see Cohort.by_kind."""
        return f"{type(self).__name__} compares or averages models leaf by leaf"

    def shares(self, sizes: Tensor) -> Tensor | None:
        """What clients count by, up to a factor: `sizes` float64 [N], their samples.

        None: its clients' models, or what they share of them, are no averages of all clients' of its server.
        """
        return sizes

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """Names of the client hooks that use client.data or client.validation."""
        return frozenset()

    @property
    def conformance(self) -> Conformance:
        """What it cannot promise; fedbench.testing checks the rest."""
        return Conformance()

    @property
    def prepare_round(self) -> int:
        """Rounds that are completed when `prepare` is called; in a shorter run it never is."""
        return 0

    # ---- server: first axis is the client's

    @abstractmethod
    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """(server state, client memory with leaves [N, ...]) before round 0."""

    def prepare(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Once, after `prepare_round` rounds, with access to the federation (distances, clusters, topic models).

        Before round 1 it may give clients' memory other leaves than `init` did, later only other values.
        """
        return server, memory

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """The message to each client of the cohort, leaves [C, ...]."""
        return trees.expand(server, len(cohort.ids))

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Fold uploads [C, ...] into the server state."""
        return {**server, **cohort.mean(uploads)}

    # ---- one client: no client axis

    @abstractmethod
    def start(self, client: Client) -> Tree:
        """Everything local training may move."""

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """The phases of local training, in order."""
        return (Stage(self.loss),)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """The local objective on one mini-batch, a scalar."""
        return client.task.loss(self.model(work, client), batch)

    @abstractmethod
    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """(upload, new memory) after local training."""

    def model(self, work: Tree, client: Client) -> Tree:
        """The client's own model within `work`."""
        return work

    def personal(self, client: Client) -> Tree:
        """The model that is scored as received, before local training."""
        return self.model(self.start(client), client)

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """Logits (or any scores to rank classes by) [B, K] of a personal model."""
        return task.apply(model, x)

    # ---- optional

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """Per-step randomness of a client's stage, leaves [steps, ...]; reaches the loss as batch.noise.

        Drawn on the CPU before the stage and outside vmap, so it may branch on what the client was sent. A leaf of
        the message is fetched to the CPU when it is read, by its name.
        """
        return {}

    def adapt(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Stages a client trains before it is scored as received (Finetune, FedBABU); none by default."""
        return ()

    def common(self, server: Tree, task: Task) -> Tree | None:
        """The global model, where there is one."""
        names = task.parameters | task.buffers
        return server if names <= set(server) else None

    def collaboration(self, server: Tree, population: Population) -> Tensor | None:
        """The collaboration matrix W [N, N] (row i: whose models client i's is made of), where there is one."""
        return None

    def record(self, server: Tree) -> Mapping[str, Tensor]:
        """Arrays to keep with a finished run, by name, beside those of `prepare`; none by default."""
        return {}


# Which of a client's models counts, where a protocol leaves it to the method.


def own_score(method: Method, protocol: ProtocolConfig) -> tuple[str, str]:
    """What `protocol.score=own` stands for: `received`, `trained` or `both`, and why.

    As FedSaC's code and that of Ye et al. score the methods that they compare.
    """
    if method.family == "global":
        return "received", "the one model of all clients"
    if "personal" in method.reads_data or method.adapt(protocol.local, Clock(protocol.rounds, protocol.rounds)):
        return "received", "fitted to the client's samples when it is scored"
    if method.family == "clustered":
        return "trained", "what the client trains of its cluster's model"
    if method.family == "mixture" and protocol.report.startswith("best"):
        return "both", "the mixture, and what the client trains of it"
    return "trained", "what the client trains"
