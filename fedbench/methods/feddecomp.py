"""FedDecomp: Wu et al., Decoupling General and Personalized Knowledge in FL via Additive and Low-Rank Decomp., MM 2024.

Each weight is a sum W_i = sigma + B_i A_i / r of a shared part of full rank and a personal part of low rank that never
leaves its client. For a linear layer [o, d], A is [r, d] and B is [o, r]. The weights of a convolution [o, c, k, k] are
a matrix [o k, c k]; A is [r k, c k] and B is [o k, r k], where r is the share `ratio` of o. B starts at zero, A like
the weights of a linear layer. Biases and normalisation have no personal part.
In a round a client first trains A and B under the received sigma, for `personal_epochs` of its local epochs. It then
trains sigma under the new A and B for the rest.

The defaults are those of the CIFAR-10 command in the README of the authors' code. The code's option defaults, 40 and
0.8, are for CIFAR-100. We know only the abstract of the paper. The description follows the code, client.py and
loralib/layers.py, and no preset follows the text.

Deviations:
- sigma is averaged by size over the round's clients. The code counts all clients equally, also those that were not
  drawn; its clients are equally large.
- The shared part has at least one epoch, even if the protocol has too few. With a protocol that counts iterations it
  has all of them.
- r is at least one.
- The matrix of a grouped convolution is [o k, (c / g) k].

Batch normalisation: affine parameters and running statistics are shared. Both stages move the statistics, as in the
code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedbench.config.fields import at_least, share
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.method import Method
from fedbench.methods.parts.layers import linear
from fedbench.models.task import Task

PERSONAL = ("A/*", "B/*")


@dataclass(frozen=True)
class FedDecomp(Method):
    """A shared model, and a low-rank addition to each of its weights on every client.

    Server: * [...], sigma
    Memory: A/* ; B/*
    Message: * [...]
    Upload: * [...]
    """

    rank: int = at_least(1, 4)  # r of a linear layer
    ratio: float = share(0.6)  # r of a convolution, as a share of its output channels
    personal_epochs: int = at_least(0, 2)  # local epochs of A and B; sigma trains for the others, at least one

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Wu et al., ACM MM 2024"

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return sigma on the server, and A and B of every weight, the same on all clients."""
        server = task.init(generator)
        A: Tree = {}
        B: Tree = {}
        for name, leaf in task.weights(server).items():
            if leaf.dim() > 1:
                r, tall, wide = self.sizes(leaf.shape)
                A[name] = linear("A", wide, r, generator)["A.weight"]
                B[name] = torch.zeros(tall, r)
        return server, trees.expand(trees.join(A=A, B=B), population.clients)

    def sizes(self, shape: torch.Size) -> tuple[int, int, int]:
        """Return (inner size, rows, columns) of a weight's matrix: r, o, d, or r k, o k, c k."""
        if len(shape) == 2:
            return self.rank, *shape
        k = shape[2] if len(shape) > 3 else 1  # of a convolution over a line, or over points
        return self.inner(shape) * k, shape[0] * k, math.prod(shape) // (shape[0] * k)

    def inner(self, shape: torch.Size) -> int:
        """Return r of a weight."""
        return self.rank if len(shape) == 2 else max(1, int(self.ratio * shape[0]))

    def start(self, client: Client) -> Tree:
        """Return sigma, and the client's A and B."""
        return {**client.message, **client.memory}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train A and B on mini-batches of their own, then sigma on FedAvg's."""
        left = None if local.epochs is None else max(1, local.epochs - self.personal_epochs)
        return (
            Stage(self.loss, moves=PERSONAL, epochs=self.personal_epochs, order=1),
            Stage(self.loss, fixed=PERSONAL, epochs=left),
        )

    def model(self, work: Tree, client: Client) -> Tree:
        """Return sigma + B A / r."""
        A, B = trees.under(work, "A"), trees.under(work, "B")
        sums = {name: work[name] + (B[name] @ A[name]).view_as(work[name]) / self.inner(work[name].shape) for name in A}
        return {**trees.plain(work), **sums}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload sigma; keep A and B."""
        personal, shared = client.task.split(work, PERSONAL)
        return shared, personal
