"""Bases of methods that run another method inside, and of those that do so in coalitions of clients.

`WrapperMethod` has the inner method's client hooks and one inner server; a subclass changes the server. `Coalitions`
splits the clients and has one inner server for each coalition. Its leaves are `coalition` [N] and, in the namespace
`base`, the inner servers [K, ...]; K may grow. `coalition` is read on the host and then stays there. A client that no
round met is placed in one of the coalitions, which changes nothing for the others. The rest of the file groups clients
by their models.
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
from fedbench.engine.method import ONE_NETWORK, Method
from fedbench.models.task import Task

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

STARTS = 32  # largest number of seedings of k-means
PASSES = 100  # largest number of reassignments
SAME = 1e-12  # least relative gain in inertia of a better solution


def default_base() -> Mapping[str, Any]:
    """Return the default method inside; `method/base=NAME` chooses another."""
    return {"name": "fedavg"}


@dataclass(frozen=True)
class WrapperMethod(Method):
    """A method inside another: the field `base`, or an overridden `inner`; a subclass changes the server."""

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
        """Return the method inside."""
        return cast("Method", self._base)

    @property
    def unfit(self) -> Mapping[str, str]:
        """Several servers of the method inside serve clients of one network."""
        return {**self.inner.unfit, **ONE_NETWORK}

    def shares(self, sizes: Tensor) -> Tensor | None:
        return self.inner.shares(sizes)

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return self.inner.reads_data

    def start(self, client: Client) -> Tree:
        return self.inner.start(client)

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        return self.inner.stages(local, clock)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        return self.inner.loss(work, client, batch)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        return self.inner.finish(work, client)

    def model(self, work: Tree, client: Client) -> Tree:
        return self.inner.model(work, client)

    def personal(self, client: Client) -> Tree:
        return self.inner.personal(client)

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        return self.inner.predict(model, x, task)

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        return self.inner.draw(generator, steps, client)

    def adapt(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        return self.inner.adapt(local, clock)

    def require_average(self) -> None:
        """Refuse a method inside whose server does more than average.

        Raises:
            ConfigError: names it, and some that only average.
        """
        if type(self.inner).aggregate is not Method.aggregate:
            raise ConfigError(
                f"method.base: the server of {type(self.inner).__name__} does more than average; "
                f"{type(self).__name__} takes fedavg, fedprox, finetune, fedper, fedrep, ditto and the like"
            )

    # ---- one server of the inner method, in the namespace `base`

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start as the method inside.

        Raises:
            ConfigError: its clients upload nothing, so a server has nothing to change.
        """
        base, memory = self.inner.init(task, population, generator)
        if not base:
            raise ConfigError(f"method.base: clients of {type(self.inner).__name__} upload nothing; choose another one")
        return trees.join(base=base), memory

    def prepare(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        base, memory = self.inner.prepare(preparation, trees.under(server, "base"), memory)
        return {**server, **trees.join(base=base)}, memory

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        return self.inner.send(trees.under(server, "base"), cohort)

    def common(self, server: Tree, task: Task) -> Tree | None:
        return self.inner.common(trees.under(server, "base"), task)

    def collaboration(self, server: Tree, population: Population) -> Tensor | None:
        return self.inner.collaboration(trees.under(server, "base"), population)

    def record(self, server: Tree) -> Mapping[str, Tensor]:
        return self.inner.record(trees.under(server, "base"))

    # ---- what several servers of the inner method have, put together

    def combined_rows(self, servers: Mapping[int, Tree], group: Tensor, population: Population) -> Tensor | None:
        """Return the inner method's W [N, N], row i from `servers[group[i]]` (`group` [N]); None if it has none."""
        W = torch.zeros(population.clients, population.clients, dtype=torch.float64)
        for k, server in servers.items():
            matrix = self.inner.collaboration(server, population)
            if matrix is None:
                return None
            W[group == k] = matrix.cpu().to(W.dtype)[group == k]
        return W

    def combined_records(self, servers: Mapping[str, Tree]) -> Mapping[str, Tensor]:
        """Return the inner method's records of each of `servers`, named by record and server."""
        records = {key: self.inner.record(server) for key, server in servers.items()}
        return {name + key: leaf for key, record in records.items() for name, leaf in record.items()}


@dataclass(frozen=True)
class Coalitions(WrapperMethod):
    """A method inside each coalition of clients; a subclass defines the coalitions."""

    family: ClassVar[str] = "clustered"

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start with one coalition of all."""
        server, memory = self.inner.init(task, population, generator)
        coalition = torch.zeros(population.clients, dtype=torch.int64)
        return {"coalition": coalition, **copies(server, 1)}, memory

    def prepare(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Group the clients; clients that no round met are placed in the existing groups.

        Raises:
            IndexError: the method has no rule for their place, or the method inside has coalitions itself.
        """
        late = preparation.everyone
        if bool(torch.isin(late.ids, late.served).all()):
            return self.group(preparation, server, memory)
        inner = self.inner
        while isinstance(inner, WrapperMethod) and not isinstance(inner, Coalitions):
            inner = inner.inner
        if isinstance(inner, Coalitions):
            raise IndexError("a new client's coalition in the coalition is not known")
        coalition = server["coalition"].cpu().clone()
        coalition[late.ids] = self.place(preparation, {**server, "coalition": coalition}, memory).cpu()
        return {**server, "coalition": coalition}, memory

    def group(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Return state and memory with the coalitions found before training; by default there are none."""
        return server, memory

    def place(self, preparation: Preparation, server: Tree, memory: Tree) -> Tensor:
        """Return the coalition of each client of the preparation, int64 [C], independent of the other clients."""
        raise IndexError("coalitions are of clients that took part")

    def collaboration(self, server: Tree, population: Population) -> Tensor | None:
        """Return each client's row of the inner method's W, among the members of its coalition, [N, N].

        If the inner method averages, W_ij = n_j / n of the coalition (FedCollab's A, Eq. 9), or the method's other
        weights of clients.
        """
        coalition = server["coalition"].cpu()
        rows = self.combined_rows(self._servers(server), coalition, population)
        if rows is not None:
            # Some inner methods grouped or compared all clients; their servers hear from the members alone.
            return functional.normalize(rows * (coalition.unsqueeze(1) == coalition), p=1, dim=1)
        shares = self.inner.shares(population.sizes)
        return None if shares is None else torch.from_numpy(size_weights(coalition.numpy(), shares.numpy()))

    def record(self, server: Tree) -> Mapping[str, Tensor]:
        """Return the inner method's records of each coalition: `name:k` for number k."""
        return self.combined_records({f":{k}": own for k, own in self._servers(server).items()})

    def _servers(self, server: Tree) -> dict[int, Tree]:
        """Return the inner server of each coalition that has members."""
        return {k: server_of(server, k) for k in server["coalition"].unique().tolist()}

    # ---- one base server a coalition

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send each client the message of its coalition's server.

        Raises:
            IndexError: there are several coalitions and a client has none: no round met it, `prepare` did not place it.
        """
        coalition = server["coalition"].cpu()
        if coalition.any() and not torch.isin(cohort.ids, cohort.served).all():
            raise IndexError("coalitions are of clients that took part")
        members = coalition[cohort.ids]
        parts = [
            (members == k, self.inner.send(server_of(server, k), members_of(cohort, coalition, k)))
            for k in members.unique().tolist()
        ]
        if len(parts) == 1:
            return parts[0][1]
        return {key: _merged([(chosen, part[key]) for chosen, part in parts]) for key in parts[0][1]}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Give each coalition's server its members' uploads; a server without a member in the cohort stays."""
        coalition = server["coalition"].cpu()
        members = coalition[cohort.ids]
        base = trees.under(server, "base")
        for k in members.unique().tolist():
            own = trees.take(uploads, (members == k).nonzero().flatten())
            updated = self.inner.aggregate(trees.row(base, k), own, members_of(cohort, coalition, k))
            base = trees.put(base, torch.tensor([k]), trees.map_leaves(lambda leaf: leaf.unsqueeze(0), updated))
        return {**server, "coalition": coalition, **trees.join(base=base)}

    def common(self, server: Tree, task: Task) -> Tree | None:
        """Return the inner method's global model, if there is one coalition only."""
        return self.inner.common(server_of(server, 0), task) if int(server["coalition"].max()) == 0 else None


def server_of_groups(server: Tree, coalition: npt.NDArray[np.int64], count: int) -> Tree:
    """Return a clustered method's state: `coalition` [N], and `count` inner servers that all start as `server`."""
    return {"coalition": torch.from_numpy(coalition), **trees.clone(copies(server, count))}


def copies(server: Tree, count: int) -> Tree:
    """Return `count` copies of an inner server: leaves base/* [K, ...] that still share memory."""
    return trees.join(base=trees.expand(server, count))


def server_of(server: Tree, coalition: int) -> Tree:
    """Return the inner server of a coalition."""
    return trees.row(trees.under(server, "base"), coalition)


def members_of(cohort: Cohort, coalition: Tensor, k: int) -> Cohort:
    """Return the cohort's members of coalition `k`."""
    return cohort.where(coalition[cohort.ids] == k, cohort.served[coalition[cohort.served] == k])


def prepares(method: Method) -> bool:
    """Return whether `method` works on all clients' data before or between rounds."""
    kind = type(method)
    if issubclass(kind, Coalitions):
        return kind.group is not Coalitions.group
    if isinstance(method, WrapperMethod) and kind.prepare is WrapperMethod.prepare:
        return prepares(method.inner)
    return kind.prepare is not Method.prepare


def by_client(samples: Batch, population: Population) -> list[Batch]:
    """Return each client's part of the `samples` of all."""
    sizes = population.sizes.long().tolist()
    return [Batch(x, y) for x, y in zip(samples.x.split(sizes), samples.y.split(sizes), strict=True)]


def _merged(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Merge leaves into one [C, ...]: the rows of each (mask [C], leaf) go in order where its mask is true."""
    rows: list[Tensor] = []
    index = torch.empty(len(parts[0][0]), dtype=torch.int64)
    begin = 0
    for mask, leaf in parts:
        shared = trees.is_shared(leaf)
        rows.append(leaf[:1] if shared else leaf)
        index[mask] = torch.full((len(leaf),), begin) if shared else torch.arange(begin, begin + len(leaf))
        begin += len(rows[-1])
    merged = torch.cat(rows)
    return merged.index_select(0, sent(index, merged.device))


def size_weights(groups: npt.ArrayLike, sizes: npt.ArrayLike) -> Array:
    """Return the row-stochastic W [N, N]: W_ij = n_j / n of their group where i and j share one, else 0.

    `groups` [N] are the clients' groups, `sizes` [N] their samples.
    """
    p = np.asarray(groups)
    shared = (p[:, None] == p[None, :]) * np.asarray(sizes, np.float64)
    return np.asarray(shared / shared.sum(1, keepdims=True))


# ---- groups of clients by their models


def cluster_local_models(
    preparation: Preparation, message: Tree, memory: Tree, k: int, rounds: int, compared: tuple[str, ...]
) -> npt.NDArray[np.int64]:
    """Return each client's group out of `k`, [N]: k-means of models that the clients train alone for `rounds`.

    The models' distances and the groups are kept with the run.
    """
    models = preparation.round(message, memory, rounds=rounds)
    points = isometric_coordinates(weight_vectors(models, preparation.task, compared).cpu().numpy())
    coalition = kmeans(points, k)
    preparation.keep("distances", distances(points))
    preparation.keep("coalition", coalition)
    return coalition


def least_moved(preparation: Preparation, server: Tree, memory: Tree, compared: tuple[str, ...]) -> Tensor:
    """Return the coalition [C] whose model moves least in one local work of the client.

    Distances compare the `compared` weights.
    """
    base, apart = trees.part(server, "base"), []
    for k in range(len(next(iter(base.values())))):
        message = trees.expand(trees.row(base, k), len(preparation.everyone.ids))
        trained = preparation.round(message, memory)
        ends, begin = (weight_vectors(each, preparation.task, compared) for each in (trained, message))
        apart.append((ends - begin).norm(dim=1))
    return torch.stack(apart).argmin(0)


def weight_vectors(models: Tree, task: Task, compared: tuple[str, ...]) -> Tensor:
    """Return the weights of `models` [N, ...] that are `compared` (selectors), float64 [N, P]."""
    return trees.flatten(task.split(task.weights(models), compared)[0]).double()


def isometric_coordinates(points: Array) -> Array:
    """Return `points` [N, P] as isometric points [N, N]: distances between a few large vectors need few dimensions."""
    centred = points - points.mean(0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    return np.asarray(vectors * np.sqrt(np.clip(values, 0, None)))


def distances(points: Array) -> Array:
    """Return the Euclidean distance of each pair of `points` [N, d], [N, N]."""
    from scipy.spatial.distance import pdist, squareform

    return np.asarray(squareform(pdist(points)))


def kmeans(points: Array, count: int) -> Labels:
    """Return the group of each of `points` [N, d] by Lloyd's algorithm, the best of several seedings; `count` at most.

    There are no random draws: seedings are farthest-first traversals from points near to and far from the mean.
    So the points' order only permutes the result.
    """
    depth = np.argsort(((points - points.mean(0)) ** 2).sum(1), kind="stable")
    firsts = depth[np.unique(np.linspace(0, len(points) - 1, min(STARTS, len(points))).round().astype(int))]
    best, least = np.zeros(len(points), dtype=np.int64), np.inf
    for first in firsts:
        labels, inertia = _lloyd(points, _farthest_first(points, count, int(first)))
        if inertia < least * (1 - SAME):
            best, least = labels, inertia
    return np.asarray(np.unique(best, return_inverse=True)[1], dtype=np.int64)


def _squared(points: Array, centres: Array) -> Array:
    return np.asarray(((points[:, None] - centres[None]) ** 2).sum(2))


def _farthest_first(points: Array, count: int, first: int) -> Array:
    seeds = [first]
    gaps = _squared(points, points[[first]])[:, 0]
    while len(seeds) < min(count, len(points)):
        seeds.append(int(gaps.argmax()))
        gaps = np.minimum(gaps, _squared(points, points[seeds[-1:]])[:, 0])
    return points[seeds]


def _lloyd(points: Array, centres: Array) -> tuple[Labels, float]:
    """Return (labels [N], sum of squared distances from the centres)."""
    labels = np.full(len(points), -1)
    for _ in range(PASSES):
        nearest = _squared(points, centres).argmin(1)
        if (nearest == labels).all():
            break
        labels = nearest
        centres = np.stack(
            [points[labels == k].mean(0) if (labels == k).any() else centre for k, centre in enumerate(centres)]
        )
    return labels, float(_squared(points, centres).min(1).sum())
