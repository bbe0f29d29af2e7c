"""Base of methods in which no model crosses the network, only class means of what the clients' models compute.

Client k uploads sums and counts of a value v(x) for each class of its data (features: FedProto, logits: FedDistill),
and receives for each class a mean over clients, to which it pulls v(x) of its samples in local training.
Batch normalisation: each client's model is its own, statistics included; v is computed in evaluation mode for upload.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Cohort
from fedbench.engine.method import Method
from fedbench.models.task import Task

# Passes over all of a client's samples, in blocks so that activations of a large client fit in memory.

BLOCK = 512  # samples a forward pass


def blocks(batch: Batch, size: int = BLOCK) -> Iterator[Batch]:
    """`batch` cut into pieces of at most `size` samples, padding and mask kept."""
    for first in range(0, len(batch.y), size):
        rows = slice(first, first + size)
        mask = None if batch.mask is None else batch.mask[rows]
        yield Batch(batch.x[rows], batch.y[rows], mask)


def class_sums(values: Callable[[Batch], Tensor], data: Batch, classes: int) -> tuple[Tensor, Tensor]:
    """Per class of all of `data`: sum of `values` ([B, d] of a block) -> [K, d], and sample counts [K]."""
    parts = [block.class_sums(values(block), classes) for block in blocks(data)]
    return torch.stack([sums for sums, _ in parts]).sum(0), torch.stack([n for _, n in parts]).sum(0)


def mean_loss(model: Tree, data: Batch, task: Task) -> Tensor:
    """Mean cross-entropy of `model` in evaluation mode on all of `data`, a scalar."""
    sums = [
        block.sum(torch.nn.functional.cross_entropy(task.apply(model, block.x), block.y, reduction="none"))
        for block in blocks(data)
    ]
    return trees.sum_of(sums) / data.count


@dataclass(frozen=True)
class ClassMeans(Method):
    """Clients with models of their own share class means."""

    lam: float = at_least(0, 1.0)  # weight of the pull towards the received means

    family: ClassVar[str] = "personalised"

    @property
    def averages(self) -> bool:
        """No model crosses."""
        return False

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """The means are over all training samples."""
        return frozenset({"finish"})

    # ---- what a subclass says

    @abstractmethod
    def split(self, features: Tensor, logits: Tensor) -> Tensor:
        """v(x) [B, d], one of the two."""

    @abstractmethod
    def means(self, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """What each client receives from all class sums [N, K, d] and counts [N, K].

        Returns means [N, K, d] or [1, K, d], and as bool [N, K] or [1, K] for which classes there is one.
        """

    @abstractmethod
    def pull(self, values: Tensor, targets: Tensor) -> Tensor:
        """How far v(x) [B, d] is from the means of the samples' classes [B, d], [B]."""

    # ---- server

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """No means yet; all clients start from one model."""
        model = task.init(generator)
        features = task.features(model, torch.zeros(1, *task.shape))
        width = self.split(features, task.head(model, features)).shape[1]
        shape = (population.clients, task.classes)
        server = {"sums": torch.zeros(*shape, width), "counts": torch.zeros(shape)}
        return server, trees.expand(model, population.clients)

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """The class means of the latest uploads of this server's clients."""
        means, present = self.means(server["sums"], server["counts"])
        rows = cohort.ids if len(means) > 1 else torch.zeros_like(cohort.ids)
        return trees.take({"classes/means": means, "classes/present": present}, rows)

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Remember each client's latest upload."""
        return trees.put(server, cohort.ids, uploads)

    # ---- client

    def start(self, client: Client) -> Tree:
        """The client's own model."""
        return client.memory

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Cross-entropy + lam * mean over samples of the pull, where their class has a mean."""
        task = client.task
        features = task.features(work, batch.x, train=True, mask=batch.mask)
        logits = task.head(work, features)
        targets = client.message["classes/means"][batch.y]
        known = client.message["classes/present"][batch.y]
        pull = torch.where(known, self.pull(self.split(features, logits), targets), 0.0)
        return task.criterion(logits, batch) + self.lam * batch.mean(pull)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload class sums and counts, keep the model."""

        def values(block: Batch) -> Tensor:
            features = client.task.features(work, block.x)
            return self.split(features, client.task.head(work, features))

        sums, counts = class_sums(values, client.data, client.task.classes)
        return {"sums": sums, "counts": counts}, work


