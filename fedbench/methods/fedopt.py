"""FedOpt: Reddi et al., Adaptive Federated Optimization, ICLR 2021; FedAvgM: Hsu et al., arXiv 1909.06335, 2019.

Algorithm 2: the server takes the clients' mean change D = sum_k (n_k / n) (w_k - w) for a gradient. Its steps are m =
b1 m + (1 - b1) D, w = w + s m / (sqrt(v) + tau), with v = v + D^2 (FedAdagrad), b2 v + (1 - b2) D^2 (FedAdam) or v - (1
- b2) D^2 sign(v - D^2) (FedYogi). m starts at 0 and v at tau^2. FedAvgM: u = b u + D, w = w + s u, as printed.
Flower's baseline for the paper and FL-bench take Nesterov's step, s (D + b u), which the paper's experiments have by
Flower's account.
The clients run the method inside (`method/base=finetune`: FedAdam, fine-tuned). It may be any method whose server
averages. The optimiser steps the network's weights among the averaged leaves. All other leaves are averaged, and
private leaves stay on their clients. D is weighted by samples, as in the paper's experiments; Algorithm 2 counts
clients equally.
The authors' code runs Keras's optimisers. They correct m and v for their start (`correct`) and start v elsewhere
(`first`: 0 in Adam, 0.1 in Adagrad, 1 in their Yogi). Flower's FedAdam corrects too, FL-bench does not; both start at
0.
Batch normalisation: affine parameters are stepped, running statistics are averaged. If no client of a round has a leaf
(of an absent modality), the leaf and its state stay as they are.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, positive, share
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock, Cohort, Conformance
from fedbench.methods.parts.clustered import WrapperMethod, default_base
from fedbench.models.task import Task


@dataclass(frozen=True)
class FedOpt(WrapperMethod):
    """A server optimiser in place of the average; a subclass defines the optimiser.

    Server: base/**; step/**, the optimiser's state of its weights
    Memory: ** [N, ...] if the base has any
    Message: **, the base's
    Upload: **, the base's
    """

    base: Any = field(default_factory=default_base)  # the method inside
    server_lr: float = positive(1.0)  # s

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_average()

    # ---- what a subclass says

    @abstractmethod
    def begin(self, weight: Tensor) -> Tree:
        """Return the optimiser's state of one weight, leaves of its shape."""

    @abstractmethod
    def step(self, D: Tensor, state: Tree, clock: Clock) -> tuple[Tensor, Tree]:
        """Return how far a weight moves at rate 1, and its new state; D [...] is its mean change."""

    # ---- the server

    @property
    def family(self) -> str:  # type: ignore[override]
        """The family of the method inside, because the personal parts of clients do not change."""
        return self.inner.family

    @property
    def unfit(self) -> Mapping[str, str]:
        return self.inner.unfit

    @property
    def conformance(self) -> Conformance:
        return self.inner.conformance

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start as the method inside, with a state for each of its server's weights."""
        server, memory = super().init(task, population, generator)
        base = trees.under(server, "base")
        states = {name: self.begin(leaf) for name, leaf in base.items() if name in task.parameters}
        return {**server, **trees.join(step=trees.join(**states))}, memory

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Step the weights that the method inside would average; average all other leaves."""
        base, mean, states = trees.under(server, "base"), cohort.mean(uploads), trees.under(server, "step")
        moved, stepped = dict(mean), dict(states)
        for name in mean:
            if state := trees.under(states, name):
                step, state = self.step(mean[name] - base[name], state, cohort.clock)
                moved[name] = base[name] + self.server_lr * step
                stepped |= trees.join(**{name: state})
        return trees.join(base={**base, **moved}, step=stepped)


@dataclass(frozen=True)
class FedAvgM(FedOpt):
    """SGD with momentum on the server."""

    momentum: float = share(0.9, below=True)  # b; 0: FedAvg

    paper: ClassVar[str] = "Hsu et al., 2019"

    def begin(self, weight: Tensor) -> Tree:
        """Return u = 0."""
        return {"u": torch.zeros_like(weight)}

    def step(self, D: Tensor, state: Tree, clock: Clock) -> tuple[Tensor, Tree]:
        """Return u = b u + D."""
        u = self.momentum * state["u"] + D
        return u, {"u": u}


@dataclass(frozen=True)
class FedAdagrad(FedOpt):
    """Adagrad on the server."""

    server_lr: float = positive(0.1)  # s
    beta1: float = share(0.0, below=True)  # b1, of the mean change
    tau: float = positive(1e-3)  # adaptivity: the smaller, the more alike are all steps
    first: float | None = at_least(0, None)  # v before round 1; null: tau^2

    paper: ClassVar[str] = "Reddi et al., ICLR 2021"

    def begin(self, weight: Tensor) -> Tree:
        """Return m = 0 and v = tau^2, or `first`."""
        first = self.tau**2 if self.first is None else self.first
        return {"m": torch.zeros_like(weight), "v": torch.full_like(weight, first)}

    def step(self, D: Tensor, state: Tree, clock: Clock) -> tuple[Tensor, Tree]:
        """Return m / (sqrt(v) + tau)."""
        m = self.beta1 * state["m"] + (1 - self.beta1) * D
        v = self.second(state["v"], D.square())
        return m / (v.sqrt() + self.tau), {"m": m, "v": v}

    def second(self, v: Tensor, squares: Tensor) -> Tensor:
        """Return v after a round, from D^2."""
        return v + squares


@dataclass(frozen=True)
class FedAdam(FedAdagrad):
    """Adam on the server."""

    beta1: float = share(0.9, below=True)  # b1, of the mean change
    beta2: float = share(0.99, below=True)  # b2, of its square
    correct: bool = False  # whether m and v are corrected for their start (Keras, Flower)

    def step(self, D: Tensor, state: Tree, clock: Clock) -> tuple[Tensor, Tree]:
        """Return m / (sqrt(v) + tau), times sqrt(1 - b2^t) / (1 - b1^t) in round t = 1, 2, ... if `correct`."""
        move, state = super().step(D, state, clock)
        t = clock.round + 1
        factor = (1 - self.beta2**t) ** 0.5 / (1 - self.beta1**t) if self.correct else 1.0
        return factor * move, state

    def second(self, v: Tensor, squares: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * squares


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """Yogi on the server."""

    server_lr: float = positive(0.01)  # s

    def second(self, v: Tensor, squares: Tensor) -> Tensor:
        return v - (1 - self.beta2) * squares * (v - squares).sign()
