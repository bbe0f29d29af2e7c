"""Base of clustered methods: clients are split into coalitions, and a method runs inside each.

There is one of the inner method's servers a coalition. The server's leaves are `coalition` [N] and, in namespace
`base`, the inner servers [K, ...]; K may grow. `coalition` is read on the host, and stays there once it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.groups import registry
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Client, ClientHook, Clock, Cohort, Preparation, Stage
from fedbench.engine.method import Method
from fedbench.models.task import Task

# Groups of clients by their models or updates: k-means, bipartition by cosine similarity, shares within a group.

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

STARTS = 32  # most seedings of k-means
PASSES = 100  # most reassignments
SAME = 1e-12  # least gain in inertia that makes a solution better, relative


def coordinates(points: Array) -> Array:
    """`points` [N, P] as isometric points [N, N]: distances between a few large vectors need few dimensions."""
    centred = points - points.mean(0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    return np.asarray(vectors * np.sqrt(np.clip(values, 0, None)))


def distances(points: Array) -> Array:
    """Euclidean distance of each pair of `points` [N, d], [N, N]."""
    from scipy.spatial.distance import pdist, squareform

    return np.asarray(squareform(pdist(points)))


def kmeans(points: Array, count: int) -> Labels:
    """Group of each of `points` [N, d] by Lloyd's algorithm, the best of several seedings; at most `count` groups.

    Nothing is drawn: seedings are farthest-first traversals from points near to and far from the mean, so that
    the points' order permutes the result only.
    """
    depth = np.argsort(((points - points.mean(0)) ** 2).sum(1), kind="stable")
    firsts = depth[np.unique(np.linspace(0, len(points) - 1, min(STARTS, len(points))).round().astype(int))]
    best, least = np.zeros(len(points), dtype=np.int64), np.inf
    for first in firsts:
        labels, inertia = _lloyd(points, _farthest_first(points, count, int(first)))
        if inertia < least * (1 - SAME):
            best, least = labels, inertia
    return np.asarray(np.unique(best, return_inverse=True)[1], dtype=np.int64)


def shares(groups: npt.ArrayLike, sizes: npt.ArrayLike) -> Array:
    """The row-stochastic W [N, N]: W_ij = n_j / n of their group where i and j share one, else 0.

    `groups` [N] are the clients' groups, `sizes` [N] their samples.
    """
    p = np.asarray(groups)
    shared = (p[:, None] == p[None, :]) * np.asarray(sizes, np.float64)
    return np.asarray(shared / shared.sum(1, keepdims=True))


def _squared(points: Array, centres: Array) -> Array:
    return np.asarray(((points[:, None] - centres[None]) ** 2).sum(2))


def _farthest_first(points: Array, count: int, first: int) -> Array:
    chosen = [first]
    gaps = _squared(points, points[[first]])[:, 0]
    while len(chosen) < min(count, len(points)):
        chosen.append(int(gaps.argmax()))
        gaps = np.minimum(gaps, _squared(points, points[chosen[-1:]])[:, 0])
    return points[chosen]


def _lloyd(points: Array, centres: Array) -> tuple[Labels, float]:
    """(labels [N], sum of squared distances from the centres)."""
    labels = np.full(len(points), -1)
    for _ in range(PASSES):
        found = _squared(points, centres).argmin(1)
        if (found == labels).all():
            break
        labels = found
        centres = np.stack(
            [
                points[labels == k].mean(0) if (labels == k).any() else centre
                for k, centre in enumerate(centres)
            ]
        )
    return labels, float(_squared(points, centres).min(1).sum())


def cosines(vectors: Array) -> Array:
    """Cosine similarity of each pair of `vectors` [N, P], [N, N]; zero vectors are orthogonal to all."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(norms > 0, norms, 1)
    return np.asarray(np.clip(units @ units.T, -1, 1))


