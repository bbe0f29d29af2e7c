"""pFedMe: T Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020.

Clients minimise F_i(w) = min_theta f_i(theta) + lambda/2 ||theta - w||^2. Algorithm 1, for each mini-batch:
theta by K gradient steps at `personal_lr` on that bracket, then w <- w - eta lambda (w - theta), eta = `lr`. That step
is no gradient step of the protocol's optimiser: no momentum, weight decay or clipping. Server:
w^{t+1} = (1 - beta) w^t + beta sum_i p_i w_i. theta is what is scored.
As the authors' code has it by default: theta starts a round at the received w and goes on from one mini-batch to the
next, and p_i = n_i / n. The paper's p_i is uniform (`uniform`), and it leaves open where the K steps start: `restart`
starts them anew at the client's current w for each mini-batch (as FedCollab's code does), else theta may drift further
from w than K steps reach.
The code adds a weight decay of .001 to theta's gradients (`weight_decay`). pFedGraph's code, which made FedSaC's row
too, has it as well and scores w_i after training (`scored: w`).
Deviation: clients outside the cohort do not train (the paper: all do, and a sample is averaged).
Batch normalisation: only theta meets data, so its running statistics are both the client's and what it uploads.
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
    inner_steps: int = at_least(1, 5)  # K
    personal_lr: float = at_least(0, 0.01)  # of the K steps
    beta: float = at_least(0, 1.0)  # server mixing; 1: the clients' average
    restart: bool = added(False)  # each mini-batch's K steps start at w, not at the last theta
    uniform: bool = added(False)  # clients count alike, not by their samples
    lr: float | None = added(positive(None))  # eta, rate of the step on w; None: the protocol's
    weight_decay: float = added(at_least(0, 0.0))  # on theta, beside the bracket
    scored: str = added(one_of("theta", "w"))  # which of a client's two models is its own: "theta", or "w" (w_i)

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
