"""pFedMe: T Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020.

Clients minimise F_i(w) = min_theta f_i(theta) + lambda/2 ||theta - w||^2. For each mini-batch Algorithm 1 takes K
gradient steps at `personal_lr` on that bracket for theta, then w <- w - eta lambda (w - theta) with eta = `lr`. The
step on w is not a gradient step of the protocol's optimiser: it has no momentum, weight decay or clipping. Server:
w^{t+1} = (1 - beta) w^t + beta sum_i p_i w_i. theta is scored.

As in the default of the authors' code, theta starts a round at the received w and continues from one mini-batch to the
next, and p_i = n_i / n. The paper's p_i is uniform (`uniform`). It leaves open where the K steps start. `restart`
starts them at the client's current w for each mini-batch, as FedCollab's code does. Without it theta may drift further
from w than K steps reach.
The code adds a weight decay of .001 to theta's gradients (`weight_decay`). It scores w_i after training (`scored: w`),
because its optimiser's parameters, which it takes for theta, are the model's own. So does pFedGraph's code, which also
produced FedSaC's row.
Deviation: clients outside the cohort do not train. In the paper all clients train, and a sample of them is averaged.
Batch normalisation: only theta meets data, so the client uses theta's running statistics and uploads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, one_of, positive
from fedbench.config.schema import LocalConfig, added
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Cohort, Stage
from fedbench.engine.method import Method
from fedbench.models.task import Task, gradient


@dataclass(frozen=True)
class PFedMe(Method):
    """Personal models near a global one, by Moreau envelopes.

    Server: * [...], w
    Memory: personal/* [N, ...], theta
    Message: * [...], w
    Upload: * [...], w with theta's statistics
    """

    lam: float = at_least(0, 15.0)  # lambda, strength of the pull towards the global model
    inner_steps: int = at_least(1, 5)  # K, the number of steps on theta
    personal_lr: float = at_least(0, 0.01)  # learning rate of the K steps
    beta: float = at_least(0, 1.0)  # weight of the clients' average in the server's new model
    restart: bool = added(False)  # each mini-batch's K steps start at w, not at the last theta
    uniform: bool = added(False)  # true: clients count equally, not by their samples
    lr: float | None = added(positive(None))  # eta, learning rate of the step on w; null: the protocol's
    weight_decay: float = added(at_least(0, 0.0))  # weight decay of theta, in addition to the bracket
    scored: str = added(one_of("theta", "w"))  # which of a client's two models is scored: "theta", or "w" (w_i)

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "T Dinh et al., NeurIPS 2020"

    def shares(self, sizes: Tensor) -> Tensor:
        return torch.ones_like(sizes) if self.uniform else sizes

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start w and all thetas from the same model."""
        model = task.init(generator)
        return model, trees.join(personal=trees.expand(model, population.clients))

    def start(self, client: Client) -> Tree:
        """Return both w and theta as received."""
        return trees.join(shared=client.message, personal=client.message)

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Make steps on theta and on w, none of them the optimiser's."""
        return (Stage(direction=self.step, moves=()),)

    def step(self, work: Tree, client: Client, batch: Batch) -> Tree:
        """Return both w and theta after one mini-batch."""
        task, theta = client.task, trees.part(work, "personal")
        w = task.weights(trees.part(work, "shared"))
        if self.restart:
            theta = {**theta, **w}
        for _ in range(self.inner_steps):
            slope, statistics = gradient(lambda model: task.loss(model, batch), theta, task)
            if self.weight_decay:
                slope = {name: leaf.add(theta[name], alpha=self.weight_decay) for name, leaf in slope.items()}
            # theta - lr (slope + lambda (theta - w)), without copies of the weights in between
            pulled = {k: theta[k].lerp(w[k], self.personal_lr * self.lam) for k in w}
            theta = {
                **statistics,
                **{k: leaf.sub_(slope[k], alpha=self.personal_lr) for k, leaf in pulled.items()},
            }
        eta = client.lr if self.lr is None else self.lr
        change = {name: self.lam * (leaf - theta[name]) for name, leaf in w.items()}
        if isinstance(eta, Tensor):  # which `sub` does not take
            moved = {name: leaf - eta * change[name] for name, leaf in w.items()}
        else:
            moved = {name: leaf.sub(change[name], alpha=eta) for name, leaf in w.items()}
        return trees.join(shared=moved, personal=theta)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload w with theta's statistics, keep theta."""
        return self._shared(work, client), trees.join(personal=trees.part(work, "personal"))

    def model(self, work: Tree, client: Client) -> Tree:
        """Return the personal model theta, or w_i."""
        return trees.part(work, "personal") if self.scored == "theta" else self._shared(work, client)

    def personal(self, client: Client) -> Tree:
        return trees.part(client.memory, "personal") if self.scored == "theta" else client.message

    def _shared(self, work: Tree, client: Client) -> Tree:
        """Return w_i with theta's statistics."""
        return {**trees.part(work, "personal"), **client.task.weights(trees.part(work, "shared"))}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Return (1 - beta) w + beta mean."""
        shares = self.shares(cohort.sizes)
        mean = trees.mean(uploads, shares / shares.sum())
        return {name: leaf + self.beta * (mean[name] - leaf) for name, leaf in server.items()}
