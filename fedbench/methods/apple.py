"""APPLE: Luo & Wu, Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning, IJCAI 2022.

Client k owns a core model c_k, which it sends, and directed relationships p^k [N], which it keeps. p^k starts at p^0 =
n_j / n and may take any value. The client receives all core models; its personal model is w = sum_j p^k_j c_j. Local
steps train c_k and p^k together by the gradient, through w, of F_k(w) + lambda(r) mu / 2 |p^k - p^0|^2. The other
clients' cores stay as received. Over the first L of the rounds lambda falls from 1, as .001^(r / L) or as half a
cosine. After that it is 0. The server only stores the cores.

The authors' code has mu in place of mu / 2. Its cores start from different random draws (`apart`), so the weights of
their mean are much smaller than those of one network. The gradient of c_k has the factor p^k_k, so a step on c_k moves
w by its square. PFLlib multiplies the learning rate by N to compensate, and uses means over entries in p's gradient.
Neither is offered here, nor is a limit on the number of cores that a client receives.
Deviation: p^k is stepped by the protocol's optimiser. Its gradient is scaled by `p_lr` over the optimiser's rate, so
plain SGD steps at `p_lr`. Weight decay is of p^k - p^0.
Each client downloads N models, so the method suits few clients. It also receives its own number and p^0.
Batch normalisation: cores have no running statistics. w has its own, which stay on the client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, one_of, share
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Client, Clock, Cohort, Conformance
from fedbench.engine.method import Method
from fedbench.models.task import Task

LAST = 1e-3  # epsilon: lambda at the end of the exponential schedule


@dataclass(frozen=True)
class APPLE(Method):
    """A core model on each client, and a personal model that is a learned combination of all cores.

    Server: core/* [N, ...], c_j
    Memory: * [N, ...] if batch normalisation, w's statistics; moved [N, N], p^k - p^0
    Message: core/* [N, ...]; place [1], which of them is the client's; p0 [N]
    Upload: * [...], c_k
    """

    p_lr: float = at_least(0, 0.001)  # learning rate of p
    mu: float = at_least(0, 0.1)  # weight of the pull to p^0
    pulled: float = share(0.1)  # L, the share of the rounds that have the pull
    schedule: str = one_of("exponential", "cosine")  # how the pull's weight lambda falls
    apart: bool = False  # true: core models start from different random draws, as in the code

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Luo & Wu, IJCAI 2022"

    def shares(self, sizes: Tensor) -> Tensor | None:
        return None

    @property
    def conformance(self) -> Conformance:
        """Cores that start apart are drawn client by client."""
        return Conformance(draws_by_position="client k starts from the k-th draw" if self.apart else "")

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start all cores from one model, or each from its own, with p = p^0."""
        count = population.clients
        model = task.init(generator)
        cores = trees.expand(task.weights(model), count)
        if self.apart:
            cores = trees.stack([task.weights(model), *(task.weights(task.init(generator)) for _ in range(count - 1))])
        statistics = {name: leaf for name, leaf in model.items() if task.is_buffer(name)}
        return trees.join(core=cores), {**trees.expand(statistics, count), "moved": torch.zeros(count, count)}

    # ---- server

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send everybody all cores."""
        leaf = next(iter(server.values()))
        share = torch.zeros(cohort.population.clients, dtype=leaf.dtype)
        sizes = cohort.population.sizes[cohort.served]
        share[cohort.served] = (sizes / sizes.sum()).to(leaf.dtype)
        everyone = trees.expand({**server, "p0": sent(share, leaf.device)}, len(cohort.ids))
        return {**everyone, "place": sent(cohort.ids.unsqueeze(1), leaf.device)}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Store the cores."""
        return trees.put(server, cohort.ids, trees.join(core=uploads))

    # ---- client

    def start(self, client: Client) -> Tree:
        """Return core/*, c_k, beside p^k - p^0 and the statistics."""
        place = client.message["place"]
        core = {name: leaf.index_select(0, place)[0] for name, leaf in trees.part(client.message, "core").items()}
        return {**client.memory, **trees.join(core=core)}

    def model(self, work: Tree, client: Client) -> Tree:
        """Return w = sum_j p_j c_j, with gradients for c_k and, scaled, for p."""
        p0 = client.message["p0"]
        own = torch.arange(len(p0), device=p0.device) == client.message["place"]
        p = torch.where((p0 > 0) | own, p0 + self.moved(work, client), 0)  # of this server's clients, and a newcomer
        others, weight = p.masked_fill(own, 0), torch.where(own, p, 0).sum()
        peers, core = trees.part(client.message, "core"), trees.part(work, "core")
        w = {name: torch.tensordot(others, peers[name], dims=1) + weight * leaf for name, leaf in core.items()}
        return {**{name: leaf for name, leaf in trees.plain(work).items() if name != "moved"}, **w}

    def moved(self, work: Tree, client: Client) -> Tensor:
        """Return p - p^0 [N], with gradients scaled so that a step at the protocol's rate is one at `p_lr`."""
        value = work["moved"].detach()
        return value + self.p_lr / client.lr * (work["moved"] - value)

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """Return lambda(r) mu, [S]."""
        return {"pull": torch.full((steps,), self.mu * self.weight(client.clock), dtype=torch.float64)}

    def weight(self, clock: Clock) -> float:
        """Return lambda(r)."""
        rounds = int(self.pulled * clock.rounds)
        if clock.round >= rounds:
            return 0.0
        passed = clock.round / rounds
        return LAST**passed if self.schedule == "exponential" else (math.cos(math.pi * passed) + 1) / 2

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_k(w) + lambda mu / 2 |p - p^0|^2."""
        loss = super().loss(work, client, batch)
        return loss + batch.noise["pull"].to(loss.dtype) / 2 * self.moved(work, client).square().sum()

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload c_k; keep p and the statistics."""
        return trees.part(work, "core"), trees.plain(work)
