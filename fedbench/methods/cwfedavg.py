"""cwFedAvg: Lee & Choi, Class-Wise Federated Averaging for Efficient Personalization, ICCV 2025.

There is one global model for each class. Client i counts in the model of class j with weight n_i p_ij, where p_i is its
distribution of classes: w^j = sum_i n_i p_ij w_i / sum_i n_i p_ij. It starts from its own mixture of them, sum_j p_ij
w^j. The server estimates p_i from the output layer: p~_ij = ||v_ij||_2 / sum_k ||v_ik||_2, where v_ij are the weights
into class j. A weight distribution regulariser keeps p~_i near p_i: client i minimises F_i(w) + lambda / 2 ||p_i -
p~_i||_2.

The default is the first command in the README of the authors' code: only the output layer is class-wise, the layers
below are averaged by n_i / n, and lambda is 10. The second command makes all layers class-wise (preset `cwfedavg_all`).
With `distribution: empirical`, a switch of that code, the server uses p_i itself.
We know only the abstract of the paper. The description follows the code, serveravgCW.py and clientavgCW.py, and no
preset follows the text.

Deviations:
- The code needs all clients in every round, and a client mixes with the norms of the model that it holds. Here the
  norms of a client that is not drawn are those of its last upload.
- A class that no client of the round has keeps its model. This can happen only with `empirical`, where the code divides
  by zero.

Batch normalisation: affine parameters and running statistics are averaged as their layers are, class-wise or not. In
the code statistics stay on the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, one_of, selectors
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Client, Cohort, Conformance
from fedbench.engine.method import ONE_NETWORK, Method
from fedbench.models.task import Task

LEAST = 1e-12  # of a sum of squares under a root, whose slope at zero is infinite
OUTPUT = "head.weight"  # [K, d], the weights of every network's last layer


@dataclass(frozen=True)
class CwFedAvg(Method):
    """Class-wise leaves have an average for each class, and each client mixes them by its own classes.

    Server: body/* [...] if some leaves are not class-wise; classes/* [K, ...]; p [N, K]
    Memory: own/shares [N, K]
    Message: * [...]
    Upload: * [...]
    """

    lam: float = at_least(0, 10.0)  # lambda, weight of the distance between p_i and its estimate p~_i
    classwise: tuple[str, ...] = selectors(("@head",), may_be_empty=True)  # leaves that have an average for each class
    distribution: str = one_of("approximated", "empirical")  # the server mixes by "approximated" p~ or "empirical" p

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Lee & Choi, ICCV 2025"
    unfit: ClassVar[Mapping[str, str]] = {**ONE_NETWORK, "regression": "averages models class by class"}

    @property
    def conformance(self) -> Conformance:
        return Conformance(inert={"own/shares": "a client's samples stay the same"})

    def shares(self, sizes: Tensor) -> Tensor | None:
        return None if "*" in self.classwise else sizes

    # ---- server

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start every class from one model."""
        own, body = task.split(model := task.init(generator), self.classwise)
        counts = population.label_counts.double()
        shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
        p = shares if self.distribution == "empirical" else norms(model[OUTPUT].double()).expand_as(shares)
        server = {**trees.join(body=body, classes=trees.expand(own, task.classes)), "p": p}
        return trees.clone(server), trees.join(own={"shares": shares.float()})

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send the shared leaves and each client's mixture sum_j p_ij w^j."""
        p = trees.take({"p": server["p"]}, cohort.ids)["p"]
        shared = trees.expand(trees.under(server, "body"), len(cohort.ids))
        return {**shared, **trees.mix(p, trees.under(server, "classes"))}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Average the class-wise leaves by n_i p_ij, the others by n_i."""
        own, body = cohort.task.split(uploads, self.classwise)
        known = trees.take({"p": server["p"]}, cohort.ids)["p"]
        p = known if self.distribution == "empirical" else norms(uploads[OUTPUT].double())  # [C, K]
        counts = (p * sent(cohort.sizes, p.device).to(p).unsqueeze(1)).t()  # n_i p_ij, [K, C]
        met = (counts.sum(1) > 0).nonzero().flatten()
        classes = trees.mix(counts[met] / counts[met].sum(1, keepdim=True), own)
        moved = trees.put(trees.under(server, "classes"), met, classes)
        rows = trees.put({"p": server["p"]}, cohort.ids, {"p": p})
        return {**trees.join(body=cohort.mean(body), classes=moved), **rows}

    # ---- client

    def start(self, client: Client) -> Tree:
        return client.message

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_i(w) + lambda / 2 ||p_i - p~_i||_2."""
        gap = client.memory["own/shares"] - norms(work[OUTPUT])
        return super().loss(work, client, batch) + self.lam / 2 * gap.square().sum().clamp(min=LEAST).sqrt()

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        return work, client.memory


def norms(weight: Tensor) -> Tensor:
    """Return p~ [..., K] of output layers [..., K, d]."""
    lengths = weight.square().sum(-1).clamp(min=LEAST).sqrt()
    return lengths / lengths.sum(-1, keepdim=True)
