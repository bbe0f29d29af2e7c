"""FedEM: Marfoq et al., Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021.

The data of client t are a mixture of M distributions with weights pi_t. Each distribution has a model theta_m, the same
for all clients. E-step, with the received models, for each sample i: q_im ~ pi_tm exp(-loss_m(x_i, y_i)) and pi_tm =
mean_i q_im. M-step: theta_m trains on q_im loss_m; the mean over a mini-batch divides by the mini-batch's size. The
server averages each theta_m by n_t / n. A client is scored on sum_m pi_tm softmax(theta_m(x)) with the pi of its last
round, or 1 / M before its first. The models start from independent draws, as in the authors' code: equal models would
stay equal.
With `damped`, as in the code, the average is over all clients. A client that is not drawn counts with the server's
current models. q is fixed in a round: each mini-batch computes it anew from the received models.

Deviations:
- All models see the same mini-batches; in the code each has its own. Gradient clipping applies to all their gradients
  jointly.
- A client that takes part in no round is scored with pi = 1 / M. The code computes pi by an E-step.

Batch normalisation: each model has its own statistics, which are averaged. The E-step runs in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Clock, Cohort, Stage
from fedbench.engine.method import ONE_NETWORK, Method
from fedbench.methods.parts.features import class_sums
from fedbench.models.task import Task


@dataclass(frozen=True)
class FedEM(Method):
    """A few models shared by all clients, mixed by each client's own weights.

    Server: component/* [M, ...]
    Memory: pi [N, M]
    Message: component/* [M, ...]
    Upload: component/* [M, ...]
    """

    components: int = at_least(1, 3)  # M, the number of models
    damped: bool = False  # clients that are not drawn count in the average with the last model

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Marfoq et al., NeurIPS 2021"
    unfit: ClassVar[Mapping[str, str]] = {**ONE_NETWORK, "regression": "mixes probabilities of classes"}

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """Return the hook with the E-step."""
        return frozenset({"start"})

    # ---- server

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Draw M models; all weights are 1 / M."""
        models = trees.stack([task.init(generator) for _ in range(self.components)])
        return trees.join(component=models), {
            "pi": torch.full((population.clients, self.components), 1 / self.components)
        }

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Average each component; if `damped`, clients that are not drawn count with the last one."""
        drawn = float(cohort.sizes.sum() / cohort.population.sizes[cohort.served].sum()) if self.damped else 1.0
        mean = cohort.mean(trees.join(component=trees.part(uploads, "component")))
        return {**server, **{name: server[name].lerp(leaf, drawn) for name, leaf in mean.items()}}

    def common(self, server: Tree, task: Task) -> Tree | None:
        """Return the model, if there is one only."""
        return trees.row(trees.part(server, "component"), 0) if self.components == 1 else None

    # ---- client

    def start(self, client: Client) -> Tree:
        """Return the received models, and the weights after the E-step."""
        sums, counts = class_sums(partial(self.responsibilities, client), client.data, client.task.classes)
        return {**self._models(client.message), **self.expected(sums, counts)}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train only the models, so that weight decay does not change the results of the E-step."""
        return (Stage(self.loss, moves=("component/*",)),)

    def expected(self, sums: Tensor, counts: Tensor) -> Tree:
        """Return pi [M] from the sums of q over the samples of each class [K, M], and their counts [K]."""
        return {"pi": sums.sum(0) / counts.sum()}

    def responsibilities(self, client: Client, batch: Batch) -> Tensor:
        """Return q [B, M] of the samples in `batch`."""
        return (client.memory["pi"].log() - self.misfit(client, batch)).softmax(1)

    def misfit(self, client: Client, batch: Batch) -> Tensor:
        """Return each received model's penalty on each sample, [B, M]: its loss."""
        return self._losses(client.message, batch, client.task, train=False)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return the mean over samples of sum_m q_im loss_m."""
        with torch.no_grad():
            q = self.responsibilities(client, batch)
        return batch.mean((q * self._losses(work, batch, client.task, train=True)).sum(1))

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the models, keep the weights."""
        return self._models(work), {"pi": work["pi"]}

    def personal(self, client: Client) -> Tree:
        """Return the received models with the weights of the client's last round."""
        return {**self._models(client.message), "pi": client.memory["pi"]}

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """Return the logarithm of the mixture's probabilities."""
        models = trees.part(model, "component")
        each = [task.apply(trees.row(models, m), x).log_softmax(1) for m in range(self.components)]
        return (torch.stack(each, dim=2) + model["pi"].log()).logsumexp(2)

    def _models(self, tree: Tree) -> Tree:
        return {name: leaf for name, leaf in tree.items() if name.startswith("component/")}

    def _losses(self, tree: Tree, batch: Batch, task: Task, *, train: bool) -> Tensor:
        """Return the cross-entropy of each model in `tree` on each sample, [B, M]."""
        models, each = trees.part(tree, "component"), []
        for m in range(self.components):
            model = trees.row(models, m)
            # The forward pass moves statistics in place, under vmap not through a view.
            moved = {name: leaf.clone() for name, leaf in model.items() if train and task.is_buffer(name)}
            logits = task.apply({**model, **moved}, batch.x, train=train, mask=batch.mask)
            each.append(functional.cross_entropy(logits, batch.y, reduction="none"))
            for name, leaf in moved.items():
                model[name].copy_(leaf)
        return torch.stack(each, dim=1)
