"""CFL: Sattler et al., Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization, TNNLS 2021.

FedAvg runs in each cluster; at first all clients are in one. Let d_i = theta_i - theta be the updates of a cluster's
clients. A cluster is cut once it is near a stationary point and some client is not: ||sum_i n_i / n_c d_i|| < eps1 and
max_i ||d_i|| > eps2. The cut makes the largest cosine similarity across the halves, alpha, as small as possible
(Algorithm 1: single linkage). It needs sqrt((1 - alpha) / 2) > gamma_max. The halves continue from the averages of
their own clients.

The authors' code differs in five settings: complete linkage (`linkage: complete`), unweighted means (`uniform`), no cut
of fewer than three clients (`smallest: 3`), no gamma_max, and no cut in the first 20 rounds (`warmup: 20`). pFedGraph's
code, which also produced FedSaC's row, is the same without the warm-up, with eps1 = 2 and eps2 = 2.5.
eps1 = .4 and eps2 = 1.6 are the authors' values. They are lengths of updates, which depend on data, network and local
work. If updates stay shorter than eps2, no cluster is ever cut and the method is FedAvg. With `relative`
(our addition) both are multiples of the largest mean update that the cluster's members have had so far.
FedCollab's comparison calls the method FedCluster and publishes no settings. The preset `fedcluster` has relative
thresholds and gamma_max = .7 (halves whose most similar updates are orthogonal). We chose them by the groups that they
find, not by accuracy: on FedCollab's label shift they find the three planted groups on Fashion-MNIST, and on digits
large and small clients.

A client that is held out of training (`protocol.unseen`) follows the tree of cuts, as in the paper. At each cut of its
cluster it trains from the model before the cut and joins the half to which its update has the larger cosine similarity.

Deviations:
- If not all clients take part, absent members of a cluster stay with the half that has more samples.
- In the tree an update is compared with the mean update of each half, so that a cut stores one model and one vector.
  The paper compares it with each member's update and takes the most similar.

Batch normalisation: statistics do not count in norms and cosines. Within a cluster they are shared and averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least, one_of, share
from fedbench.config.schema import added
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Cohort, Preparation
from fedbench.engine.method import Method
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.parts.clustered import Array, Coalitions, members_of
from fedbench.models.task import Task


@dataclass(frozen=True)
class CFL(Coalitions):
    """FedAvg whose clusters split when their clients' updates disagree.

    Server: coalition [N]; base/* [M, ...]; peak [N] if relative; distances [N, N] if a cut was looked at;
        cut/from [C] if C cuts were made; cut/way [C, P] if one was; cut/model/* [C, ...] if one was
    Memory: nothing
    Message: * [...]
    Upload: * [...]
    """

    eps1: float = at_least(0, 0.4)  # a cluster splits if its mean update is shorter than this ...
    eps2: float = at_least(0, 1.6)  # ... and the longest update of its clients is longer than this
    gamma_max: float = share(0.0)  # least separation sqrt((1 - alpha) / 2) of the halves
    relative: bool = False  # eps1 and eps2 are in units of the cluster's largest mean update so far
    # linkage of the bipartition: "single" (Algorithm 1) or "complete" (code)
    linkage: str = one_of("single", "complete")
    warmup: int = at_least(0, 0)  # rounds before the first split
    uniform: bool = added(False)  # true: means count clients equally, not by their samples
    smallest: int = added(at_least(2, 2))  # least number of members of a cluster that splits

    paper: ClassVar[str] = "Sattler et al., IEEE TNNLS 2021"

    @property
    def inner(self) -> Method:
        return FedAvg()

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start with one cluster of all; for relative thresholds, the largest mean update of each client's clusters."""
        server, memory = super().init(task, population, generator)
        if self.relative:
            server["peak"] = torch.zeros(population.clients, dtype=torch.float64)
        return server, memory

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Split the clusters that are due, then FedAvg in each."""
        server = {**server, "coalition": server["coalition"].cpu()}
        cohort = replace(cohort, population=self._counted(cohort.population))
        if self.relative or cohort.clock.round >= self.warmup:
            models = trees.flatten(cohort.task.weights(uploads)).double()
            for k, updates, *lengths in self._updates(server, models, cohort):
                server = self._split(server, updates, cohort, k, *lengths)
        return super().aggregate(server, uploads, cohort)

    def _updates(self, server: Tree, models: Tensor, cohort: Cohort) -> list[tuple[int, Tensor, float, float, float]]:
        """Return for each cluster k its members' updates [M, P], and the lengths of their mean, the longest, the peak.

        `models` [C, P] are the cohort's weights.
        """
        coalition = server["coalition"]
        centres = trees.flatten(cohort.task.weights(trees.under(server, "base"))).double()
        peak = server.get("peak", torch.zeros(len(coalition), dtype=torch.float64, device=models.device))
        numbers = coalition[cohort.ids].unique().tolist()
        moved, lengths = [], []
        for k in numbers:
            members = members_of(cohort, coalition, k)
            index = sent((coalition[cohort.ids] == k).nonzero().flatten(), models.device)
            updates = models[index] - centres[k]
            shares = sent(members.sizes / members.sizes.sum(), models.device)
            largest = peak[sent(members.served, peak.device)].max()
            moved.append(updates)
            lengths.append(torch.stack([(shares @ updates).norm(), updates.norm(dim=1).max(), largest]))
        scalars = torch.stack(lengths).tolist()
        return [(k, updates, *three) for k, updates, three in zip(numbers, moved, scalars, strict=True)]

    def _split(
        self, server: Tree, updates: Tensor, cohort: Cohort, k: int, drift: float, longest: float, peak: float
    ) -> Tree:
        """Return `server` with cluster `k`'s peak as it is now, and the cluster cut in two if it is due."""
        base, coalition = trees.under(server, "base"), server["coalition"].clone()
        members = members_of(cohort, coalition, k)
        unit = 1.0
        if self.relative:
            unit = max(drift, peak)
            mask = sent(coalition == k, server["peak"].device)
            server = {**server, "peak": server["peak"].masked_fill(mask, unit)}
        if cohort.clock.round < self.warmup or not (drift < self.eps1 * unit and longest > self.eps2 * unit):
            return server
        if len(updates) < self.smallest:
            return server
        similarity = cosines(updates.cpu().numpy())
        server = {**server, "distances": self._latest_distances(server, members.ids, similarity)}
        leaving = self._leaving(similarity, members.sizes.numpy())
        if leaving is None:
            return server
        new = len(next(iter(base.values())))
        coalition[members.ids[torch.from_numpy(leaving)]] = new
        grown = {key: torch.cat([leaf, leaf[k : k + 1]]) for key, leaf in base.items()}
        way = self._way(updates, members.sizes, torch.from_numpy(leaving))
        cut = trees.join(cut={"from": torch.tensor(k), "way": way, **trees.join(model=trees.row(base, k))})
        cuts = {
            key: torch.cat([server[key].to(leaf.device), leaf[None]]) if key in server else leaf[None]
            for key, leaf in cut.items()
        }
        return {**server, "coalition": coalition, **trees.join(base=grown), **cuts}

    def _way(self, updates: Tensor, sizes: Tensor, leaving: Tensor) -> Tensor:
        """Return the direction [P] of a cut: the leaving clients' mean update minus the others', both of length 1.

        It is computed from `updates` [M, P], `sizes` [M] and `leaving` [M].
        """
        halves = sent(torch.stack([leaving, ~leaving]) * sizes, updates.device) @ updates
        leave, stay = functional.normalize(halves, eps=torch.finfo(halves.dtype).tiny)
        way: Tensor = leave - stay
        return way.float()

    def place(self, preparation: Preparation, server: Tree, memory: Tree) -> Tensor:
        """Return the cluster to which each client's updates lead it: cut number s parted the cluster s + 1."""
        count, models = len(preparation.everyone.ids), trees.part(server, "cut/model")
        coalition = torch.zeros(count, dtype=torch.int64)
        for s, parted in enumerate(server["cut/from"].tolist()):
            message = trees.expand(trees.row(models, s), count)
            trained = preparation.round(message, memory)
            ends, begin = (trees.flatten(preparation.task.weights(each)).double() for each in (trained, message))
            leaves = (ends - begin) @ server["cut/way"][s].double() > 0
            coalition[(coalition == parted) & leaves.cpu()] = s + 1
        return coalition

    def _latest_distances(self, server: Tree, ids: Tensor, similarity: Array) -> Tensor:
        """Return 1 - S [N, N] of each pair when a cluster with both was last about to be cut; nan before."""
        clients = len(server["coalition"])
        distances = server.get("distances")
        distances = (
            torch.full((clients, clients), torch.nan, dtype=torch.float64) if distances is None else distances.clone()
        )
        ids = sent(ids, distances.device)
        distances[ids[:, None], ids] = sent(torch.from_numpy(1 - similarity), distances.device)
        return distances

    def _counted(self, population: Population) -> Population:
        """Return `population` as means count it."""
        return replace(population, sizes=torch.ones_like(population.sizes)) if self.uniform else population

    def collaboration(self, server: Tree, population: Population) -> Tensor | None:
        return super().collaboration(server, self._counted(population))

    def record(self, server: Tree) -> Mapping[str, Tensor]:
        """Return the distances that cuts were decided by, if there were any, and the clusters."""
        return {name: server[name] for name in ("distances", "coalition") if name in server}

    def _leaving(self, similarity: Array, sizes: Array) -> np.ndarray | None:
        """Return which members leave a cluster, bool [M], by similarity [M, M] and sizes [M]; None if none is to."""
        side, across = bipartition(similarity, self.linkage)
        if not np.sqrt((1 - across) / 2) > self.gamma_max:
            return None
        return side if sizes[side].sum() < sizes[~side].sum() else ~side


# ---- two groups by cosine similarity


def cosines(vectors: Array) -> Array:
    """Return the cosine similarity of each pair of `vectors` [N, P], [N, N]; zero vectors are orthogonal to all."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(norms > 0, norms, 1)
    return np.asarray(np.clip(units @ units.T, -1, 1))


def bipartition(similarity: Array, linkage: str) -> tuple[npt.NDArray[np.bool_], float]:
    """Return (side of each of N >= 2 points, largest similarity across): two groups of `similarity` [N, N].

    They are found by agglomeration.
    Single linkage makes the largest similarity across as small as any bipartition can (Sattler et al., Algorithm 1).
    """
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    gaps = squareform(1 - similarity, checks=False)
    root = hierarchy.to_tree(hierarchy.linkage(gaps, linkage))
    side = np.isin(np.arange(len(similarity)), root.get_left().pre_order())
    return side, float(similarity[np.ix_(side, ~side)].max())
