"""FedAS: Yang et al., FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024.

FedPer with two additions.

- Alignment: before training, a client computes the mean feature p_c of each of its classes with its previous model. It
  then moves only the received body, by SGD on sum_c mean_i |f(x_i) - p_c|^2 / d over the classes and their samples in a
  mini-batch. Then body and head train together.
- Weights: after training, T_k = sum over mini-batches of |gradient of the mean loss|^2 over all weights, in evaluation
  mode. It is the trace of an empirical Fisher matrix. The server's body is sum_k T_k / sum_j T_j w_k over the round's
  clients.

The model that the client trained last is scored.
The authors' published code aligns one body for all clients of a round, so each client starts from the body that the
client before it aligned. An earlier version of PFLlib does so too. Here each client starts from the received body. T_k
grows with the number of mini-batches, here as in the code, so larger clients have more weight.
Deviations: alignment uses the protocol's mini-batches, not mini-batches of 16 samples. The mini-batches of T_k follow
the order of the data.
Batch normalisation: affine parameters and running statistics below the head are shared; in the code statistics stay on
the client. Alignment runs in evaluation mode and moves no statistics, as the received model does in the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least, positive
from fedbench.config.schema import LocalConfig, OptimizerConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Clock, Cohort, Stage
from fedbench.methods.fedper import FedPer
from fedbench.methods.parts.features import blocks, class_sums
from fedbench.models.task import Task, gradient


@dataclass(frozen=True)
class FedAS(FedPer):
    """FedPer whose bodies are aligned before training and weighted by their Fisher information after it.

    Server: * [...], the body
    Memory: own/* [N, ...], the last trained model
    Message: * [...], the body
    Upload: * [...], the body; fisher [], T_k
    """

    align_epochs: int = at_least(0, 1)  # epochs of aligning the received body before training
    align_lr: float = positive(0.01)  # learning rate of the alignment, which is plain SGD
    fisher_batch: int = at_least(1, 16)  # mini-batch size of T_k

    paper: ClassVar[str] = "Yang et al., CVPR 2024"
    unfit: ClassVar[Mapping[str, str]] = {
        "modalities": "weighs clients by their gradients, which of a larger network are larger",
        "regression": "moves features to means of classes",
    }

    def shares(self, sizes: Tensor) -> Tensor | None:
        """Clients count by their Fisher information, which no matrix of the run has."""
        return None

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return frozenset({"start", "finish"})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start server and clients from one model."""
        model = task.init(generator)
        return task.split(model, self.private)[1], trees.join(own=trees.expand(model, population.clients))

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Average the bodies by T_k."""
        T = uploads["fisher"].double().clamp(min=torch.finfo(torch.float64).tiny)
        body = {name: leaf for name, leaf in uploads.items() if name != "fisher"}
        return {**server, **trees.mean(body, T / T.sum())}

    # ---- client

    def start(self, client: Client) -> Tree:
        """Return the received body, the own head, and the previous model's class means."""
        task, own = client.task, trees.part(client.memory, "own")
        sums, counts = class_sums(lambda block: task.features(own, block.x), client.data, task.classes)
        return {**own, **client.message, "classes/means": sums / counts.clamp(min=1).unsqueeze(1)}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Align the body, then train all on FedPer's mini-batches."""
        align = OptimizerConfig(lr=self.align_lr)
        return (
            Stage(
                self.distance, fixed=(*self.private, "classes/*"), epochs=self.align_epochs, optimizer=align, order=1
            ),
            Stage(self.loss, fixed=("classes/*",)),
        )

    def distance(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return sum_c mean_i |f(x_i) - p_c|^2 / d."""
        z = client.task.features(work, batch.x)
        alike = batch.sum((batch.y.unsqueeze(1) == batch.y).to(z.dtype))  # samples of the same class, [B]
        apart = (z - work["classes/means"][batch.y]).square().mean(1)
        return batch.sum(apart / alike.clamp(min=1))

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the body and T_k, keep the whole model."""
        model = trees.plain(work)
        upload, _ = super().finish(model, client)
        return {**upload, "fisher": self.fisher(model, client)}, trees.join(own=model)

    def fisher(self, model: Tree, client: Client) -> Tensor:
        """Return T_k, a scalar."""
        task, total = client.task, torch.zeros(())
        for block in blocks(client.data, self.fisher_batch):

            def loss(model: Tree, block: Batch = block) -> Tensor:
                each = functional.cross_entropy(task.apply(model, block.x), block.y, reduction="none")
                return block.sum(each) / block.count.clamp(min=1)

            total = total + trees.sum_of(leaf.square().sum() for leaf in gradient(loss, model, task)[0].values())
        return total

    def model(self, work: Tree, client: Client) -> Tree:
        return trees.plain(work)

    def personal(self, client: Client) -> Tree:
        """Return the model that the client trained last."""
        return trees.part(client.memory, "own")
