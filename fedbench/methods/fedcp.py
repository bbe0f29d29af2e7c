"""FedCP: Zhang et al., Separating Feature Information for Personalized FL via Conditional Policy, KDD 2023.

A policy network P splits each sample's features z = f(x) between the client's own head h_i and the received head h. The
logits are h_i(r z) + h((1 - r) z). r and 1 - r [d] are a softmax over two values for each feature. These values are
relu(LayerNorm(linear(z v_i / |v_i|))), reshaped to [2, d], plus Gumbel noise in training. v_i is the sum of the rows of
h_i's weight at the start of the round; with several layers, of the product of their weights.
Client i minimises CE + lambda MMD(z, f_received(x)) over f, h_i and P. The kernels are sum_a exp(-|z - z'|^2 / (2 a)),
a 10, 15, 20 and 50, over all pairs of a mini-batch. It uploads f, P and (h_i + h) / 2, which the server averages by n_i
/ n. h_i stays on the client.

The description follows the authors' code.

Deviations from the code:
- Clients are scored without noise. The code draws it there too, so its scores are random.
- v_i comes from h_i in the first round too. The code has uniform noise there.
- Noise is drawn for `noise` samples a step and is reused in a larger mini-batch.
- A client that is not drawn is scored with the newest h and P. The code uses those of the client's last round.

Batch normalisation: parameters and statistics below the head are shared; in the code statistics stay on the client. The
received f runs in evaluation mode. In the code it runs in training mode, by the mini-batch's statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.method import Method
from fedbench.methods.parts.features import discrepancy
from fedbench.methods.parts.layers import linear
from fedbench.models.task import Task

WIDTHS = (20, 30, 40, 100)  # 2 a of the kernels


@dataclass(frozen=True)
class FedCP(Method):
    """A policy network splits each sample's features between a personal and a received head.

    Server: * [...], the body; head/* [...]; policy/**
    Memory: * [N, ...], the own head
    Message: * [...], the body; head/* [...]; policy/**
    Upload: * [...], the body; head/* [...], the mean of both heads; policy/**
    """

    lam: float = at_least(0, 5.0)  # lambda, weight of the distance from the received body's features
    noise: int = at_least(1, 32)  # number of samples that noise is drawn for in each step

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Zhang et al., KDD 2023"

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return one model, its head on the server and every client, and a policy with torch's initial weights."""
        head, body = task.split(task.init(generator), ("@head",))
        width = math.prod(task.shape_before(task.boundary))
        scale = {"scale": torch.ones(2 * width), "shift": torch.zeros(2 * width)}
        policy = {**linear("fc", width, 2 * width, generator), **scale}
        return {**body, **trees.join(head=head, policy=policy)}, trees.expand(head, population.clients)

    def start(self, client: Client) -> Tree:
        """Return body, both heads and policy, and the round's v / |v| [d]."""
        layers = [leaf for _, leaf in sorted(client.memory.items()) if leaf.dim() == 2]
        rows = reduce(lambda below, above: above @ below, layers)
        return {**client.message, **client.memory, "context": functional.normalize(rows.sum(0), dim=0)}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train body, own head and policy."""
        return (Stage(self.loss, fixed=("head/*", "context")),)

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """Return Gumbel noise of every step, [S, `noise`, 2, d]."""
        width = math.prod(client.task.shape_before(client.task.boundary))
        drawn = torch.empty(steps, self.noise, 2, width).exponential_(generator=generator)
        return {"gumbel": -drawn.log()}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return the cross-entropy of both heads' sum, and lambda MMD."""
        task = client.task
        z = task.features(work, batch.x, train=True, mask=batch.mask)
        received = task.features(client.message, batch.x).detach()
        rows = torch.arange(len(batch.y), device=batch.y.device) % self.noise
        logits = self.both(work, z, task, batch.noise["gumbel"][rows])
        return task.criterion(logits, batch) + self.lam * discrepancy(z, received, batch, WIDTHS)

    def both(self, model: Tree, z: Tensor, task: Task, gumbel: Tensor | float = 0.0) -> Tensor:
        """Return h_i(r z) + h((1 - r) z) [B, K] of features z [B, d]; `gumbel` [B, 2, d] is added in r."""
        policy = trees.part(model, "policy")
        hidden = functional.linear(z * model["context"], policy["fc.weight"], policy["fc.bias"])
        hidden = functional.layer_norm(hidden, hidden.shape[1:], policy["scale"], policy["shift"]).relu()
        own, common = (hidden.unflatten(1, (2, -1)) + gumbel).softmax(1).unbind(1)
        return task.head(model, own * z) + task.head(trees.part(model, "head"), common * z)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload body, policy and the mean of both heads; keep the own head."""
        own = {name: work[name] for name in client.memory}
        mean = {f"head/{name}": (leaf + work[f"head/{name}"]) / 2 for name, leaf in own.items()}
        return {name: mean.get(name, work[name]) for name in client.message}, own

    def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
        """Return both heads' sum, without noise."""
        return self.both(model, task.features(model, x), task)
