"""FedGH: Yi et al., Heterogeneous Federated Learning with Generalized Global Header, ACM MM 2023.

Clients keep extractors F_k of different networks. All have one prediction header H, the classifier layer. In a round
client k trains F_k and the received H. Then it uploads the local averaged representation of each of its classes,
R_k^s = 1 / |D_k^s| sum_x F_k(x). The server trains H: each pair (R_k^s, s) gives a step on the cross-entropy of
H(R_k^s) against s. The new H replaces the header of each client.
We read only the paper's abstract. The description follows the authors' code, FedGH_mh.py. In that code the optimiser of
the server's steps holds a client's network, so H never changes. Here H changes, as in HtFLlib.

Deviations:
- Pairs are shuffled. The code goes from client to client.
- A mean is over all samples of a class. The code averages the means of mini-batches.
- Clients of one architecture begin with one network, and all with one header. In the code each of its five networks has
  a header of its own, and in round 1 clients of one architecture train the same network one after the other.
- Traffic counts a row for every class. The code sends those of a client's own classes.
- The server's steps are plain SGD, without the code's clipping. HtFLlib takes 100 epochs of mini-batches of 10 pairs.

Batch normalisation: statistics are the client's own, as its extractor is. Uploads are computed in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least, positive
from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Cohort, Conformance
from fedbench.engine.method import Method
from fedbench.engine.optim import fit
from fedbench.methods.parts import features
from fedbench.models.task import Task

HEADER = ("@head",)


@dataclass(frozen=True)
class FedGH(Method):
    """Private extractors, and a header that the server trains on class means of their features.

    Server: * [...], the header
    Memory: * [N, ...], the extractor
    Message: * [...], the header
    Upload: sums [K, d]; counts [K]
    """

    epochs: int = at_least(0, 1)  # of the server, over the round's class means
    batch: int = at_least(1, 1)  # class means a step
    lr: float = positive(0.01)  # of the server (SGD)

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Yi et al., ACM MM 2023"
    unfit: ClassVar[Mapping[str, str]] = {"regression": "trains a header on means of classes"}

    def shares(self, sizes: Tensor) -> Tensor | None:
        return None

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return frozenset({"finish"})

    @property
    def conformance(self) -> Conformance:
        return Conformance(draws_by_position="class means are shuffled in their clients' order")

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return one model, or one of each network: its header on the server, its extractor on every client."""
        header, extractor = task.split(task.init(generator), HEADER)
        return header, trees.expand(extractor, population.clients)

    def start(self, client: Client) -> Tree:
        """Return the received header on the client's extractor."""
        return {**client.message, **client.memory}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload sums and counts of the features of each class; keep the extractor."""
        task = client.task
        sums, counts = features.class_sums(lambda block: task.features(work, block.x), client.data, task.classes)
        return {"sums": sums, "counts": counts}, task.split(work, HEADER)[1]

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Train the header on the class means of the round's clients."""
        points, labels = features.class_points(uploads["sums"], uploads["counts"])
        steps = features.shuffled(len(labels), self.epochs, self.batch, cohort.generator)
        task = cohort.task.modalities[0]

        def loss(header: Tree, drawn: Tree) -> Tensor:
            return functional.cross_entropy(task.head(header, points[drawn["rows"]]), labels[drawn["rows"]])

        return fit(server, loss, steps, OptimizerConfig(lr=self.lr))
