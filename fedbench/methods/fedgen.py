"""FedGen: Zhu et al., Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021.

The server learns a generator G_w(y, eps) of features from the clients' classifiers g_k and sends it with the model.
Server (Algorithm 1): min_w E_{y ~ p(y), eps} CE(mean_k g_k(G_w(y, eps)), y), where p is the label distribution of all
clients. Client k minimises F_k(theta) + alpha E_{y ~ p(y), eps} CE(g(G_w(y, eps)), y) over its model theta.

Two terms come from the authors' code. A weight of zero removes each and gives the paper's equations.
- The client's loss has a second term on its own samples, beta KL(g(G_w(y_i, eps)) || h(x_i)). alpha and beta decay in
  each round.
- The generator's loss has a diversity term, exp(-mean_ij |eps_i - eps_j|^2 |z_i - z_j|_1), which keeps features apart
  whose noise differs. Both distances are means over dimensions.

Deviations:
- The generator is one hidden ReLU layer without batch normalisation. Its optimiser starts anew in each round.
- The generator's loss averages the clients' logits equally, as in the paper. The code adds cross-entropies, weighted by
  shares of y.
- Six choices of the code are not followed. Its generator's rate falls by .98 a round. Its clients use generated samples
  in the first 20 local epochs alone, and neither of their terms in round 1. They scale alpha's term by the ratio of
  generated to own samples in a step, and draw y uniformly and eps from U[0, 1); here these come from p(y) and N(0, 1).
  Its generator has a weight decay of 1e-2.

Batch normalisation: running statistics of the model are shared and averaged, unless they are private, as in the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least, positive, selectors, share
from fedbench.config.schema import OptimizerConfig, added
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Client, Cohort
from fedbench.engine.method import ONE_NETWORK, Method
from fedbench.engine.optim import fit
from fedbench.methods.parts.layers import linear
from fedbench.models.task import Task


@dataclass(frozen=True)
class FedGen(Method):
    """FedAvg with a feature generator that gives each client the knowledge of the other clients' classifiers.

    Server: * [...]; generator/**
    Memory: * [N, ...] if private
    Message: * [...]; generator/**; labels [K], p(y)
    Upload: * [...]
    """

    generative_weight: float = at_least(0, 10.0)  # alpha of the first round
    latent_weight: float = at_least(0, 10.0)  # beta of the first round
    decay: float = share(0.98)  # factor on alpha and beta in each round
    hidden: int = at_least(1, 32)  # units of the generator's hidden layer
    noise: int = at_least(1, 32)  # width of eps
    steps: int = at_least(0, 5)  # steps of the generator in each round
    batch: int = at_least(1, 32)  # features generated in a step, by the server and by a client
    lr: float = positive(3e-4)  # learning rate of the generator (Adam)
    diversity: float = at_least(0, 1.0)  # weight of the generator's diversity term
    private: tuple[str, ...] = added(selectors(()))  # leaves that never leave a client; none of the classifier layer

    paper: ClassVar[str] = "Zhu et al., ICML 2021"
    unfit: ClassVar[Mapping[str, str]] = {**ONE_NETWORK, "regression": "generates features of classes"}

    @property
    def family(self) -> str:  # type: ignore[override]
        """A client with private leaves has a model of its own."""
        return "personalised" if self.private else "global"

    # ---- server

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return FedAvg's shared leaves and a generator beside them, and on every client the private leaves.

        Raises:
            ConfigError: leaves of the classifier layer are private, from which the generator learns.
        """
        model = task.init(generator)
        private, shared = task.split(model, self.private)
        if lost := task.select(private, ("@head",)):
            raise ConfigError(
                f"method.private: FedGen's server learns from {min(lost)} of all clients; leave out @head"
            )
        features = task.features(model, torch.zeros(1, *task.shape)).shape[1]
        widths = (self.noise + task.classes, self.hidden, features)
        made: Tree = {}
        for layer, (wide, narrow) in enumerate(pairwise(widths)):
            made |= linear(str(layer), wide, narrow, generator)
        return {**shared, **trees.join(generator=made)}, trees.expand(private, population.clients)

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send the model, the generator, and the label distribution of this server's clients."""
        device = server["generator/0.weight"].device
        return trees.expand({**server, "labels": sent(_shares(server, cohort), device)}, len(cohort.ids))

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Average as FedAvg does, then train the generator on the uploaded classifiers."""
        shares = _shares(server, cohort)
        draws = (trees.row(self._draw(1, shares, cohort.generator), 0) for _ in range(self.steps))

        def loss(made: Tree, drawn: Tree) -> Tensor:
            return self.ensemble_loss(made, uploads, cohort.task, drawn["eps"], drawn["y"])

        learned = fit(trees.part(server, "generator"), loss, draws, OptimizerConfig(name="adam", lr=self.lr))
        return {**server, **trees.mean(uploads, cohort.weights), **trees.join(generator=learned)}

    def ensemble_loss(self, made: Tree, models: Tree, task: Task, eps: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of `models`' [C, ...] mean logits on features of (eps, y) [B], and diversity."""
        z = generate(made, eps, y, task.classes)
        logits = torch.func.vmap(lambda model: task.head(model, z))(models).mean(0)
        loss = functional.cross_entropy(logits, y)
        if self.diversity:
            noise_distance = (eps.unsqueeze(0) - eps.unsqueeze(1)).square().mean(2)
            spread = (z.unsqueeze(0) - z.unsqueeze(1)).abs().mean(2)
            loss = loss + self.diversity * (-(noise_distance * spread).mean()).exp()
        return loss

    def common(self, server: Tree, task: Task) -> Tree | None:
        """Return FedAvg's model, unless a part of it is private."""
        return super().common(_model(server), task)

    # ---- client

    def start(self, client: Client) -> Tree:
        """Return the received leaves beside the client's own; the generator stays as received."""
        return {**_model(client.message), **client.memory}

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """Return the noise eps [S, B, noise] and labels y [S, B] of each step's features; `own` is eps of own samples.

        The round's `decay` is included.
        """
        shares = client.message["labels"]
        return {
            **self._draw(steps, shares, generator),
            "own": torch.randn(steps, self.batch, self.noise, generator=generator).to(shares),
            "decay": shares.new_full((steps,), self.decay**client.clock.round),
        }

    def _draw(self, steps: int, shares: Tensor, generator: torch.Generator) -> Tree:
        eps = torch.randn(steps, self.batch, self.noise, generator=generator)
        y = torch.multinomial(shares, steps * self.batch, replacement=True, generator=generator)
        return {"eps": eps.to(shares), "y": y.view(steps, self.batch)}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_k + alpha CE(g(G(y, eps)), y) + beta KL(g(G(y_i, eps)) || h(x_i))."""
        task, made = client.task, trees.part(client.message, "generator")
        decay = batch.noise["decay"]
        logits = task.apply(work, batch.x, train=True, mask=batch.mask)
        total = task.criterion(logits, batch)
        if self.generative_weight:
            z = generate(made, batch.noise["eps"], batch.noise["y"], task.classes)
            known = functional.cross_entropy(task.head(work, z), batch.noise["y"])
            total = total + self.generative_weight * decay * known
        if self.latent_weight:
            eps = batch.noise["own"][torch.arange(len(batch.y), device=batch.y.device) % self.batch]
            z = generate(made, eps, batch.y, task.classes)
            target = task.head(work, z).detach().softmax(1)
            gap = functional.kl_div(logits.log_softmax(1), target, reduction="none").sum(1)
            total = total + self.latent_weight * decay * batch.mean(gap)
        return total

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the shared leaves, keep the private ones."""
        private, shared = client.task.split(work, self.private)
        return shared, private


def generate(made: Tree, eps: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the features [B, d] of labels y [B] and noise eps [B, noise]."""
    labels = torch.eye(classes, dtype=eps.dtype, device=eps.device)[y]
    inputs = torch.cat([eps, labels], dim=1)
    hidden = functional.linear(inputs, made["0.weight"], made["0.bias"]).relu()
    return functional.linear(hidden, made["1.weight"], made["1.bias"])


def _shares(server: Tree, cohort: Cohort) -> Tensor:
    """Return p(y) of the clients this server serves, [K], on the CPU."""
    counts = cohort.population.label_counts[cohort.served].sum(0)
    return (counts / counts.sum()).to(server["generator/0.weight"].dtype)


def _model(tree: Tree) -> Tree:
    return {k: leaf for k, leaf in tree.items() if k != "labels" and not k.startswith("generator/")}