# Representative subspaces of clients' features and the angles between them (FedSaC, Eqs. 5-7).

NEGLIGIBLE = 1e-6  # share of the largest eigenvalue below which a direction is no direction of the data


def products(model: Tree, data: Batch, task: Task, centred: bool = False) -> Tree:
    """What `directions` needs of the features X [n, d] of all of `data`.

    `gram` [d, d], X^T X, or n times the covariance if `centred`; `least` [], an eigenvalue that may be rounding alone.
    """
    gram, total = torch.zeros(()), torch.zeros(())
    for block in blocks(data):
        z = task.features(model, block.x)
        z = z if block.mask is None else z * block.mask.to(z.dtype).unsqueeze(1)
        gram, total = gram + z.t() @ z, total + z.sum(0)
    if not centred:
        return {"gram": gram, "least": torch.zeros_like(total[0])}
    count = data.count.to(total.dtype)
    return {
        "gram": gram - torch.outer(total, total) / count,
        "least": NEGLIGIBLE * total.square().sum() / count,  # of what was subtracted
    }


def directions(products: Tree, rank: int) -> Tensor:
    """The `rank` leading right singular vectors [d, rank] of the features X, principal components if they are centred.

    Columns beyond X's rank, of clients with few samples, are zero. Each column's sign makes its largest entry positive.
    """
    values, vectors = torch.linalg.eigh(products["gram"])  # ascending
    rank = min(rank, len(values))
    values, vectors = values[-rank:].flip(0), vectors[:, -rank:].flip(1)
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    real = values > NEGLIGIBLE * values[0].clamp(min=torch.finfo(values.dtype).tiny)
    basis: Tensor = vectors * largest.sign() * (real & (values > products["least"]))
    return basis


def complementarity(U: Tensor, greedy: bool = False) -> Tensor:
    """C_ij = cos(mean_l phi_l) [C, C] from bases U [C, d, k], over as many angles as the smaller has directions.

    cos phi_l is the l-th singular value of U_i^T U_j, or, if `greedy`, the next largest of its signed entries with rows
    and columns used once. 0 for a client without directions, 1 on the diagonal.
    """
    U = U.to(torch.float64)
    products = torch.einsum("ida,jdb->ijab", U, U)
    ranks = (U.square().sum(1) > 0.5).sum(1)
    count = torch.minimum(ranks.unsqueeze(0), ranks.unsqueeze(1))  # [C, C]
    cosines = _greedy(products, U) if greedy else torch.linalg.svdvals(products)
    counted = torch.arange(U.shape[2], device=U.device) < count.unsqueeze(2)
    angles = cosines.clamp(-1, 1).arccos() * counted
    found = (angles.sum(2) / count.clamp(min=1)).cos()
    return found.masked_fill(count == 0, 0.0).fill_diagonal_(1.0)


def _greedy(products: Tensor, U: Tensor) -> Tensor:
    """The code's matching: k picks [C, C, k] from each matrix of products [C, C, k, k], missing directions last."""
    k = U.shape[2]
    missing = U.square().sum(1) < 0.5  # [C, k]
    left = products.masked_fill(missing.view(-1, 1, k, 1) | missing.view(1, -1, 1, k), -2.0).clone()
    picks = []
    for _ in range(k):
        value, place = left.flatten(2).max(2)
        picks.append(value)
        used = torch.nn.functional.one_hot(place // k, k).bool().unsqueeze(3)
        used = used | torch.nn.functional.one_hot(place % k, k).bool().unsqueeze(2)
        left = left.masked_fill(used, -3.0)
    return torch.stack(picks, dim=2)
