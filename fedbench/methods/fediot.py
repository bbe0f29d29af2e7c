"""FedIoT: Zhao, Barnaghi & Haddadi, Multimodal Federated Learning on IoT Data, IoTDI 2022.

Clients have no labels. Each trains an autoencoder of its modality. The encoder is the network before the classifier
layer; the decoder is a linear map. The server averages autoencoders by modality (the paper's Mm-FedAvg, for clients
with one modality each). It then trains the classifier layer on the encoders' representations of its own labelled
samples. FedSaC compares with it as "unsupervised training on local clients and supervised aggregation on the server"
(Section 5.3).

FedSaC leaves the following open. We chose:
- The server's labelled samples are a tenth of the clients' training samples of each modality, drawn once (`labelled`).
- One classifier layer serves both modalities.
- The loss is the mean squared error for images, and for captions the cross-entropy of the distribution of their words.

Deviation: in the paper a client may have two modalities, with a common representation.
Batch normalisation: statistics are averaged like weights. The server's encoders use them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least, positive, share
from fedbench.config.schema import LocalConfig, OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Cohort, Conformance, Preparation, Stage
from fedbench.engine.method import Method
from fedbench.engine.optim import fit
from fedbench.methods.parts import features
from fedbench.methods.parts.layers import linear
from fedbench.models.task import Task


@dataclass(frozen=True)
class FedIoT(Method):
    """Autoencoders averaged by modality, and a classifier that the server trains.

    Server: * [...]; decoder/**, of each modality; labelled/**, samples x and their labels y, of each modality
    Memory: nothing
    Message: * [...]; decoder/**
    Upload: * [...], without the classifier layer; decoder/**
    """

    labelled: float = share(0.1, above=True)  # share of the clients' training samples that the server has with labels
    steps: int = at_least(0, 200)  # steps of the classifier in each round
    batch: int = at_least(1, 64)  # samples of each modality in a step
    lr: float = positive(1e-3)  # learning rate of the classifier (Adam)

    paper: ClassVar[str] = "Zhao et al., IoTDI 2022"
    unfit: ClassVar[Mapping[str, str]] = {"regression": "trains a classifier on the server"}

    @property
    def conformance(self) -> Conformance:
        return Conformance(draws_by_position="the server's labelled samples are drawn among those of all clients")

    # ---- server

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return the networks, and a decoder for each."""
        server = task.init(generator)
        for modality in task.modalities:
            wide, narrow = (
                math.prod(modality.shape_before(modality.boundary)),
                modality.tokens or math.prod(modality.shape),
            )
            decoder = linear("decoder", wide, narrow, generator)
            server |= {name.replace(".", f"/{modality.prefix}"): leaf for name, leaf in decoder.items()}
        return server, {}

    def prepare(self, preparation: Preparation, server: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Give the server its labelled samples, of each modality."""
        for index, modality in enumerate(preparation.task.modalities):
            samples = preparation.samples(modality=index)
            count = max(1, round(self.labelled * len(samples.y)))
            generator = rng.torch_rng(preparation.seed, "labelled", index)
            rows = torch.randperm(len(samples.y), generator=generator)[:count].to(samples.y.device)
            own = {f"{modality.prefix}x": samples.x[rows], f"{modality.prefix}y": samples.y[rows]}
            server = {**server, **trees.join(labelled=own)}
        return server, memory

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Return the networks and the decoders."""
        return trees.expand(_sent(server), len(cohort.ids))

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Average the autoencoders, then train the classifier on the server's samples."""
        server = {**server, **cohort.mean(uploads)}
        known = [encoded(server, modality) for modality in cohort.task.modalities]
        first = cohort.task.modalities[0]

        def draw() -> Tree:
            size = (self.batch,)
            return {str(k): torch.randint(len(y), size, generator=cohort.generator) for k, (_, y) in enumerate(known)}

        def loss(head: Tree, drawn: Tree) -> Tensor:
            terms = [
                functional.cross_entropy(first.head(head, z[drawn[str(k)]]), y[drawn[str(k)]])
                for k, (z, y) in enumerate(known)
            ]
            return torch.stack(terms).mean()

        head, _ = first.split(trees.plain(server), ("@head",))
        adam = OptimizerConfig(name="adam", lr=self.lr)
        return {**server, **fit(head, loss, (draw() for _ in range(self.steps)), adam)}

    # ---- client

    def start(self, client: Client) -> Tree:
        """Return the network and its decoder."""
        return dict(client.message)

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train all but the classifier layer."""
        return (Stage(self.loss, fixed=("@head",)),)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return the error of the decoder's reconstruction from the representation; labels are not used."""
        task = client.task
        z = task.features(work, batch.x, train=True, mask=batch.mask)
        weight, bias = (work[f"decoder/{task.prefix}{name}"] for name in ("weight", "bias"))
        rebuilt = functional.linear(z, weight, bias)
        if not task.tokens:
            return batch.mean((rebuilt - batch.x.flatten(1)).square().mean(1))
        words = batch.x.flatten(1).round().long()  # [B, L]
        real = (words > 0).to(rebuilt.dtype)
        error = -(rebuilt.log_softmax(1).gather(1, words) * real).sum(1) / real.sum(1).clamp(min=1)
        return batch.mean(error)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the autoencoder."""
        return client.task.split(work, ("@head",))[1], {}

    def model(self, work: Tree, client: Client) -> Tree:
        return trees.plain(work)


def encoded(server: Tree, modality: Task) -> tuple[Tensor, Tensor]:
    """Return (representations [m, d], labels [m]) of the server's samples of a modality."""
    own = trees.part(server, "labelled")
    x, y = own[f"{modality.prefix}x"], own[f"{modality.prefix}y"]
    model = trees.plain(server)
    return torch.cat([modality.features(model, block.x) for block in features.blocks(Batch(x, y))]), y


def _sent(server: Tree) -> Tree:
    return {name: leaf for name, leaf in server.items() if not name.startswith("labelled/")}
