"""The method interface: the hooks of server and client.

Server hooks see trees with a client axis. Client hooks see one client without that axis, because the engine runs them
one by one or batched with vmap: they have no data-dependent Python branches, and they average through `Batch.mean`.
Hooks are pure: no hook stores anything on `self`. Evaluation calls send, personal and predict in this order.
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

# What `Method.unfit` of most methods says.
ONE_NETWORK = {"modalities": "compares or averages models leaf by leaf"}
ONE_VIEW = {"views": "trains one network on the samples of all clients"}


@dataclass(frozen=True)
class Method(Component, ABC):
    """Base of all methods. A subclass's fields are its hyper-parameters and the schema of its YAML.

    A method's docstring lists its leaves in four lines; a missing line is the base's. `Server` and `Memory` are what
    `init` returns. `Message` and `Upload` cross the network to and from one client. Leaves are written
    `name [shape] if condition, remark`: `*` stands for leaves of the network under their own names, `[...]` for their
    own shapes, `**` for any leaves. N clients, K classes, d features before the classifier layer.
    """

    section: ClassVar[str] = "method"
    # global, personalised, clustered, or mixture (personalised by what the server mixes): see own_score
    family: ClassVar[str] = "global"
    paper: ClassVar[str] = ""  # authors, venue, year

    @property
    def unfit(self) -> Mapping[str, str]:
        """What the method cannot serve -> the reason, a phrase that follows the method's name.

        `modalities`: clients with several networks, see Cohort.by_modality; `views`: some of which read other parts of
        the samples; `regression`: a quantity, of which there are no classes.
        """
        return ONE_NETWORK

    def shares(self, sizes: Tensor) -> Tensor | None:
        """The clients' weights in the server's average, up to a factor; `sizes` are their samples, float64 [N].

        None if client models are not an average of all clients' uploads.
        """
        return sizes

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """Names of the client hooks that read client.data or client.validation."""
        return frozenset()

    @property
    def conformance(self) -> Conformance:
        """Exceptions to the conformance suite, with reasons; fedbench.testing checks the rest."""
        return Conformance()

    @property
    def prepare_round(self) -> int:
        """Number of completed rounds after which `prepare` is called; a shorter run never calls it."""
        return 0

    # ---- server: first axis is the client's

    @abstractmethod
    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Server, once: (server state, client memory with leaves [N, ...]) before the first round."""

    def prepare(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Server, once, after `prepare_round` rounds: new (server, memory) from the clients' data, such as clusters.

        Before the first round it may replace the leaves of the memory, later only their values. Where `send` raises
        IndexError for clients that no round met (protocol.unseen), it is called for these after the last round, as it
        would have been with the others: they are `preparation.everyone`, and `memory` has their rows. What it returns
        of the server's state then serves them; `send` finds each among the cohort's `served`.
        """
        return server, memory

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Server: the message to each client of the cohort, leaves [C, ...]."""
        return trees.expand(server, len(cohort.ids))

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Server: the new server state from the uploads, leaves [C, ...]."""
        return {**server, **cohort.mean(uploads)}

    # ---- one client: no client axis

    @abstractmethod
    def start(self, client: Client) -> Tree:
        """Client: everything that local training may change, built from `client.message` and `client.memory`."""

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Client: the phases of local training in order, each `Stage(loss, moves, epochs)`."""
        return (Stage(self.loss),)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Client: the local objective on one mini-batch, a scalar."""
        return client.task.loss(self.model(work, client), batch)

    @abstractmethod
    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Client: (upload, new memory) after local training."""

    def model(self, work: Tree, client: Client) -> Tree:
        """Client: the model in `work`, which the default loss and the scores after local training use."""
        return work

    def personal(self, client: Client) -> Tree:
        """Client: the model that is scored before local training; by default the model of what `start` gives."""
        return self.model(self.start(client), client)

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """Client: logits, or other scores that rank classes, [B, K]."""
        return task.apply(model, x)

    # ---- optional

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """Client: random numbers for each step of a stage, leaves [steps, ...]; the loss finds them in batch.noise.

        It runs on the CPU before the stage and outside vmap, so it may branch on the message. A leaf of the message is
        copied to the CPU when it is read by its name.
        """
        return {}

    def adapt(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Client: stages that a received model trains before it is scored (Finetune, FedBABU); none by default."""
        return ()

    def common(self, server: Tree, task: Task) -> Tree | None:
        """Server: the global model; return None if a prediction needs leaves that stay on clients."""
        names = task.parameters | task.buffers
        return server if names <= set(server) else None

    def collaboration(self, server: Tree, population: Population) -> Tensor | None:
        """Server: the collaboration matrix W [N, N], or None; row i mixes the clients' models into that of client i."""
        return None

    def record(self, server: Tree) -> Mapping[str, Tensor]:
        """Server: arrays to store with a finished run, by name, as `preparation.keep` does; none by default."""
        return {}


# Which of a client's models counts, where a protocol leaves it to the method.


def own_score(method: Method, protocol: ProtocolConfig) -> tuple[str, str]:
    """Return the meaning of `protocol.score=own`: `received`, `trained` or `both`, and the reason.

    The rule follows the code of FedSaC and of pFedGraph (Ye et al.).
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
