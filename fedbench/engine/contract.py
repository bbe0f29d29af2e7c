"""The types that pass between the engine and a method: Clock, Cohort, Client, Stage, Preparation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.cache import Arrays
from fedbench.core.trees import Tree
from fedbench.models.task import Task

ClientHook = Literal["start", "draw", "loss", "finish", "model", "personal"]
"""The hooks that are given a Client; "loss" stands for whatever loss or direction a stage has."""

CLIENT_HOOKS: tuple[ClientHook, ...] = get_args(ClientHook)


@dataclass(frozen=True)
class Clock:
    """The round (0-based) and the number of rounds, for schedules."""

    round: int
    rounds: int


@dataclass(frozen=True)
class Cohort:
    """The clients of a server hook: ids, sizes, local steps, the round's generator. C is the first axis of trees."""

    ids: Tensor  # int64 [C]
    clock: Clock
    population: Population
    steps: Tensor  # float64 [C], local steps of the protocol's plain local work
    generator: torch.Generator  # the server's randomness of this round
    served: Tensor  # int64 [M], all clients of this server, in the cohort or not: N, or a coalition's members
    task: Task  # the clients' network, for servers that run it or treat its layers differently

    @property
    def sizes(self) -> Tensor:
        """Training samples n_k, float64 [C]."""
        return self.population.sizes[self.ids]

    @property
    def weights(self) -> Tensor:
        """n_k over the cohort's sum, float64 [C]."""
        return self.sizes / self.sizes.sum()

    def mean(self, tree: Tree) -> Tree:
        """The size-weighted mean of each leaf [C, ...], over the clients of the cohort that have it."""
        found: Tree = {}
        for chosen, leaves in self.task.among(tree, self.ids):
            sizes = self.sizes[chosen]
            found |= trees.mean(leaves, sizes / sizes.sum())
        return found

    def by_modality(self) -> Iterator[tuple[Tensor, Cohort]]:
        """For each modality in the cohort: a mask of its clients (bool [C]), and these clients as a cohort.

        The `task` of that cohort is the modality's network. With one modality it is the cohort itself.
        """
        modality, served = self.task.modality_of(self.ids), self.task.modality_of(self.served)
        for place, task in enumerate(self.task.modalities):
            chosen = modality == place
            if bool(chosen.any()):
                yield chosen, replace(self.where(chosen, self.served[served == place]), task=task)

    def where(self, chosen: Tensor, served: Tensor) -> Cohort:
        """Return the members that `chosen` (bool [C]) marks as the cohort of a server of the clients `served` [M]."""
        return replace(self, ids=self.ids[chosen], steps=self.steps[chosen], served=served)


@dataclass(frozen=True)
class Client:
    """One client in one round, without a client axis: task, message, memory, size, optimiser; its data on request."""

    task: Task
    clock: Clock
    message: Tree  # the message from the server
    memory: Tree  # what stays on the client between rounds, without the state of its optimisers
    size: Tensor  # scalar, training samples n_k
    steps: Tensor  # scalar, local steps of the protocol's plain local work
    optimizer: OptimizerConfig  # the protocol's: for methods whose formulas hold its momentum
    # The protocol's learning rate: in a loss or direction that of the step, elsewhere the mean over the round's plain
    # steps. With a schedule it is a float64 scalar where clients train as one program.
    lr: float | Tensor
    on_host: Mapping[str, Tensor] | None = None  # the message on the CPU for `draw`, if the message is not there
    fetch: Callable[[], Batch] | None = None
    fetch_validation: Callable[[], Batch] | None = None
    optimizers: Tree = field(default_factory=dict)  # PLACE/LEAF: the state that the optimiser of a stage continues from

    @property
    def data(self) -> Batch:
        """All training samples; only in hooks that the method lists in `reads_data`."""
        if self.fetch is None:
            raise RuntimeError("the hook reads client.data: list its name in the method's `reads_data`")
        return self.fetch()

    @property
    def validation(self) -> Batch:
        """The protocol's validation samples, or the training samples if the client has none.

        Only in hooks that the method lists in `reads_data`.
        """
        if self.fetch_validation is None:
            raise RuntimeError("the hook reads client.validation: list its name in the method's `reads_data`")
        return self.fetch_validation()


Loss = Callable[[Tree, Client, Batch], Tensor]
Direction = Callable[[Tree, Client, Batch], Tree]


