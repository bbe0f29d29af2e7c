"""Bases of clustered methods: clients are split into coalitions, and a method runs inside each.

There is one of the inner method's servers a coalition; its client hooks are used as they are. The server's leaves are
`coalition` [N] and, in namespace `base`, the inner servers [K, ...]; K may grow. `coalition` is read on the host, and
stays there once it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.config.groups import registry
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.transfer import sent
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Clock, Cohort, Stage
from fedbench.engine.method import Method
from fedbench.methods.parts import grouping
from fedbench.models.task import Task


@dataclass(frozen=True)
class Coalitions(Method):
    """A method inside each coalition of clients; a subclass says which clients are together."""

    family: ClassVar[str] = "clustered"

    @property
    @abstractmethod
    def inner(self) -> Method:
        """The method inside the coalitions."""

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """As the inner method."""
        return self.inner.reads_data

    @property
    def reads_validation(self) -> frozenset[ClientHook]:
        """As the inner method."""
        return self.inner.reads_validation

    @property
    def draws_from(self) -> tuple[str, ...]:
        """As the inner method."""
        return self.inner.draws_from

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """One coalition of all."""
        server, memory = self.inner.init(task, population, generator)
        coalition = torch.zeros(population.clients, dtype=torch.int64)
        return {"coalition": coalition, **servers(server, 1)}, memory

    def collaboration(self, server: Tree, population: Population) -> Tensor:
        """Shares of a client's coalition: W_ij = n_j / n of the coalition, [N, N] (FedCollab's A, Eq. 9)."""
        return torch.from_numpy(grouping.shares(server["coalition"].cpu().numpy(), population.sizes.numpy()))

    # ---- one base server a coalition

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Each client hears from its coalition's server."""
        coalition = server["coalition"].cpu()
        members = coalition[cohort.ids]
        parts = [
            (members == k, self.inner.send(server_of(server, k), members_of(cohort, coalition, k)))
            for k in members.unique().tolist()
        ]
        if len(parts) == 1:
            return parts[0][1]
        return {key: _in_places([(chosen, part[key]) for chosen, part in parts]) for key in parts[0][1]}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Each coalition's server folds in its own members' uploads; one without a member in the cohort waits."""
        coalition = server["coalition"].cpu()
        members = coalition[cohort.ids]
        base = trees.part(server, "base")
        for k in members.unique().tolist():
            own = trees.take(uploads, (members == k).nonzero().flatten())
            updated = self.inner.aggregate(trees.row(base, k), own, members_of(cohort, coalition, k))
            base = trees.put(
                base, torch.tensor([k]), trees.map_leaves(lambda leaf: leaf.unsqueeze(0), updated)
            )
        return {**server, "coalition": coalition, **trees.join(base=base)}

    def common(self, server: Tree, task: Task) -> Tree | None:
        """The inner method's global model, if there is one coalition only."""
        return self.inner.common(server_of(server, 0), task) if int(server["coalition"].max()) == 0 else None

    # ---- one client: as the inner method

    def start(self, client: Client) -> Tree:
        """As the inner method."""
        return self.inner.start(client)

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """As the inner method."""
        return self.inner.stages(local, clock)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """As the inner method."""
        return self.inner.loss(work, client, batch)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """As the inner method."""
        return self.inner.finish(work, client)

    def model(self, work: Tree, client: Client) -> Tree:
        """As the inner method."""
        return self.inner.model(work, client)

    def personal(self, client: Client) -> Tree:
        """As the inner method."""
        return self.inner.personal(client)

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """As the inner method."""
        return self.inner.predict(model, x, task)

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """As the inner method."""
        return self.inner.draw(generator, steps, client)

    def adapt(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """As the inner method."""
        return self.inner.adapt(local, clock)


@dataclass(frozen=True)
class AnyInside(Coalitions):
    """Coalitions with any method inside, chosen as `method/base=NAME`."""

    base: Any = field(default_factory=lambda: {"name": "fedavg"})  # the method inside the coalitions

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.base, Mapping):
            try:
                object.__setattr__(self, "base", registry("method").build(self.base))
            except FedbenchError as error:  # which names the keys of a method that is not inside another
                raise type(error)(str(error).replace("method.", "method.base.", 1)) from error
        if not isinstance(self.base, Method):
            raise ConfigError(f"method.base must name a method, got {self.base!r}; e.g. method/base=fedavg")

    @property
    def inner(self) -> Method:
        """The base method, built."""
        return cast("Method", self.base)


def grouped(server: Tree, coalition: npt.NDArray[np.int64], count: int) -> Tree:
    """A clustered method's state: `coalition` [N], and `count` inner servers that all start as `server`."""
    return {"coalition": torch.from_numpy(coalition), **trees.clone(servers(server, count))}


def servers(server: Tree, count: int) -> Tree:
    """`count` copies of an inner server: leaves base/* [K, ...], not yet memory of their own."""
    return trees.join(base=trees.expand(server, count))


def server_of(server: Tree, coalition: int) -> Tree:
    """The inner server of a coalition."""
    return trees.row(trees.part(server, "base"), coalition)


def members_of(cohort: Cohort, coalition: Tensor, k: int) -> Cohort:
    """The cohort's members of coalition `k`."""
    return cohort.where(coalition[cohort.ids] == k, (coalition == k).nonzero().flatten())


def _in_places(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """One leaf [C, ...] of several: of each (mask [C], leaf) the rows in order, where its mask is true."""
    rows: list[Tensor] = []
    places = torch.empty(len(parts[0][0]), dtype=torch.int64)
    begin = 0
    for chosen, leaf in parts:
        shared = trees.is_shared(leaf)
        rows.append(leaf[:1] if shared else leaf)
        places[chosen] = torch.full((len(leaf),), begin) if shared else torch.arange(begin, begin + len(leaf))
        begin += len(rows[-1])
    whole = torch.cat(rows)
    return whole.index_select(0, sent(places, whole.device))
