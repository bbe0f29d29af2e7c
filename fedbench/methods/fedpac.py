"""FedPAC: Xu et al., Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR 2023.

A round of client i (Algorithm 1) has four steps:

- (1) Under the received extractor f, compute from its n_i samples h_i,y = P_i(y) E[f | y] and V_i = (E||f||^2 - sum_y
  ||h_i,y||^2) / n_i.
- (2) Train the classifier under the fixed extractor.
- (3) Train the extractor under the fixed classifier on F_i + lambda/d E||f(x) - c_y||^2, with features of width d and
  global centroids c_y.
- (4) Compute the class sums of the features.

The server averages extractors by n_i / n and c_y by class counts. It combines classifiers by W. Row i of W is the
minimiser over the simplex of a^T [diag(V) + G_i] a with (G_i)_jl = sum_y <h_i,y - h_j,y, h_i,y - h_l,y>, which trades
the variance of the other clients' classifiers against their bias.

Deviations:
- The QP keeps weights below 1e-3. The authors' code drops them. If rounding makes its matrix indefinite, it drops the
  eigenvalues below 0.01, and without a solution the client keeps its classifier.
- A class whose centroid no cohort has computed is not aligned. The code aligns it to the client's own.
- The QP is over the cohort. Clients that are not drawn keep their classifier.

Batch normalisation: affine parameters and running statistics belong to the extractor and are shared. Steps (1) and (4)
use the running statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, positive
from fedbench.config.schema import LocalConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree, fetched, sent
from fedbench.engine.contract import Client, ClientHook, Clock, Cohort, Stage
from fedbench.engine.method import ONE_NETWORK, Method
from fedbench.models.task import Task

STEPS = 60  # Newton steps; each shrinks the gap about tenfold, so most are no-ops at float64's limit
CENTRING = 0.1  # sigma, how much of the gap a step leaves
TO_BOUNDARY = 0.99  # share of the way to the nearest bound that a step may go
SMALLEST_GAP = 1e-13  # duality gap at which a problem is solved, Q scaled to 1


@dataclass(frozen=True)
class FedPAC(Method):
    """A shared extractor aligned to global centroids; classifiers combined for each client.

    Server: body/* [...]; heads/* [N, ...]; centroids [K, d]; seen [K]; W [N, N]
    Memory: nothing
    Message: * [...]; centroids [K, d]; seen [K]
    Upload: body/* [...]; heads/* [...]; sums [K, d]; counts [K]; h [K, d]; V []
    """

    lam: float = at_least(0, 1.0)  # lambda, weight of the feature alignment
    classifier_epochs: int = at_least(0, 1)  # epochs of the classifier
    classifier_lr: float = positive(0.1)  # its learning rate
    extractor_epochs: int | None = at_least(0, None)  # epochs of the extractor; null: the protocol's local work
    collaborate: bool = True  # false: classifiers stay private, W = I

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Xu et al., ICLR 2023"
    unfit: ClassVar[Mapping[str, str]] = {**ONE_NETWORK, "regression": "moves features to means of classes"}

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return frozenset({"finish"})

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Return the extractor, N classifiers, centroids [K, d] (none seen yet), W."""
        head, body = task.split(model := task.init(generator), ("@head",))
        width = task.features(model, torch.zeros(1, *task.shape)).shape[1]
        server = trees.join(body=body, heads=trees.expand(head, population.clients))
        server["centroids"] = torch.zeros(task.classes, width)
        server["seen"] = torch.zeros(task.classes, dtype=torch.bool)
        server["W"] = torch.eye(population.clients, dtype=torch.float64)
        return server, {}

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send the extractor, centroids, and each client's classifier."""
        common = {**trees.under(server, "body"), **{k: server[k] for k in ("centroids", "seen")}}
        return {
            **trees.expand(common, len(cohort.ids)),
            **trees.take(trees.part(server, "heads"), cohort.ids),
        }

    def start(self, client: Client) -> Tree:
        """Return the received extractor and classifier."""
        return {k: v for k, v in client.message.items() if k not in ("centroids", "seen")}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        """Train the classifier, then the extractor on other mini-batches."""
        return (
            Stage(self.loss, moves=("@head",), epochs=self.classifier_epochs, lr=self.classifier_lr),
            Stage(self.aligned, moves=("@body",), epochs=self.extractor_epochs, order=1),
        )

    def aligned(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_i + lambda E||f(x) - c_y||^2 / d."""
        z = client.task.features(work, batch.x, train=True, mask=batch.mask)
        distance = (z - client.message["centroids"][batch.y]).square().mean(1)
        pull = batch.mean(distance * client.message["seen"][batch.y])
        return client.task.criterion(client.task.head(work, z), batch) + self.lam * pull

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the model, class sums and counts, h_i [K, d] and V_i."""
        task, data = client.task, client.data
        received = task.features(self.start(client), data.x)
        h = data.class_sums(received, task.classes)[0] / data.count.to(received.dtype)
        spread = data.mean(received.square().sum(1)) - h.square().sum()
        sums, counts = data.class_sums(task.features(work, data.x), task.classes)
        head, body = task.split(work, ("@head",))
        statistics = {"sums": sums, "counts": counts, "h": h, "V": spread / data.count.to(h.dtype)}
        return {**trees.join(body=body, heads=head), **statistics}, {}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Average extractors, centroids by class, classifiers by W."""
        counts = uploads["counts"].sum(0)
        met = counts > 0
        fresh = uploads["sums"].sum(0) / counts.clamp(min=1).unsqueeze(1)
        body = trees.mean(trees.under(uploads, "body"), cohort.weights)
        identity = torch.eye(len(cohort.ids), dtype=counts.dtype)
        W = weights(uploads["h"], uploads["V"]) if self.collaborate else identity
        heads = trees.mix(W, trees.part(uploads, "heads"))
        rows = torch.zeros(len(W), len(server["W"]), dtype=W.dtype)
        rows[:, cohort.ids] = W
        moved = {**trees.join(heads=heads), "W": sent(rows, counts.device)}
        return {
            **trees.put(server, cohort.ids, moved),
            **trees.join(body=body),
            "centroids": torch.where(met.unsqueeze(1), fresh, server["centroids"]),
            "seen": server["seen"] | met,
        }

    def collaboration(self, server: Tree, population: Population) -> Tensor:
        """Return each client's latest row of W."""
        return server["W"]


def weights(h: Tensor, V: Tensor) -> Tensor:
    """Return W [C, C] of collaborating classifiers from h [C, K, d] and V [C]; solved for, and so, on the CPU."""
    flat = h.flatten(1).double()
    gram, V = fetched([flat @ flat.t(), V])
    own = gram.diagonal()
    G = own.view(-1, 1, 1) - gram.unsqueeze(2) - gram.unsqueeze(1) + gram.unsqueeze(0)
    return minimise_on_simplex(G + torch.diag(V.double()))


# ---- min 1/2 x^T Q x over the simplex, for a batch of Q, by an interior-point method


def minimise_on_simplex(Q: Tensor) -> Tensor:
    """Return the x [R, C] on the simplex that minimise 1/2 x^T Q x, for symmetric positive semidefinite Q [R, C, C].

    Primal-dual path following (Nocedal & Wright, Numerical Optimization, Section 16.6) on the optimality conditions
    Q x - lambda 1 - s = 0, sum(x) = 1, x s = 0, x and s >= 0. Where the minimiser is not unique, its centre is found,
    so that the result does not depend on the order of the variables.
    """
    Q = Q.double()
    rows, count, _ = Q.shape
    Q = Q / Q.abs().amax((1, 2), keepdim=True).clamp(min=torch.finfo(Q.dtype).tiny)
    x = torch.full((rows, count), 1 / count, dtype=Q.dtype, device=Q.device)
    s = torch.ones_like(x)
    level = torch.zeros(rows, 1, dtype=Q.dtype, device=Q.device)  # lambda
    for _ in range(STEPS):
        gap = (x * s).mean(1, keepdim=True)
        open_ = gap > SMALLEST_GAP
        if not bool(open_.any()):
            break
        dx, ds, dlevel = _newton(Q, x, s, level, CENTRING * gap)
        step = torch.minimum(_room(x, dx), _room(s, ds)) * open_
        x, s, level = x + step * dx, s + step * ds, level + step * dlevel
    return x / x.sum(1, keepdim=True)


def _newton(Q: Tensor, x: Tensor, s: Tensor, level: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the step towards x s = target."""
    dual = (Q @ x.unsqueeze(2)).squeeze(2) - level - s
    complement = x * s - target
    matrix = Q + torch.diag_embed(s / x)
    right = torch.stack([-dual - complement / x, torch.ones_like(x)], dim=2)
    free, per_level = torch.linalg.solve(matrix, right).unbind(2)
    dlevel = (1 - x.sum(1, keepdim=True) - free.sum(1, keepdim=True)) / per_level.sum(1, keepdim=True)
    dx = free + dlevel * per_level
    return dx, -(complement + s * dx) / x, dlevel


def _room(value: Tensor, step: Tensor) -> Tensor:
    """Return the largest share of `step`, at most one, that keeps `value` positive, [R, 1]."""
    limits = torch.where(step < 0, -TO_BOUNDARY * value / step, torch.ones_like(value))
    return limits.amin(1, keepdim=True).clamp(max=1.0)