@dataclass(frozen=True)
class Stage:
    """A phase of local training: a loss, the leaves that it trains (`moves`), and epochs or iterations.

    A `direction` replaces the gradient (Per-FedAvg, pFedMe). It returns a tree over the trained leaves, and may also
    return new values of buffers.
    """

    loss: Loss | None = None
    direction: Direction | None = None
    moves: tuple[str, ...] = ("*",)  # selectors, see Task.select
    fixed: tuple[str, ...] = ()  # selectors of leaves that stay fixed even if `moves` selects them
    epochs: int | None = None  # both None: the protocol's local work
    iterations: int | None = None
    optimizer: OptimizerConfig | None = None  # None: the protocol's
    lr: float | None = None  # replaces that optimiser's learning rate
    order: int = 0  # stages with one order see the same mini-batches

    @property
    def hook(self) -> str:
        """Name of the loss or direction.

        Raises:
            ValueError: the stage has neither.
        """
        if self.direction is None and self.loss is None:
            raise ValueError("a stage needs a loss or a direction")
        return str(getattr(self.direction or self.loss, "__name__", "loss"))

    def optimizer_or(self, protocol: OptimizerConfig) -> OptimizerConfig:
        """Return the optimiser of this stage, given the protocol's."""
        chosen = self.optimizer or protocol
        return chosen if self.lr is None else replace(chosen, lr=self.lr)


# What a method declares to the checks of fedbench.testing where it cannot promise what others do.


@dataclass(frozen=True)
class Conformance:
    """Exceptions, each with its reason. A check fails if a declared exception does not occur."""

    smallest: int = 1  # training samples a client needs; a smaller one raises ConfigError
    draws_by_position: str = ""  # why relabelled clients get other random draws of the server
    sends_by_cohort: str = ""  # why the message to a client depends on who else is in the cohort
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields that toys need, such as {"solver.restarts": 3}
    # selector of leaves -> why this memory never moves, or nothing shows that this memory or upload is read
    inert: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Meter:
    """Bytes that crossed the network, counted from the trees that were sent."""

    up: int = 0
    down: int = 0

    def sent(self, messages: Tree) -> None:
        """Count leaves [C, ...] that are sent to C clients."""
        self.down += sum(map(trees.leaf_bytes, messages.values()))

    def received(self, uploads: Tree) -> None:
        """Count leaves [C, ...] that come from C clients."""
        self.up += sum(map(trees.leaf_bytes, uploads.values()))


class Preparation(Protocol):
    """What `Method.prepare` may use: the clients and their data. All traffic here is counted.

    `meter` counts the traffic that a method simulates by itself.
    """

    meter: Meter

    @property
    def seed(self) -> int:
        """The seed of the method's random draws; give each draw its own purpose (see core.rng)."""

    @property
    def task(self) -> Task:
        """The clients' network."""

    @property
    def population(self) -> Population:
        """Number of samples of each client and class."""

    @property
    def everyone(self) -> Cohort:
        """The clients to prepare, as a cohort: all, or those that no round met, who are not among its `served`."""

    def round(
        self, message: Tree, memory: Tree, *, rounds: int = 1, sends: Callable[[Tree], Tree] | None = None
    ) -> Tree:
        """Every such client's upload [C, ...] after local work on its row of `message` and `memory` [C, ...].

        With several `rounds` each client continues from its own last round, without the server. `sends` selects the
        part of an upload (one client's, without the client axis) that is sent; None sends all of it.

        Raises:
            Diverged: a client's loss, upload or memory is not finite.
        """

    def received(self, uploads: Tree) -> Tree:
        """Count `uploads` [C, ...] that clients send, and return them."""

    def samples(self, *, unit: bool = False, modality: int = 0) -> Batch:
        """All training samples of all clients of modality `modality`, in the order of the clients.

        They are normalised as for the network, or with `unit` pixels in [0, 1].
        """

    def once(self, code: Callable[..., object], given: Sequence[object], make: Callable[[Meter], Arrays]) -> Arrays:
        """Return the arrays of `make`, from the cache if an earlier run made them from the same `given`.

        `given` is everything the result depends on: tensors, or values that `repr` tells apart. `code` is the function
        that computes it. `make` counts traffic by the meter that it gets. Traffic and seconds of a cached result are
        those of the run that made it.
        """

    def keep(self, name: str, array: np.ndarray) -> None:
        """Store an array, such as a distance matrix, with the run."""
