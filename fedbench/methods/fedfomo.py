"""FedFomo: Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021.

Client i receives the models of M other clients. It compares them on its validation samples with a model theta_i of its
own: w_n = (L_i(theta_i) - L_i(theta_n)) / |theta_n - theta_i|. With w+_n = max(w_n, 0) / sum_m max(w_m, 0) it starts
training from theta_i + sum_n w+_n (theta_n - theta_i), or from theta_i if no model is better. Its own latest trained
model is scored. `baseline` sets theta_i:

- "before" (the preset, and the authors' code and PFLlib's): the model with which the client's latest training began.
  The result of that training is a candidate beside the M others. If it is not better on the validation samples, the
  training is undone.
- "trained" (FL-bench, and so pFedSim's comparison): the latest trained model. It is not a candidate, because its weight
  would be zero.

The server adds up in P_in the w_n that client i reports of other clients n. It sends the M models of the highest P_in
and breaks ties at random. To explore, each candidate gets a random rank with probability epsilon, which falls by
`decay` a round. The candidates are the latest uploads of all clients that have uploaded.
Validation samples are the protocol's (protocol.test.val_fraction; .2 in pFedSim's comparison). Without them the
training samples serve; a client that fits its own training samples then finds no better model and stays alone. They are
held out once and never trained on, as in the authors' code and in the version of FL-bench that pFedSim uses (9382b2c).
A later FL-bench draws them anew in each round. FL-bench does not explore (epsilon=0). Its candidates are the clients of
the round before, including the client itself if it took part.

Each client downloads M models and uploads one. If there are fewer candidates, copies of the model that the server has
of the client itself fill the places, with weight zero. In models of other clients the `private` leaves are those that
the client trained last.
Batch normalisation: statistics are combined like weights, but the norm does not include them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, one_of, selectors, share
from fedbench.config.schema import LocalConfig, added
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Client, ClientHook, Clock, Cohort, Conformance, Stage
from fedbench.engine.method import Method
from fedbench.methods.parts import features
from fedbench.methods.parts.mixing import client_models
from fedbench.models.task import Task

SMALLEST = 1e-12  # squared distance below which two models are the same: no weight


def client_weights(own: Tree, models: Tree, data: Batch, task: Task) -> Tensor:
    """Return the weights w_n [M] of `models` [M, ...] against theta_i, a client's `own`, by their losses on `data`."""
    theta = task.weights(own)
    before = features.mean_loss(own, data, task)
    weights = []
    for n in range(len(next(iter(models.values()), []))):
        model = {**own, **trees.row(models, n)}
        squared = trees.squared_distance(theta, model)
        gain = before - features.mean_loss(model, data, task)
        weights.append(torch.where(squared > SMALLEST, gain / squared.clamp(min=SMALLEST).sqrt(), 0.0))
    return torch.stack(weights) if weights else before.new_zeros(0)


def with_trained(models: Tree, trained: Tree) -> Tree:
    """Return the candidates [M + 1, ...]: others' `models` [M, ...], completed by leaves of `trained`, and that."""
    count = len(next(iter(models.values()), []))
    others = {name: models.get(name, leaf.expand(count, *leaf.shape)) for name, leaf in trained.items()}
    return {name: torch.cat([others[name], leaf.unsqueeze(0)]) for name, leaf in trained.items()}


def others_weights(weights: Tensor, candidates: Tree, task: Task) -> Tensor:
    """Return the `weights` [M] of the candidates but for the last; those that equal the last have none."""
    trained = task.weights(trees.row(candidates, -1))
    apart = [trees.squared_distance(trained, trees.row(candidates, n)) for n in range(len(weights) - 1)]
    return torch.where(torch.stack(apart) > SMALLEST, weights[:-1], 0.0) if apart else weights[:-1]


def combined(own: Tree, models: Tree, weights: Tensor) -> Tree:
    """Return `own`, moved towards the `models` [M, ...] by the shares of their positive weights."""
    positive = weights.clamp(min=0)
    share = positive / positive.sum().clamp(min=torch.finfo(weights.dtype).tiny)
    moved = {name: own[name] + torch.tensordot(share, leaf - own[name], dims=1) for name, leaf in models.items()}
    return {**own, **moved}


