"""FLUX: Fenoglio et al., Descriptor-Driven Clustered FL under Arbitrary Distribution Shifts, NeurIPS 2025.

FedAvg runs for `cluster_round` rounds. Then each client describes its samples once and the server groups the clients.
Each group continues alone from the global model.
A descriptor summarises the features under that model, the classifier's input, projected on r = min(K, d) axes. It has
the mean and the standard deviation of all samples and of each class (-1 if a class has fewer than two samples): 2 + 2 K
blocks of r numbers. Each block is scaled to [0, 1] over all clients. The axes need no data: they are the principal axes
of 200 points drawn uniformly below 1.02 times the clients' largest feature. DBSCAN joins clients in chains of distances
up to eps. eps is the elbow (Kneedle) of the sorted distances to the nearest other client, times `eps_scale`. No client
is noise; a client without a neighbour is a group.
A client that no round met needs no labels. It describes all its samples, two blocks, by the model of that moment and
joins the group whose members' mean is nearest in these blocks.

We know only the abstract of the paper. The description follows the authors' code, flux/ and public/, with the values of
config.py. No preset follows the text.

Deviations:
- The features are the input of the last linear layer. The code has that of the first (`model.classifier=linear`).
- The round is fixed. In the code it is the first after the third by which the mean accuracy has risen by less than 0.06
  in any round, which is usually the fourth.
- The largest feature comes from the training samples. In the code it comes from the validation samples.
- The pair whose distance is eps counts as near. In the code rounding decides.
- Without an elbow eps is the largest of the distances. The code stops.
- The code's second score, of clients that took part as if they were new, is not built, nor is its noise for privacy.

Batch normalisation: within a group statistics are shared and averaged. Descriptors use the running statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedbench.config.fields import at_least, positive
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Conformance, Preparation
from fedbench.engine.method import ONE_NETWORK, Method
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.parts.clustered import (
    Array,
    Coalitions,
    Labels,
    by_client,
    distances,
    server_of,
    server_of_groups,
)
from fedbench.methods.parts.features import blocks
from fedbench.models.task import Task

POINTS, MARGIN = 200, 1.02  # points behind the axes; their limit, in units of the largest feature


@dataclass(frozen=True)
class FLUX(Coalitions):
    """Clients are grouped once by moments of their features, with FedAvg in each group; new ones join without labels.

    Server: coalition [N]; base/* [M, ...]; seer/* [...]; px/axes [r, d]; px/centre [d]; px/low [2]; px/high [2];
        px/groups [M, 2, r]
    Memory: nothing
    Message: * [...]
    Upload: * [...]
    """

    cluster_round: int = at_least(0, 3)  # rounds of FedAvg before clients are grouped
    eps_scale: float = positive(1.0)  # factor on the elbow; the product is the largest distance of near clients

    paper: ClassVar[str] = "Fenoglio et al., NeurIPS 2025"
    unfit: ClassVar[Mapping[str, str]] = {**ONE_NETWORK, "regression": "describes the features of each class"}

    @property
    def inner(self) -> Method:
        return FedAvg()

    @property
    def conformance(self) -> Conformance:
        return Conformance(settings={"cluster_round": 0})

    @property
    def prepare_round(self) -> int:
        return self.cluster_round

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start with one group of all clients; its model makes the descriptors."""
        server, memory = super().init(task, population, generator)
        model = server_of(server, 0)
        width = task.features(model, torch.zeros(1, *task.shape)).shape[1]
        r = min(task.classes, width, POINTS)
        px = {"axes": torch.zeros(r, width), "centre": torch.zeros(width), "groups": torch.zeros(1, 2, r)}
        return {**server, **trees.join(seer=model, px={**px, "low": torch.zeros(2), "high": torch.ones(2)})}, memory

    def group(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Group the clients by their descriptors; all groups start from the global model."""
        model, task, samples = server_of(server, 0), preparation.task, preparation.samples()
        found = torch.cat([task.features(model, block.x) for block in blocks(samples)])
        z, y = found.double().cpu().numpy(), samples.y.cpu().numpy()
        axes, centre = principal_axes(float(z.max()), len(server["px/axes"]), z.shape[1])
        projected, last = (z - centre) @ axes.T, preparation.population.sizes.cumsum(0).long().tolist()
        own = [(projected[first:end], y[first:end]) for first, end in pairwise([0, *last])]
        described = np.stack([descriptor(points, labels, task.classes) for points, labels in own])  # [N, 2 + 2 K, r]
        for row in described:
            preparation.meter.received({"descriptor": torch.from_numpy(row).to(found.dtype).unsqueeze(0)})
        low, high = described.min((0, 2)), described.max((0, 2))
        scaled = (described - low[:, None]) / np.where(high > low, high - low, 1)[:, None]
        apart = distances(scaled.reshape(len(scaled), -1))
        coalition = chains(apart, self.eps_scale)
        preparation.keep("distances", apart)
        preparation.keep("coalition", coalition)
        means = np.stack([scaled[coalition == k, :2].mean(0) for k in range(coalition.max() + 1)])
        px = {"axes": axes, "centre": centre, "low": low[:2], "high": high[:2], "groups": means}
        placed = {name: torch.from_numpy(np.ascontiguousarray(leaf)).to(found) for name, leaf in px.items()}
        return {**server_of_groups(model, coalition, len(means)), **trees.join(seer=model, px=placed)}, memory

    def place(self, preparation: Preparation, server: Tree, memory: Tree) -> Tensor:
        """Return the group that is nearest to each client's samples."""
        seer, px = trees.part(server, "seer"), trees.part(server, "px")
        samples = by_client(preparation.samples(), preparation.population)
        ids = preparation.everyone.ids.tolist()
        return torch.stack([nearest(seer, px, samples[client], preparation.task) for client in ids])


def nearest(seer: Tree, px: Tree, data: Batch, task: Task) -> Tensor:
    """Return the group whose mean is nearest to the mean and deviation of the projected features of `data`."""
    points = (torch.cat([task.features(seer, block.x) for block in blocks(data)]) - px["centre"]) @ px["axes"].t()
    moments = torch.stack([points.mean(0), points.std(0, correction=0)])  # [2, r]
    span = torch.where(px["high"] > px["low"], px["high"] - px["low"], 1.0)
    scaled = (moments - px["low"].unsqueeze(1)) / span.unsqueeze(1)
    return (px["groups"] - scaled).square().sum((1, 2)).argmin()


def principal_axes(largest: float, count: int, width: int) -> tuple[Array, Array]:
    """Return `count` principal axes [r, d] of uniform points up to MARGIN times `largest`, and their mean [d]."""
    from sklearn.decomposition import PCA

    points = np.random.RandomState(1).uniform(0, MARGIN * max(largest, 0) or 1, (POINTS, width))  # the code's seed
    fitted = PCA(count, svd_solver="full").fit(points)
    return fitted.components_, fitted.mean_


def descriptor(points: Array, y: Labels, classes: int) -> Array:
    """Return means and deviations [2 + 2 K, r] of `points` [n, r]: of all, then every class's mean, then deviation."""
    parts = [points[y == c] for c in range(classes)]
    missing = np.full(points.shape[1], -1.0)
    means = [part.mean(0) if len(part) > 1 else missing for part in parts]
    deviations = [part.std(0) if len(part) > 1 else missing for part in parts]
    return np.stack([points.mean(0), points.std(0), *means, *deviations])


def chains(apart: Array, scale: float) -> Labels:
    """Return the group of each client [N] from distances [N, N]: DBSCAN of two, with noise as groups of one."""
    from scipy.sparse.csgraph import connected_components

    if len(apart) < 2:
        return np.zeros(len(apart), dtype=np.int64)
    nearest = np.sort((apart + np.diag(np.full(len(apart), np.inf))).min(1))
    return np.asarray(connected_components(apart <= scale * elbow(nearest), directed=False)[1], dtype=np.int64)


def elbow(values: Array) -> float:
    """Return the value at the elbow of an increasing convex curve, ascending `values` [n]; the last if it has none.

    Kneedle (Satopaa et al., 2011) with sensitivity 1, as the package kneed has it.
    """
    low, high = values[0], values[-1]
    if not high > low:
        return float(high)
    along, up = (1 - np.arange(len(values)) / (len(values) - 1))[::-1], (values - low) / (high - low)
    above, step = (up.max() - up)[::-1] - along, np.diff(along).mean()
    padded = np.concatenate([above[:1], above, above[-1:]])
    peak = (above >= padded[:-2]) & (above >= padded[2:])
    valley = (above <= padded[:-2]) & (above <= padded[2:])
    place, threshold = 0, -np.inf
    for i in range(int(peak.argmax()), len(values) - 1):
        if peak[i]:
            place, threshold = i, above[i] - step
        if valley[i]:
            threshold = -np.inf
        if above[i + 1] < threshold:
            return float(values[-(place + 1)])
    return float(high)
