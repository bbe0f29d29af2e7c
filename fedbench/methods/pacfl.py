"""PACFL: Vahidian et al., Efficient Distribution Similarity Identification in Clustered Federated Learning, AAAI 2023.

Once, before training, each client sends the p leading left singular vectors of its samples of each class, flattened
pixels as columns, side by side: U_k. The distance of two clients is an angle between U_i and U_j. An agglomeration
merges clusters up to a distance of `threshold` degrees, and each cluster runs FedAvg.

The angle is one of three (`angle`):
- `principal`: the smallest principal angle between the spans of U_i and U_j, as in the text.
- `signed`: the smallest angle between a column of U_i and one of U_j, as in the authors' code. Its thresholds are for
  this angle. The sign of a singular vector is arbitrary.
- `columns`: as `signed`, from the absolute value of the cosine.

The code's "average" linkage is the plain mean of the two merged rows (WPGMA). The code also has a p by class size for
Dirichlet partitions, which never takes effect.

Deviations:
- Directions without variance are not sent, so a class with fewer than p samples has fewer.
- The sign of a vector makes its largest entry positive.
- Pixels are scaled to [0, 1]. A scale changes no angle.
- A client that is held out of training (`protocol.unseen`) sends its U_k after training. It joins the cluster that is
  nearest by the linkage, however far (average: the mean of its members' angles). The code clusters it with all others,
  before training.

Batch normalisation: within a cluster statistics are shared and averaged; they play no part in the angles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedbench.config.fields import at_least, finite, one_of
from fedbench.core.trees import Tree
from fedbench.engine.contract import Preparation
from fedbench.engine.method import ONE_NETWORK, Method
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.parts.clustered import Array, Coalitions, by_client, server_of, server_of_groups
from fedbench.methods.parts.features import NEGLIGIBLE

LEAST = NEGLIGIBLE**0.5  # directions below this share of the largest singular value are rounding
LINKAGES = {"average": "weighted", "maximum": "complete", "minimum": "single"}  # the code's name: scipy's
# of a point's distances from a cluster's members
NEAR: dict[str, Callable[[Array], Any]] = {"average": np.mean, "maximum": np.max, "minimum": np.min}


@dataclass(frozen=True)
class PACFL(Coalitions):
    """Clients are grouped once by the angles between the subspaces of their samples, with FedAvg in each group.

    Server: coalition [N]; base/* [M, ...]
    Memory: nothing
    Message: * [...]
    Upload: * [...]
    """

    p: int = at_least(1, 3)  # number of singular vectors of each class
    threshold: float = finite(4.9)  # largest distance of two merged clusters, degrees; below 0: no merges
    # angle of two clients: of a pair of "columns", "signed" as in the code, or "principal" of the spans
    angle: str = one_of("columns", "signed", "principal")
    linkage: str = one_of("average", "maximum", "minimum")  # linkage of clusters, by the code's names

    paper: ClassVar[str] = "Vahidian et al., AAAI 2023"
    unfit: ClassVar[Mapping[str, str]] = {**ONE_NETWORK, "regression": "compares the samples of each class"}

    @property
    def inner(self) -> Method:
        return FedAvg()

    def group(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Group the clients by their samples; all groups start from the initial weights."""
        bases = self.bases(preparation)
        distances = np.array([[smallest_angle(one, other, self.angle) for other in bases] for one in bases])
        coalition = groups(distances, self.threshold, self.linkage)
        preparation.keep("distances", distances)
        preparation.keep("coalition", coalition)
        return server_of_groups(server_of(server, 0), coalition, int(coalition.max()) + 1), memory

    def place(self, preparation: Preparation, server: Tree, memory: Tree) -> Tensor:
        """Return the cluster that is nearest to each client."""
        bases, known = self.bases(preparation), preparation.everyone.served
        coalition, found = server["coalition"][known].numpy(), []
        clusters = np.unique(coalition)
        for client in preparation.everyone.ids.tolist():
            angles = np.array([smallest_angle(bases[client], bases[k], self.angle) for k in known.tolist()])
            apart = [NEAR[self.linkage](angles[coalition == k]) for k in clusters]
            found.append(int(clusters[np.argmin(apart)]))
        return torch.tensor(found)

    def bases(self, preparation: Preparation) -> list[Array]:
        """Return U_k [d, m] of all clients' samples."""
        found = []
        for own in by_client(preparation.samples(unit=True), preparation.population):
            basis = directions(own.x.flatten(1).cpu(), own.y.cpu(), self.p)
            preparation.meter.received({"U": basis.unsqueeze(0)})
            found.append(np.asarray(basis, np.float64))
        return found


def directions(x: Tensor, y: Tensor, p: int) -> Tensor:
    """Return U [d, m]: of each class in `y` [n] the `p` leading directions of its rows of `x` [n, d], side by side."""
    found = [x.new_zeros(x.shape[1], 0)]
    for label in y.unique():
        _, values, vectors = torch.linalg.svd(x[y == label], full_matrices=False)
        kept = vectors[:p][values[:p] > LEAST * values[0].clamp(min=torch.finfo(x.dtype).tiny)].T
        largest = kept.gather(0, kept.abs().argmax(0, keepdim=True))
        found.append(kept * largest.sign())
    return torch.cat(found, dim=1)


def smallest_angle(one: Array, other: Array, angle: str) -> float:
    """Return the smallest angle in degrees between bases [d, m] and [d, l]; 180 where one has no directions."""
    from scipy.linalg import orth

    if angle == "principal":
        cosines = np.linalg.svd(orth(one, LEAST).T @ orth(other, LEAST), compute_uv=False)
    else:
        cosines = one.T @ other if angle == "signed" else np.abs(one.T @ other)
    return float(np.degrees(np.arccos(np.clip(cosines.max(initial=-1.0), -1.0, 1.0))))


def groups(distances: Array, threshold: float, linkage: str) -> np.ndarray:
    """Return the cluster of each client, int64 [N]: pairs merge by `distances` [N, N] up to `threshold`."""
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    if len(distances) < 2:
        return np.zeros(len(distances), dtype=np.int64)
    tree = hierarchy.linkage(squareform(distances, checks=False), LINKAGES[linkage])
    found = hierarchy.fcluster(tree, threshold, "distance")
    return np.asarray(np.unique(found, return_inverse=True)[1], dtype=np.int64)
