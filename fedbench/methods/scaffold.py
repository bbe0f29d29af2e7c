"""SCAFFOLD: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020.

Algorithm 1, client i: y <- y - eta_l (g_i(y) - c_i + c) from y = x. The new control variate (Eq. 4) is, by option I,
c_i' = g_i(x), the gradient at the received model on all own samples, or, by option II, c_i' = c_i - c + (x - y) / (K
eta_l). Server (Eq. 5): x += eta_g mean_S(y_i - x), c += |S| / N mean_S(c_i' - c_i).
The paper averages clients uniformly and so minimises the unweighted mean of the clients' losses. `weighted` takes n_i /
n as FedAvg does.
Deviation: with local momentum the K of option II is FedNova's ||a||_1, so that c_i' stays a mean gradient.
Batch normalisation: running statistics are shared and averaged like the models. Control variates cover weights only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import one_of, positive
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Cohort
from fedbench.engine.method import Method
from fedbench.engine.optim import factors
from fedbench.methods.fednova import accumulation
from fedbench.models.task import Task, gradient

LEAST_LR = 1e-5  # for option II: its error is about 3e-7 over the rate, relative to a control variate


@dataclass(frozen=True)
class Scaffold(Method):
    """Local steps corrected by control variates.

    Server: model/* [...], x; control/* [...], c, of the weights
    Memory: * [N, ...], c_i of the weights
    Message: model/* [...]; control/* [...]
    Upload: change/* [...], of the weights; control/* [...], of c_i; statistics/* [...] if batch normalisation
    """

    option: int = one_of(2, 1)  # control variate: 1 the full gradient, 2 the mean of the local gradients
    server_lr: float = positive(1.0)  # eta_g
    weighted: bool = False  # true: clients are weighted by their samples

    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"

    def shares(self, sizes: Tensor) -> Tensor:
        return sizes if self.weighted else torch.ones_like(sizes)

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        """Option I takes a gradient on all samples."""
        return frozenset({"finish"} if self.option == 1 else ())

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return the model x; all control variates are zero."""
        model = task.init(generator)
        zero = trees.map_leaves(torch.zeros_like, task.weights(model))
        return trees.join(model=model, control=zero), trees.expand(zero, population.clients)

    def start(self, client: Client) -> Tree:
        """Return the server model x."""
        return trees.part(client.message, "model")

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_i(y) + <c - c_i, y>, whose gradient is the corrected one."""
        control = trees.part(client.message, "control")
        correction = {name: leaf - client.memory[name] for name, leaf in control.items()}
        return client.task.loss(work, batch) + trees.dot(correction, work)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload y - x, the statistics and c_i' - c_i; keep c_i'."""
        received = trees.part(client.message, "model")
        weights, statistics = trees.split(work, client.memory)
        change = {name: leaf - received[name] for name, leaf in weights.items()}
        control = self._control(change, {**received, **statistics}, client)
        moved = {name: leaf - client.memory[name] for name, leaf in control.items()}
        return trees.join(change=change, statistics=statistics, control=moved), control

    def _control(self, change: Tree, received: Tree, client: Client) -> Tree:
        if self.option == 1:
            return gradient(lambda model: client.task.loss(model, client.data), received, client.task)[0]
        optimizer = client.optimizer  # whose schedule every engine sees whole, and the trial before a run too
        lowest = optimizer.lr * float(factors(optimizer.schedule, client.clock.rounds).min())
        if lowest < LEAST_LR:
            raise ConfigError(
                f"scaffold divides changes of float32 weights by the learning rate; at {lowest:g} its control variates "
                f"keep too few digits; use a rate of at least {LEAST_LR:g}, or method.option=1"
            )
        factor = accumulation(client.steps, client.optimizer, "scaffold") * client.lr
        shared = trees.part(client.message, "control")
        return {
            name: leaf - shared[name] - change[name] / factor.to(leaf.dtype) for name, leaf in client.memory.items()
        }

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Move x and c by the cohort's means."""
        sizes = self.shares(cohort.population.sizes)
        share = float(sizes[cohort.ids].sum() / sizes[cohort.served].sum())
        mean = trees.mean(uploads, sizes[cohort.ids] / sizes[cohort.ids].sum())
        rates = {"model": ("change", self.server_lr), "control": ("control", share)}
        moved = {
            f"{kind}/{name}": server[f"{kind}/{name}"] + rate * leaf
            for kind, (upload, rate) in rates.items()
            for name, leaf in trees.part(mean, upload).items()
        }
        return {**moved, **trees.join(model=trees.under(mean, "statistics"))}

    def common(self, server: Tree, task: Task) -> Tree | None:
        """Return the server model x."""
        return trees.part(server, "model")
