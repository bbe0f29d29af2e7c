"""What passes between the engine and a method: Clock, Cohort, Client, Batch, Stage, Population."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbench.config import OptimizerConfig
from fedbench.engine.trees import Tree

if TYPE_CHECKING:
    from fedbench.models.task import Task


@dataclass(frozen=True)
class Clock:
    """Where a run stands: `round` of `rounds` (0-based), for schedules."""

    round: int
    rounds: int


@dataclass(frozen=True)
class Population:
    """What a server knows of all N clients before training."""

    sizes: Tensor  # float64 [N], training samples n_k
    label_counts: Tensor  # float64 [N, K], training samples of each class

    @property
    def clients(self) -> int:
        """N."""
        return len(self.sizes)


@dataclass(frozen=True)
class Cohort:
    """The clients a server hook speaks to, first axis C in every tree beside it."""

    ids: Tensor  # int64 [C]
    clock: Clock
    population: Population
    steps: Tensor  # float64 [C], local steps of the protocol's plain local work
    generator: torch.Generator  # the server's randomness of this round
    served: Tensor  # int64 [M], all clients of this server, in the cohort or not: N, or a coalition's members
    task: Task  # the clients' network, for servers that run it or tell its layers apart

    @property
    def sizes(self) -> Tensor:
        """Training samples n_k, float64 [C]."""
        return self.population.sizes[self.ids]

    @property
    def weights(self) -> Tensor:
        """n_k over the cohort's sum, float64 [C]."""
        return self.sizes / self.sizes.sum()

    def where(self, chosen: Tensor, served: Tensor) -> Cohort:
        """The members that `chosen` (bool [C]) marks, of a server that serves the clients `served` [M]."""
        return replace(self, ids=self.ids[chosen], steps=self.steps[chosen], served=served)


@dataclass(frozen=True)
class Batch:
    """Samples of one client. Padding, if any, is marked by `mask`; averages must go through `mean`."""

    x: Tensor  # [B, ...] normalised float
    y: Tensor  # int64 [B]
    mask: Tensor | None = None  # bool [B], False for padding; None: all real
    noise: Tree = field(default_factory=dict)  # this step's leaves of Method.draw

    @property
    def count(self) -> Tensor:
        """Number of real samples, a scalar."""
        if self.mask is None:
            return torch.tensor(float(len(self.y)), device=self.y.device)
        return self.mask.sum().to(torch.float32)

    def sum(self, values: Tensor) -> Tensor:
        """Sum of `values` [B, ...] over the real samples."""
        return values.sum(0) if self.mask is None else (values * _like(self.mask, values)).sum(0)

    def mean(self, values: Tensor) -> Tensor:
        """Mean of `values` [B, ...] over the real samples."""
        return values.mean(0) if self.mask is None else self.sum(values) / self.count

    def class_sums(self, values: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Per class: sum of `values` [B, d] -> [K, d], and sample counts [K]."""
        onehot = torch.nn.functional.one_hot(self.y, classes).to(values.dtype)
        if self.mask is not None:
            onehot = onehot * self.mask.to(values.dtype).unsqueeze(1)
        return onehot.t() @ values, onehot.sum(0)


def _like(mask: Tensor, values: Tensor) -> Tensor:
    return mask.to(values.dtype).view(-1, *[1] * (values.dim() - 1))


@dataclass(frozen=True)
class Client:
    """One client in one round, no client axis: what every client hook is given."""

    task: Task
    clock: Clock
    message: Tree  # what the server sent
    memory: Tree  # what stays on the client between rounds
    size: Tensor  # scalar, training samples n_k
    steps: Tensor  # scalar, local steps of the protocol's plain local work
    optimizer: OptimizerConfig  # the protocol's: for methods whose formulas hold its lr or momentum
    fetch: Callable[[], Batch] | None = None
    fetch_validation: Callable[[], Batch] | None = None

    @property
    def data(self) -> Batch:
        """All training samples; only in hooks the method lists in `reads_data`."""
        if self.fetch is None:
            raise RuntimeError("this hook reads client.data: list its name in the method's `reads_data`")
        return self.fetch()

    @property
    def validation(self) -> Batch:
        """The protocol's validation samples, or the training samples where the client has none.

        Only in hooks the method lists in `reads_validation`.
        """
        if self.fetch_validation is None:
            raise RuntimeError(
                "this hook reads client.validation: list its name in the method's `reads_validation`"
            )
        return self.fetch_validation()


Loss = Callable[[Tree, Client, Batch], Tensor]
Direction = Callable[[Tree, Client, Batch], Tree]


@dataclass(frozen=True)
class Stage:
    """A stretch of local work: the optimiser on `loss` over the leaves that `moves` selects.

    `direction`, where given, takes the gradient's place (Per-FedAvg, pFedMe): it returns a tree over the moved
    leaves, and may return new values of buffers beside it.
    """

    loss: Loss | None = None
    direction: Direction | None = None
    moves: tuple[str, ...] = ("*",)  # selectors, see Task.select
    fixed: tuple[str, ...] = ()  # selectors of leaves that stay, whatever `moves` says
    epochs: int | None = None  # both None: the protocol's local work
    iterations: int | None = None
    optimizer: OptimizerConfig | None = None  # None: the protocol's
    lr: float | None = None  # in the place of that optimiser's learning rate
    order: int = 0  # stages with one order see the same mini-batches

    def optimizer_or(self, protocol: OptimizerConfig) -> OptimizerConfig:
        """The optimiser of this stage under a protocol's."""
        chosen = self.optimizer or protocol
        return chosen if self.lr is None else replace(chosen, lr=self.lr)
