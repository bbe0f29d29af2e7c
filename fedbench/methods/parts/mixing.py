"""Collaboration graphs: what a client receives next is a mixture of the clients' models, row i of a matrix W.

Subclasses give only W - for all leaves, or one for each group of leaves (body, head), which says who mixes with whom
there; clients of several kinds (Cohort.alike) mix what both have. `Mixing` mixes the uploads of a
round among those who took part; absent clients keep the mixture they had. `Library` keeps every client's latest upload
and mixes when it sends, so that absent clients' models go on being used; it begins with rounds of FedAvg.

Leaves named in `private` stay on their clients; batch normalisation's statistics are mixed like weights unless they are
named there. W is asserted row-stochastic where it is applied.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.config.fields import at_least, one_of, selectors
from fedbench.config.schema import added
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.errors import FedbenchError
from fedbench.core.trees import Rows, Tree, sent
from fedbench.engine.contract import Client, Clock, Cohort
from fedbench.engine.method import Method
from fedbench.models.task import Task


@dataclass(frozen=True)
class Mixing(Method):
    """Mixes a round's uploads; model/* is what each client receives next, W has each client's latest row."""

    private: tuple[str, ...] = selectors(())  # leaves that never leave a client, see Task.select

    family: ClassVar[str] = "personalised"

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """One model for all, and W = I."""
        server, memory = one_each(task, self.private, population, generator)
        return {**server, "W": torch.eye(population.clients, dtype=torch.float64)}, memory

    @abstractmethod
    def graph(self, server: Tree, uploads: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        """W [C, C] over the cohort for each group of leaves (selector); a leaf takes the first that matches.

        The first group's matrix is the one that `collaboration` reports.
        """

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Theta_tilde = W Theta for the cohort; everybody else keeps what they had."""
        graph = self.graph(server, uploads, cohort)
        rows = scatter(next(iter(graph.values())), cohort).to(server["W"].device)
        mixed = trees.join(model=mix_among(graph, trees.plain(uploads), cohort))
        return trees.put(server, cohort.ids, {**mixed, "W": rows})

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Each client's mixture."""
        return trees.take(trees.part(server, "model"), cohort.ids)

    def collaboration(self, server: Tree, population: Population) -> Tensor:
        """The latest row of every client."""
        return server["W"]

    def start(self, client: Client) -> Tree:
        """The received mixture beside the client's private leaves."""
        return {**trees.plain(client.message), **client.memory}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the shared leaves, keep the private ones."""
        private, shared = client.task.split(work, self.private)
        return shared, private


@dataclass(frozen=True)
class Library(Method):
    """Keeps every client's latest model in model/*; the message is W's row over all of them.

    In the warm-up rounds, if there are any, the model is FedAvg's and the same for all.
    """

    private: tuple[str, ...] = selectors(())  # leaves that never leave a client, see Task.select

    family: ClassVar[str] = "personalised"

    @abstractmethod
    def warm(self, clock: Clock) -> bool:
        """Whether a round belongs to the warm-up."""

    @abstractmethod
    def rows(self, server: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        """W [C, N] for each group of leaves (selector); leaves in no group are the client's own."""

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """One model for all."""
        return one_each(task, self.private, population, generator)

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """The cohort's rows of W over all stored models."""
        models = trees.part(server, "model")
        own = trees.take(models, cohort.ids)
        if self.warm(cohort.clock):
            return own
        return {**own, **mix_groups(self.rows(server, cohort), models, cohort.task)}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Store the uploads; in the warm-up, their average in every client's place."""
        if self.warm(cohort.clock):
            average = trees.mean(trees.plain(uploads), cohort.weights)
            return {**server, **trees.join(model=trees.expand(average, cohort.population.clients))}
        return trees.put(server, cohort.ids, trees.join(model=trees.plain(uploads)))

    def start(self, client: Client) -> Tree:
        """The received leaves beside the client's own."""
        return {**client.message, **client.memory}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the shared leaves, keep the private ones."""
        private, shared = client.task.split(work, self.private)
        return shared, private


def one_each(
    task: Task, private: tuple[str, ...], population: Population, generator: torch.Generator
) -> tuple[Tree, Tree]:
    """(model/* [N, ...] for a server that keeps a model for each client, what each keeps itself [N, ...]).

    All start from one model.
    """
    own, shared = task.split(task.init(generator), private)
    return trees.join(model=trees.expand(shared, population.clients)), trees.expand(own, population.clients)


def mix_among(graph: Mapping[str, Tensor], models: Tree, cohort: Cohort) -> Tree:
    """`mix_groups` of the cohort's `models`, each leaf among the clients that have it.

    Raises:
        ValueError: a matrix [C, C] has them mix with clients that do not.
    """
    parts = []
    for chosen, leaves in cohort.task.among(models, cohort.ids):
        inner = {selector: _among(matrix, chosen) for selector, matrix in graph.items()}
        parts.append((chosen, mix_groups(inner, leaves, cohort.task)))
    return trees.spread(parts, len(cohort.ids))


def _among(matrix: Tensor, chosen: Rows) -> Tensor:
    """The rows and columns of `matrix` [C, C] of the clients `chosen`."""
    if isinstance(chosen, slice):
        return matrix
    places = sent(chosen.nonzero().flatten(), matrix.device)
    return matrix[places][:, places]


def mix_groups(graph: Mapping[str, Tensor], models: Tree, task: Task) -> Tree:
    """`models` [C, ...] mixed by the matrix of each leaf's group; leaves in no group are left out."""
    mixed: Tree = {}
    rest = models
    for selector, matrix in graph.items():
        chosen, rest = task.split(rest, (selector,))
        mixed.update(trees.mix(matrix, chosen) if chosen else {})
    return mixed


def scatter(matrix: Tensor, cohort: Cohort) -> Tensor:
    """The rows [C, N] of W over all clients that hold `matrix` [C, C] over the cohort."""
    rows = matrix.new_zeros(len(matrix), cohort.population.clients, dtype=torch.float64)
    rows[:, sent(cohort.ids, rows.device)] = matrix.to(torch.float64)
    return rows


def cosines(rows: Tensor) -> Tensor:
    """Cosine of every two rows of [C, P] -> float64 [C, C], with ones on the diagonal; 0 with a row of zeros."""
    unit = functional.normalize(rows.to(torch.float64), dim=1)
    found = (unit @ unit.t()).clamp(-1, 1)
    return found.fill_diagonal_(1.0)


# Points of the probability simplex that minimise a quadratic, for many rows: in closed form, or by a solver.
#
# The rows of pFedGraph's and FedSaC's W minimise |w - p|^2 + c^T w over the simplex. That is the projection of
# p - c / 2
# on it, so no solver is needed; `solver` "cvxpy" states the problem as the papers print it and solves it row by row.
#
# Held, Wolfe & Crowder (1974); Duchi et al., ICML 2008: with v sorted in descending order and
# rho = max {j : v_(j) - (sum_{i <= j} v_(i) - 1) / j > 0}, the projection is max(v - tau, 0),
# tau = (sum_{i <= rho} v_(i) - 1) / rho.

SOLVERS = ("closed", "cvxpy")
PRECISE = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}  # W is then right to 1e-6


def closest(p: Tensor, cost: Tensor, allowed: Tensor | None = None, solver: str = "closed") -> Tensor:
    """The points w of the simplex that minimise |w - p|^2 + cost^T w, rows [R, n] in float64.

    Args:
        p: [n], or one a row [R, n].
        cost: [R, n].
        allowed: bool [R, n], at least one a row: the other entries of the result are zero.
        solver: "closed" or "cvxpy"; they agree to 1e-6.

    Raises:
        FedbenchError: cvxpy finds no solution.
    """
    if solver == "closed":
        return project(p - cost / 2, allowed)
    return _by_cvxpy(p.expand_as(cost), cost, torch.ones_like(cost) if allowed is None else allowed)


def _by_cvxpy(p: Tensor, cost: Tensor, most: Tensor) -> Tensor:
    """Row by row, entries at most those of `most`."""
    import cvxpy

    count = cost.shape[1]
    w, (centre, linear, bound) = cvxpy.Variable(count), (cvxpy.Parameter(count) for _ in range(3))
    objective = cvxpy.Minimize(cvxpy.sum_squares(w - centre) + linear @ w)
    problem = cvxpy.Problem(objective, [w >= 0, w <= bound, cvxpy.sum(w) == 1])
    rows = []
    for row in torch.stack([p, cost, most.to(cost)], 1).double().cpu().numpy():
        centre.value, linear.value, bound.value = row
        problem.solve(solver=cvxpy.CLARABEL, **PRECISE)
        if problem.status != cvxpy.OPTIMAL:
            raise FedbenchError(f"cvxpy finds no row of W ({problem.status}); try method.solver=closed")
        rows.append(torch.from_numpy(w.value))
    found = sent(torch.stack(rows), cost.device).clamp(min=0) * most
    return found / found.sum(-1, keepdim=True)


def project(rows: Tensor, allowed: Tensor | None = None) -> Tensor:
    """The nearest points of the simplex to `rows` [R, n], in float64.

    `allowed` (bool [R, n], at least one a row): the other entries of the result are zero.
    """
    v = rows.to(torch.float64)
    if allowed is not None:
        v = v.masked_fill(~allowed, -torch.inf)
    ordered = v.sort(dim=-1, descending=True).values
    real = ordered.isfinite()
    above = ordered.masked_fill(~real, 0).cumsum(-1) - 1
    rank = torch.arange(1, v.shape[-1] + 1, dtype=torch.float64, device=v.device)
    support = (real & (ordered * rank > above)).sum(-1, keepdim=True)
    tau = above.gather(-1, support - 1) / support
    found = (v - tau).clamp(min=0)
    return found / found.sum(-1, keepdim=True)


# Shared by FedSaC and pFedGraph: similarity of models by cosine, and a pull towards what the server mixed.
#
# Server: S_ij = cos(theta_i - theta_0, theta_j - theta_0), 1 where that is above .9. Client: Eq. 9 of FedSaC,
# min over
# theta of F_i(theta) - lambda cos(theta, theta_tilde_i), theta_tilde_i as received.
#
# Where the papers' text and the authors' code (one code base) disagree, a field says which:
# - `attract`: the text subtracts lambda cos, the code adds it, which pushes away from the mixture;
# - `reference`: theta_tilde ("mixed"), or the code's sum_j W_ij theta_j / |theta_j| ("directions", a second
# model in the
#   message), whose own length the code leaves in: lambda <reference, theta> / |theta|;
# - `from_round`: the code has no term in the first round;
# - `similarity`: FedSaC prints cosines of "parameters" (Eq. 4), in line with Ye et al. (appendix A.2); the code
# of either
#   has "updates" since theta_0, the default here;
# - `snap`: the code takes a cosine above .9 for 1, the default too; neither text says so.
# Batch normalisation: statistics are mixed like weights, but are in no cosine.


@dataclass(frozen=True)
class CosineMixing(Method):
    """A graph from cosines between models, and a local objective with a cosine; a subclass gives the graph."""

    private: tuple[str, ...] = selectors(())  # leaves that never leave a client, see Task.select
    lam: float = at_least(0, 1.0)  # lambda, weight of the cosine to the received mixture
    attract: bool = True  # false: the term's sign as in the code
    # what the cosine is taken to: "mixed", or the code's "directions"
    reference: str = one_of("mixed", "directions")
    from_round: int = at_least(0, 0)  # first round with the term, counted from 0; the code: 1
    similarity: str = one_of("updates", "parameters")  # S is of "updates" since theta_0, or of "parameters"
    snap: float | None = at_least(-1, 0.9)  # cosines above it count as 1; null: none do
    solver: str = added(one_of(*SOLVERS))  # of the rows of W: the projection, or the QP as printed

    family: ClassVar[str] = "personalised"

    @abstractmethod
    def graph(self, server: Tree, uploads: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        """W [C, C] over the cohort for each group of leaves, see Mixing.graph."""

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """One model for all, W = I; the initial model, or each client's reference, where the fields ask for it."""
        server, memory = one_each(task, self.private, population, generator)
        server = {**server, "W": torch.eye(population.clients, dtype=torch.float64)}
        weights = task.weights(trees.part(server, "model"))
        if self.similarity == "updates":
            server.update(trees.join(initial=trees.row(weights, 0)))
        if self.reference == "directions":
            server.update(trees.join(direction=_units(weights, task, torch.arange(population.clients))))
        return server, memory

    # ---- server

    def similarities(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tensor:
        """S [C, C]."""
        weights = cohort.task.weights(trees.plain(uploads))
        if self.similarity == "updates":
            start = trees.part(server, "initial")
            weights = {name: leaf - start[name] for name, leaf in weights.items()}
        found = cosines(trees.flatten(weights))
        return found if self.snap is None else found.masked_fill(found > self.snap, 1.0)

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """The client's mixture, and its reference where that is another vector."""
        mixture, direction = (
            trees.take(trees.part(server, name), cohort.ids) for name in ("model", "direction")
        )
        return {**mixture, **trees.join(direction=direction)}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Theta_tilde = W Theta for the cohort, and sum_j W_ij theta_j / |theta_j| where the fields ask for it."""
        graph, models = self.graph(server, uploads, cohort), trees.plain(uploads)
        found = trees.join(model=mix_among(graph, models, cohort))
        if self.reference == "directions":
            units = _units(cohort.task.weights(models), cohort.task, cohort.ids)
            found.update(trees.join(direction=mix_among(graph, units, cohort)))
        rows = scatter(next(iter(graph.values())), cohort).to(server["W"].device)
        return trees.put(server, cohort.ids, {**found, "W": rows})

    def collaboration(self, server: Tree, population: Population) -> Tensor:
        """The latest row of every client."""
        return server["W"]

    # ---- client

    def start(self, client: Client) -> Tree:
        """The received mixture beside the client's private leaves."""
        return {**trees.plain(client.message), **client.memory}

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """The term's weight in this round, [S]."""
        weight = 0.0 if client.clock.round < self.from_round else self.lam
        return {"pull": torch.full((steps,), weight if self.attract else -weight, dtype=torch.float64)}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """F_i(theta) - lambda cos(theta, theta_tilde_i)."""
        loss = super().loss(work, client, batch)
        if self.lam == 0:
            return loss
        if self.reference == "directions":
            reference, length = trees.part(client.message, "direction"), torch.ones(())
        else:
            reference = client.task.weights(trees.plain(client.message))
            length = _norm(reference)
        cosine = trees.dot(reference, work) / (_norm({k: work[k] for k in reference}) * length)
        return loss - batch.noise["pull"].to(cosine.dtype) * cosine

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Upload the shared leaves, keep the private ones."""
        private, shared = client.task.split(work, self.private)
        return shared, private


def _norm(tree: Tree) -> Tensor:
    return trees.dot(tree, tree).clamp(min=1e-24).sqrt()


def _units(models: Tree, task: Task, ids: Tensor) -> Tree:
    """Each of `models` [C, ...], those of clients `ids`, divided by its length."""
    kind, parts = task.kind_of(ids), []
    for place, alike in enumerate(task.kinds):
        own = trees.rows(alike.own(models), kind == place)
        unit = torch.nn.functional.normalize(trees.flatten(own), dim=1)
        parts.append((kind == place, trees.unflatten(unit, own)))
    return trees.spread(parts, len(ids))


# min 1/2 x^T Q x over the probability simplex, for a batch of positive semidefinite Q, by an interior-point method.

STEPS = 60  # Newton steps; each shrinks the gap about tenfold, so most are no-ops at float64's limit
CENTRING = 0.1  # sigma, how much of the gap a step leaves
TO_BOUNDARY = 0.99  # share of the way to the nearest bound that a step may go
SMALLEST_GAP = 1e-13  # duality gap at which a problem is solved, Q scaled to 1


def minimise(Q: Tensor) -> Tensor:
    """Solutions [R, C], rows on the simplex, for symmetric positive semidefinite Q [R, C, C].

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
    """The step towards x s = target."""
    dual = (Q @ x.unsqueeze(2)).squeeze(2) - level - s
    complement = x * s - target
    matrix = Q + torch.diag_embed(s / x)
    right = torch.stack([-dual - complement / x, torch.ones_like(x)], dim=2)
    free, per_level = torch.linalg.solve(matrix, right).unbind(2)
    dlevel = (1 - x.sum(1, keepdim=True) - free.sum(1, keepdim=True)) / per_level.sum(1, keepdim=True)
    dx = free + dlevel * per_level
    return dx, -(complement + s * dx) / x, dlevel


def _room(value: Tensor, step: Tensor) -> Tensor:
    """Largest share of `step`, at most one, that keeps `value` positive, [R, 1]."""
    limits = torch.where(step < 0, -TO_BOUNDARY * value / step, torch.ones_like(value))
    return limits.amin(1, keepdim=True).clamp(max=1.0)