@dataclass(frozen=True)
class FedFomo(Method):
    """Clients combine other clients' models by how much these help on their validation samples.

    Server: model/* [N, ...]; P [N, N]; uploaded [N], whether the client ever did
    Memory: * [N, ...], the latest trained; before/* [N, ...] if baseline is before, what that began with
    Message: peer/* [M, ...]; reported/peers [M]
    Upload: * [...]; reported/peers [M]; reported/weights [M]
    """

    private: tuple[str, ...] = selectors(())  # leaves that never leave a client, see Task.select
    M: int = at_least(1, 5)  # models that a client receives
    epsilon: float = share(0.3)  # probability that a candidate's rank is random
    decay: float = at_least(0, 0.05)  # how much epsilon falls in each round
    # theta_i: the client's latest "trained" model, or the model "before" that training; then the trained one competes
    baseline: str = added(one_of("trained", "before"))

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Zhang et al., ICLR 2021"

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return frozenset({"start"})

    @property
    def conformance(self) -> Conformance:
        """Exploration is drawn for each place in the cohort; the scored model is in the client's memory."""
        return Conformance(sends_by_cohort="who explores is drawn for each place in the cohort")

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Start all from one model, with P zero."""
        server, memory = client_models(task, self.private, population, generator)
        own = {**trees.under(server, "model"), **memory}
        if self.baseline == "before":
            memory = trees.join(before=own)
        P = torch.zeros(population.clients, population.clients, dtype=torch.float64)
        uploaded = torch.zeros(population.clients, dtype=torch.bool)
        return {**server, "P": P, "uploaded": uploaded}, {**own, **memory}

    # ---- server

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send each client M models [C, M, ...] and the ids of their clients [C, M]."""
        peers = self.peers(server["P"].cpu(), server["uploaded"].cpu(), cohort)
        stored = trees.under(server, "model")
        flat = trees.take(stored, peers.flatten())
        models = {name: leaf.reshape(*peers.shape, *leaf.shape[1:]) for name, leaf in flat.items()}
        return {**trees.join(peer=models), "reported/peers": sent(peers, server["P"].device)}

    def peers(self, P: Tensor, uploaded: Tensor, cohort: Cohort) -> Tensor:
        """Return the ids [C, M] of the highest in the cohort's rows of P [N, N], its own where there are no others.

        Only clients that have uploaded a model are sent (`uploaded`, bool [N]).

        Ties are broken by lot, and with probability epsilon a candidate's rank is drawn.
        """
        shape = (len(cohort.ids), len(P))
        lot = torch.rand(shape, generator=cohort.generator, dtype=torch.float64)
        epsilon = self.epsilon - self.decay * cohort.clock.round
        explored = torch.rand(shape, generator=cohort.generator) < epsilon
        shuffled = lot.argsort(1)
        order = P[cohort.ids].gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
        rank = shuffled.gather(1, order).argsort(1).to(torch.float64)
        rank = torch.where(explored, lot * len(P), rank)
        served = torch.zeros(len(P), dtype=torch.bool).index_fill(0, cohort.served, True)
        own = cohort.ids.unsqueeze(1)
        rank = rank.masked_fill(~served | ~uploaded | (torch.arange(len(P)) == own), torch.inf)
        best = rank.topk(min(self.M, len(P) - 1), dim=1, largest=False)
        return torch.where(best.values.isinf(), own, best.indices)

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Store the models, add the reported weights to P."""
        models = trees.plain(uploads)
        ids = sent(cohort.ids, server["P"].device)
        rows = server["P"][ids].scatter_add(1, uploads["reported/peers"], uploads["reported/weights"].to(torch.float64))
        uploaded = torch.ones_like(ids, dtype=torch.bool)
        return trees.put(server, cohort.ids, {**trees.join(model=models), "P": rows, "uploaded": uploaded})

    def collaboration(self, server: Tree, population: Population) -> Tensor:
        """Return P where positive, a row's sum one; without any, the identity's."""
        positive = server["P"].clamp(min=0)
        identity = torch.eye(len(positive)).to(positive)
        rows = torch.where(positive.sum(1, keepdim=True) > 0, positive, identity)
        return torch.nn.functional.normalize(rows, p=1, dim=1)

    # ---- client

    def start(self, client: Client) -> Tree:
        """Return the combined model, the others' weights, and the model again, to keep, if it is the next theta_i."""
        models, own = trees.under(client.message, "peer"), trees.plain(client.memory)
        if self.baseline == "trained":
            weights = client_weights(own, models, client.validation, client.task)
            return {**combined(own, models, weights), "reported/weights": weights}
        models, own = with_trained(models, own), trees.part(client.memory, "before")
        weights = client_weights(own, models, client.validation, client.task)
        reported = others_weights(weights, models, client.task)
        model = combined(own, models, torch.cat([reported, weights[-1:]]))
        return {**model, **trees.join(before=model), "reported/weights": reported}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train the model alone."""
        return (Stage(self.loss, fixed=("reported/*", "before/*")),)

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the model and the weights; keep the model and the one that its training began with."""
        model = trees.plain(work)
        _, shared = client.task.split(model, self.private)
        reported = {"peers": client.message["reported/peers"], "weights": work["reported/weights"]}
        before = trees.join(before=trees.under(work, "before"))
        return {**shared, **trees.join(reported=reported)}, {**model, **before}

    def model(self, work: Tree, client: Client) -> Tree:
        """Return the model without other leaves."""
        return trees.plain(work)

    def personal(self, client: Client) -> Tree:
        return trees.plain(client.memory)