def bipartition(similarity: Array, linkage: str) -> tuple[npt.NDArray[np.bool_], float]:
    """(side of each of N >= 2 points, largest similarity across): two groups by agglomeration of `similarity` [N, N].

    Single linkage makes the largest similarity across as small as any bipartition can (Sattler et al., Algorithm 1).
    """
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    gaps = squareform(1 - similarity, checks=False)
    root = hierarchy.to_tree(hierarchy.linkage(gaps, linkage))
    side = np.isin(np.arange(len(similarity)), root.get_left().pre_order())
    return side, float(similarity[np.ix_(side, ~side)].max())


# Base of methods that run another one inside: its client hooks are used as they are, servers differ.


def fedavg() -> Mapping[str, Any]:
    """The method inside unless another is chosen, as `method/base=NAME`."""
    return {"name": "fedavg"}


@dataclass(frozen=True)
class Inside(Method):
    """A method inside another: the field `base`, or what `inner` is overridden with; a subclass gives the servers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(chosen := self._base, Mapping):
            try:
                object.__setattr__(self, "base", registry("method").build(chosen))
            except FedbenchError as error:  # which names the keys of a method that is not inside another
                raise type(error)(str(error).replace("method.", "method.base.", 1)) from error
        if not isinstance(self.inner, Method):
            raise ConfigError(f"method.base must name a method, got {chosen!r}; e.g. method/base=fedavg")
        if after := self.inner.prepare_round:
            raise ConfigError(
                f"{type(self.inner).__name__} prepares after {after} rounds; inside another method it must do so "
                "before the first, see its settings under method.base"
            )

    @property
    def _base(self) -> Any:
        return getattr(self, "base", None)  # a field of the subclasses that let it be chosen

    @property
    def inner(self) -> Method:
        """The method inside."""
        return cast("Method", self._base)

    @property
    def averages(self) -> bool:
        """As the inner method."""
        return self.inner.averages

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """As the inner method."""
        return self.inner.reads_data

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

    def compress(self, upload: Tree) -> Tree:
        """As the inner method."""
        return self.inner.compress(upload)

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

    # ---- what it has several servers for, put together

    def rows_of(self, servers: Mapping[int, Tree], place: Tensor, population: Population) -> Tensor | None:
        """The inner method's W [N, N], row i as in `servers[place[i]]` (`place` [N]); None where it has none."""
        whole = torch.zeros(population.clients, population.clients, dtype=torch.float64)
        for k, server in servers.items():
            matrix = self.inner.collaboration(server, population)
            if matrix is None:
                return None
            whole[place == k] = matrix.cpu().to(whole.dtype)[place == k]
        return whole

    def records_of(self, servers: Mapping[str, Tree]) -> Mapping[str, Tensor]:
        """What the inner method keeps of each of `servers`, under its name and the server's."""
        kept = {key: self.inner.record(server) for key, server in servers.items()}
        return {name + key: leaf for key, own in kept.items() for name, leaf in own.items()}


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
        return torch.from_numpy(shares(coalition.numpy(), population.sizes.numpy()))

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


def groups(
    preparation: Preparation, message: Tree, memory: Tree, k: int, rounds: int, compared: tuple[str, ...]
) -> npt.NDArray[np.int64]:
    """Which of `k` groups each client is in, [N]: k-means of the models after `rounds` rounds of each client alone.

    Kept are the models' distances, and the groups.
    """
    alone = preparation.round(message, memory, rounds=rounds)
    points = coordinates(vectors(alone, preparation.task, compared).cpu().numpy())
    coalition = kmeans(points, k)
    preparation.keep("distances", distances(points))
    preparation.keep("coalition", coalition)
    return coalition


def vectors(models: Tree, task: Task, compared: tuple[str, ...]) -> Tensor:
    """The weights of `models` [N, ...] that are `compared` (selectors), float64 [N, P]."""
    return trees.flatten(task.split(task.weights(models), compared)[0]).double()
