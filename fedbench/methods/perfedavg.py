"""Per-FedAvg: Fallah et al., Personalized Federated Learning with Theoretical Guarantees, NeurIPS 2020.

It minimises the mean of F_i(w) = f_i(w - alpha grad f_i(w)) (Eq. 3). A local step of Algorithm 1 is
  w~ = w - alpha grad f(w; D),   w <- w - beta (I - alpha hess f(w; D'')) grad f(w~; D').
`order` sets the Hessian: "first" drops it (FO), "hessian_free" (HF) takes hess f(w) g = [grad f(w + delta g) - grad f(w
- delta g)] / (2 delta), and "full" differentiates through the inner step. FedCollab uses "first". A client is scored
after `adapt_steps` steps at rate alpha, or after `adapt_epochs` epochs (FL-bench, and so pFedSim's comparison).

Deviations:
- D and D' are the two halves of one mini-batch; with a single sample both are that sample. D'' = D, so "full" is the
  exact gradient of f(w - alpha grad f(w; D); D').
- Averages are weighted by n_k / n.

Batch normalisation: running statistics are shared. The forward pass on D moves them, and so does the one on D'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, one_of, positive
from fedbench.config.schema import LocalConfig, OptimizerConfig, added
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.methods.fedavg import FedAvg
from fedbench.models.task import Task, gradient


@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """A model that is good after one step of adaptation."""

    alpha: float = at_least(0, 0.01)  # learning rate of the inner step and of the adaptation before scoring
    beta: float | None = positive(None)  # learning rate of the meta step; null: the protocol's
    order: str = one_of("first", "hessian_free", "full")  # the Hessian: dropped, by differences, or exact
    delta: float = positive(0.001)  # step of hessian_free's finite difference
    adapt_steps: int = at_least(0, 1)  # mini-batch steps before scoring
    adapt_epochs: int | None = added(at_least(1, None))  # epochs in place of adapt_steps; null: the steps

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Fallah et al., NeurIPS 2020"

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train by meta steps."""
        return (Stage(direction=self.direction, lr=self.beta),)

    def adapt(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Make plain SGD steps at rate alpha."""
        if self.alpha == 0:
            return ()
        steps = None if self.adapt_epochs else self.adapt_steps
        return (Stage(self.loss, epochs=self.adapt_epochs, iterations=steps, optimizer=OptimizerConfig(lr=self.alpha)),)

    def direction(self, work: Tree, client: Client, batch: Batch) -> Tree:
        """Return (I - alpha hess f(w; D)) grad f(w~; D') over the weights, and the moved statistics."""
        inner, outer = (partial(self.loss, client=client, batch=half) for half in halves(batch))
        slope, statistics = gradient(inner, work, client.task)
        stepped = {name: work[name].sub(slope[name], alpha=self.alpha) for name in slope}
        meta, statistics = gradient(outer, {**work, **statistics, **stepped}, client.task)
        if self.order != "first":
            curve = self._hessian_product(inner, work, meta, client.task)
            meta = {name: meta[name] - self.alpha * curve[name] for name in meta}
        return {**meta, **statistics}

    def _hessian_product(self, loss: Callable[[Tree], Tensor], model: Tree, vector: Tree, task: Task) -> Tree:
        """Return the Hessian of `loss` at `model` times `vector`, exact or by central differences."""
        if self.order == "full":
            return gradient(lambda m: trees.dot(vector, gradient(loss, m, task)[0]), model, task)[0]
        ends = [
            gradient(loss, {**model, **{k: model[k] + step * vector[k] for k in vector}}, task)[0]
            for step in (self.delta, -self.delta)
        ]
        return {name: (ends[0][name] - ends[1][name]) / (2 * self.delta) for name in vector}


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """Return the first and second half of a batch's real samples (the first is the larger); of one, twice that."""
    count = len(batch.y)
    if batch.mask is None:
        first = (count + 1) // 2
        second = first if count > 1 else 0
        return (
            replace(batch, x=batch.x[:first], y=batch.y[:first]),
            replace(batch, x=batch.x[second:], y=batch.y[second:]),
        )
    # Real samples come first, padding after them.
    early = torch.arange(count, device=batch.y.device) < (batch.count + 1) // 2
    late = batch.mask & (~early | (batch.count < 2))
    return replace(batch, mask=batch.mask & early), replace(batch, mask=late)
