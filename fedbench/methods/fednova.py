"""FedNova: Wang et al., NeurIPS 2020.

Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, Section 4. Client k divides its
change by ||a_k||_1, d_k = (w^t - w_k) / ||a_k||_1, so that clients with more local steps do not pull harder. Server:
w^{t+1} = w^t - tau_eff sum_k p_k d_k with tau_eff = sum_k p_k ||a_k||_1 and p_k = n_k / n. a_k includes momentum
(Section 3).
Deviations: the server has no momentum. Weight decay counts as part of the gradient.
Batch normalisation: running statistics are shared and averaged by p_k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Client, Cohort
from fedbench.engine.method import ONE_NETWORK
from fedbench.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedNova(FedAvg):
    """The server averages the clients' changes per local step.

    Upload: change/* [...], d_k of the weights; statistics/* [...] if batch normalisation; steps [], ||a_k||_1
    """

    paper: ClassVar[str] = "Wang et al., NeurIPS 2020"
    unfit: ClassVar[Mapping[str, str]] = ONE_NETWORK  # a round without a modality would bring no mean of its leaves

    def shares(self, sizes: Tensor) -> Tensor | None:
        """A change counts by n_k over its local steps."""
        return None

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload d_k, the statistics, and ||a_k||_1."""
        shared, private = super().finish(work, client)
        weights = client.task.weights(shared)
        scale = accumulation(client.steps, client.optimizer, "fednova")
        change = {name: (client.message[name] - weights[name]) / scale.to(weights[name].dtype) for name in weights}
        statistics = {name: leaf for name, leaf in shared.items() if name not in weights}
        return {**trees.join(change=change, statistics=statistics), "steps": scale}, private

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Return the model, moved by - tau_eff sum_k p_k d_k."""
        uploads = dict(uploads)
        steps = uploads.pop("steps")
        effective = (sent(cohort.weights, steps.device) * steps).sum()
        mean = trees.mean(uploads, cohort.weights)
        change = trees.under(mean, "change")
        moved = {name: server[name] - effective.to(leaf.dtype) * leaf for name, leaf in change.items()}
        return {**moved, **trees.under(mean, "statistics")}


def accumulation(steps: Tensor, optimizer: OptimizerConfig, method: str) -> Tensor:
    """Return ||a||_1: how often a constant gradient times the learning rate is in the change after `steps` SGD steps.

    `steps` without momentum; with momentum rho (sum_s (1 - rho^s) / (1 - rho), s = 1..steps; FedNova, Section 3)
    [steps - rho (1 - rho^steps) / (1 - rho)] / (1 - rho). float64, like `steps` in shape.

    Raises:
        ConfigError: the optimiser is no SGD, its momentum goes on from the last round, or its rate changes within a
            round; `method` opens the message.
    """
    if optimizer.name != "sgd":
        raise ConfigError(f"{method} is defined for SGD; choose protocol.optimizer.name=sgd")
    rho = optimizer.momentum
    if rho and optimizer.state == "kept":
        raise ConfigError(
            f"{method} needs momentum that starts again in each round; choose protocol.optimizer.state=fresh"
        )
    if optimizer.schedule.by == "step":
        raise ConfigError(f"{method} needs one learning rate a round; choose protocol.optimizer.schedule.by=round")
    steps = steps.double()
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
