"""Low-rank adapters in federated learning: averaged LoRA, FFA-LoRA and FedSA-LoRA.

LoRA (Hu et al., ICLR 2022) adapts a frozen network: a layer's weights [o, ...], as a matrix [o, d], are W = W_0 +
(alpha / r) B A with A [r, d] and B [o, r]. A starts like the weights of a linear layer, B at zero. All clients have the
same W_0, which is never sent.

- FedIT (Zhang et al., ICASSP 2024; method=fedlora) trains A and B and averages both.
- FFA-LoRA (Sun et al., ICLR 2024; method=ffa_lora) freezes A and trains and averages B, so that the average of the
  products B A is the product of the averages.
- FedSA-LoRA (Guo et al., ICLR 2025; method=fedsa_lora) trains both and averages A. B stays on its client.

The classifier layer is trained whole. It stays on its client in FedSA-LoRA, as its authors' configuration for
classification has it (personalization.local_param), and is averaged in the others. Rank and alpha are of that
configuration too. The papers' texts were not at hand, so no preset follows them.

Deviations:
- Every linear, convolutional and embedding layer below the classifier layer is adapted. The authors adapt the query
  and value matrices of transformers; `adapted=["*.qkv.weight"]` takes all attention matrices of a ViT of timm.
- There is no dropout before A.
- The papers fine-tune pretrained networks. Without `model.weights` W_0 is random.

Batch normalisation: affine parameters are frozen. Running statistics stay on their clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedbench.config.fields import at_least, positive, selectors
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Conformance, Stage
from fedbench.engine.method import Method
from fedbench.methods.parts.layers import linear
from fedbench.models.task import Task


@dataclass(frozen=True)
class FedLoRA(Method):
    """Adapters of low rank and a classifier layer, which clients train, on a frozen network.

    Server: A/* ; B/* ; * [...], the classifier layer
    Memory: * [N, ...], the frozen network
    Message: A/* ; B/* ; * [...]
    Upload: A/* ; B/* ; * [...]
    """

    rank: int = at_least(1, 8)
    alpha: float = positive(16.0)  # alpha / rank scales B A
    adapted: tuple[str, ...] = selectors(("*.weight",))  # layers below the classifier layer that get adapters
    trained: ClassVar[tuple[str, ...]] = ("A/*", "B/*", "@head")
    averaged: ClassVar[tuple[str, ...]] = ("A/*", "B/*", "@head")

    paper: ClassVar[str] = "Zhang et al., ICASSP 2024"

    @property
    def conformance(self) -> Conformance:
        return Conformance(inert={"*": "the frozen network"})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return the averaged leaves on the server, and the frozen and the private ones on every client.

        Raises:
            ConfigError: the network has no such layer.
        """
        network = task.init(generator)
        _, body = task.split(task.weights(network), ("@head",))
        names = [name for name in task.select(body, self.adapted) if body[name].dim() > 1]
        if not names:
            raise ConfigError(
                f"method.adapted={list(self.adapted)}: the network has no such layer below the classifier layer; "
                "choose another network or other names"
            )
        A = {name: linear("A", body[name][0].numel(), self.rank, generator)["A.weight"] for name in names}
        B = {name: torch.zeros(len(body[name]), self.rank) for name in names}
        shared, kept = task.split({**network, **trees.join(A=A, B=B)}, self.averaged)
        return shared, trees.expand(kept, population.clients)

    def start(self, client: Client) -> Tree:
        """Return the received leaves beside the client's own."""
        return {**client.message, **client.memory}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train the adapters and the classifier layer."""
        return (Stage(self.loss, moves=self.trained),)

    def model(self, work: Tree, client: Client) -> Tree:
        """Return W_0 + (alpha / r) B A."""
        A, B = trees.part(work, "A"), trees.part(work, "B")
        sums = {name: work[name] + self.alpha / self.rank * (B[name] @ A[name]).view_as(work[name]) for name in A}
        return {**trees.plain(work), **sums}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload what is averaged; keep the rest."""
        return client.task.split(work, self.averaged)


@dataclass(frozen=True)
class FFALoRA(FedLoRA):
    """A is frozen.

    Server: B/* ; * [...], the classifier layer
    Memory: A/* ; * [N, ...], the frozen network
    Message: B/* ; * [...]
    Upload: B/* ; * [...]
    """

    trained: ClassVar[tuple[str, ...]] = ("B/*", "@head")
    averaged: ClassVar[tuple[str, ...]] = ("B/*", "@head")

    paper: ClassVar[str] = "Sun et al., ICLR 2024"


@dataclass(frozen=True)
class FedSALoRA(FedLoRA):
    """B and the classifier layer stay on their client.

    Server: A/*
    Memory: B/* ; * [N, ...]
    Message: A/*
    Upload: A/*
    """

    averaged: ClassVar[tuple[str, ...]] = ("A/*",)

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Guo et al., ICLR 2025"
