"""DP-FedAvg: McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018.

Algorithm 1 with flat clipping and the fixed-denominator estimator. Client k clips the update of the model m that it
receives: Delta_k = (w_k - m) min(1, S / ||w_k - m||). With C uploads the server sets w = m + (1 / C) sum_k Delta_k +
N(0, (z S / C)^2 I). `clip` is S and `noise` is z. A method inside (`base`) trains w_k; its upload is one vector.

The server's models of all rounds are (epsilon, delta)-differentially private for each of N clients, whose data any
other data may replace. This moves the sum of updates by up to 2 S, so the accountant's noise multiplier is z / 2. The
result row has the lower of two values of epsilon, or infinity (null) without noise. Both are bounds by Renyi's
divergence:
- The cohorts are secret, and each is drawn from N clients without replacement (Wang et al., AISTATS 2019, Theorem 27).
  It holds if clients keep nothing between rounds: what they keep tells in which rounds they took part.
- The cohorts are known.
A round counts with the uploads that arrive, because they are lost whatever the data are (protocol.work.dropout).

Deviations:
- Cohorts have a fixed size. The paper draws each client by itself, so its neighbouring data have one client more.
- Clients have the weight 1 instead of min(n_k / w, 1).
- The update is clipped once, at its end. Algorithm 1 projects the model into the ball of radius S after each local
  step. Both bound an upload by S.
- What the simulation measures on clients, such as accuracies, and the choice of settings are outside the guarantee.
  Noise is drawn from the run's seed in floating point.

Batch normalisation: running statistics are clipped and noised as weights are. A variance below 0 becomes 0.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, positive, share
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Client, Cohort, Conformance
from fedbench.engine.method import Method
from fedbench.methods.parts.clustered import WrapperMethod, default_base
from fedbench.models.task import Task


@dataclass(frozen=True)
class DPFedAvg(WrapperMethod):
    """Clipped updates, their mean with noise, and the privacy that this costs.

    Server: base/**; rounds [N], entry c - 1: how many had c uploads; stateless [], whether clients keep nothing
    Memory: ** [N, ...] if the base has any
    Message: **, the base's
    Upload: **, the base's
    """

    base: Any = field(default_factory=default_base)  # the method inside
    clip: float = positive(1.0)  # S, the largest norm of an update
    noise: float = at_least(0, 1.0)  # z, the noise of the updates' sum in units of S
    delta: float = share(1e-5, above=True, below=True)  # probability with which epsilon may not hold

    paper: ClassVar[str] = "McMahan et al., ICLR 2018"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_average()
        inside = type(self.inner)
        if inside.send is not Method.send or inside.prepare is not Method.prepare:
            raise ConfigError(
                f"method.base: {inside.__name__} prepares on the clients' data or sends more than its model, which no "
                "noise covers; DPFedAvg takes fedavg, fedprox, finetune, fedper, fedrep, ditto and the like"
            )

    @property
    def family(self) -> str:  # type: ignore[override]
        """That of the method inside."""
        return self.inner.family

    @property
    def conformance(self) -> Conformance:
        return self.inner.conformance

    def shares(self, sizes: Tensor) -> Tensor | None:
        return None

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start as the method inside, with no round counted.

        Raises:
            ConfigError: the library for epsilon is missing.
        """
        if self.noise:
            accounting()
        server, memory = super().init(task, population, generator)
        rounds = torch.zeros(population.clients, dtype=torch.int64)
        return {**server, "rounds": rounds, "stateless": torch.tensor(not memory)}, memory

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the received model, moved by the clipped update."""
        if client.optimizer.state == "kept":
            raise ConfigError("DPFedAvg counts no optimisers' states; choose protocol.optimizer.state=fresh")
        upload, memory = super().finish(work, client)
        for name, leaf in upload.items():
            if name not in client.message or not leaf.is_floating_point():
                raise ConfigError(f"method.base: DPFedAvg cannot clip '{name}', which is no number of the sent model")
        update = {name: leaf - client.message[name] for name, leaf in upload.items()}
        factor = (self.clip / trees.dot(update, update).sqrt()).clamp(max=1)
        return {name: client.message[name] + factor.to(leaf) * leaf for name, leaf in update.items()}, memory

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Return the mean with noise, and the round counted."""
        count = len(cohort.ids)
        if len(cohort.served) < cohort.population.clients:
            raise ConfigError("DPFedAvg counts rounds of all clients; it cannot be inside a method with groups")
        mean = trees.mean(uploads, torch.full((count,), 1 / count, dtype=torch.float64))
        for name in sorted(mean):
            noise = torch.randn(mean[name].shape, generator=cohort.generator)
            mean[name] = mean[name] + self.noise * self.clip / count * sent(noise, mean[name].device).to(mean[name])
            if name.endswith("running_var"):
                mean[name] = mean[name].clamp(min=0)
        rounds = server["rounds"].clone()
        rounds[count - 1] += 1
        return {**server, **trees.join(base=mean), "rounds": rounds}

    def record(self, server: Tree) -> Mapping[str, Tensor]:
        """Return epsilon."""
        spent = self.epsilon(server["rounds"].tolist(), sampled=bool(server["stateless"]))
        return {**super().record(server), "epsilon": torch.tensor(spent, dtype=torch.float64)}

    def epsilon(self, rounds: list[int], *, sampled: bool) -> float:
        """Return epsilon at `delta` after `rounds` [N], see `Server`; `sampled`: cohorts may count as secret."""
        if self.noise == 0:
            return math.inf
        dp, bounds = accounting(), []
        gaussian = dp.GaussianDpEvent(self.noise / 2)
        for secret in (False, True) if sampled else (False,):
            accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
            for uploads, times in enumerate(rounds, start=1):
                drawn = dp.SampledWithoutReplacementDpEvent(len(rounds), uploads, gaussian)
                if times:
                    accountant.compose(drawn if secret else gaussian, times)
            bounds.append(float(accountant.get_epsilon(self.delta)))
        return min(bounds)


def accounting() -> Any:
    """Return the library that computes epsilon.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import dp_accounting
        from absl import logging  # by which it logs
    except ImportError as error:
        raise ConfigError(
            "method=dp_fedavg computes epsilon by dp-accounting: pip install 'fedbench-harness[privacy]'; or noise=0"
        ) from error
    # The handler holds what stderr is at the import, and closes it if that is another one when Hydra ends all handlers.
    logging.get_absl_handler().python_handler.setStream(sys.__stderr__)
    return dp_accounting
