"""Base of clustered methods: clients are split into coalitions, and a method runs inside each.

There is one of the inner method's servers a coalition. The server's leaves are `coalition` [N] and, in namespace
`base`, the inner servers [K, ...]; K may grow. `coalition` is read on the host, and stays there once it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.transfer import sent
from fedbench.core.trees import Tree
from fedbench.engine.contract import Cohort
from fedbench.methods.parts import grouping
from fedbench.methods.parts.inside import Inside
from fedbench.models.task import Task


@dataclass(frozen=True)
class Coalitions(Inside):
    """A method inside each coalition of clients; a subclass says which clients are together."""

    family: ClassVar[str] = "clustered"

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """One coalition of all."""
        server, memory = self.inner.init(task, population, generator)
        coalition = torch.zeros(population.clients, dtype=torch.int64)
        return {"coalition": coalition, **servers(server, 1)}, memory

    def collaboration(self, server: Tree, population: Population) -> Tensor | None:
        """Of each client the inner method's row, among the members of its coalition, [N, N].

        Where the inner method averages, shares: W_ij = n_j / n of the coalition (FedCollab's A, Eq. 9).
        """
        coalition = server["coalition"].cpu()
        rows = self.rows_of(self._servers(server), coalition, population)
        if rows is not None:
            # Some inner methods grouped or compared all clients; their servers hear from the members alone.
            return functional.normalize(rows * (coalition.unsqueeze(1) == coalition), p=1, dim=1)
        if not self.inner.averages:
            return None
        return torch.from_numpy(grouping.shares(coalition.numpy(), population.sizes.numpy()))

    def record(self, server: Tree) -> Mapping[str, Tensor]:
        """What the inner method keeps, of each coalition: `name:k` of number k."""
        return self.records_of({f":{k}": own for k, own in self._servers(server).items()})

    def _servers(self, server: Tree) -> dict[int, Tree]:
        """The inner server of each coalition that has members."""
        return {k: server_of(server, k) for k in server["coalition"].unique().tolist()}

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
