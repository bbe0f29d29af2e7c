"""Collaboration graphs: client i receives a mixture of the clients' models, weighted by row i of a matrix W.

A subclass only gives W, either one for all leaves or one for each group of leaves (body, head). Clients of several
modalities (Cohort.by_modality) mix the leaves that both have.

- `Mixing` mixes the uploads of a round among the clients that took part. Clients that are not drawn keep their last
  mixture.
- `CosineMixing` adds similarities by cosine and a pull towards the mixture.
- `ModelStore` stores every client's latest upload and mixes when it sends, so models of absent clients remain in use.
  It begins with rounds of FedAvg.

Leaves named in `private` stay on their clients. Batch normalisation's statistics are mixed like weights unless they are
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

SOLVERS = ("closed", "cvxpy")  # how rows of W are found, see `closest`
PRECISE = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}  # W is then right to 1e-6


@dataclass(frozen=True)
class Mixing(Method):
    """Mixes a round's uploads; model/* holds the next message to each client, W each client's latest row."""

    private: tuple[str, ...] = selectors(())  # leaves that never leave a client, see Task.select

    family: ClassVar[str] = "personalised"

    @abstractmethod
    def graph(self, server: Tree, uploads: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        """Return W [C, C] over the cohort for each group of leaves (selector); a leaf takes the first that matches.

        The first group's matrix is the one that `collaboration` reports.
        """

    def mixed(self, models: Tree, cohort: Cohort) -> dict[str, Tree]:
        """Return the trees [C, ...] that W mixes, each by its namespace in the server's state."""
        return {"model": models}

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        server, memory = client_models(task, self.private, population, generator)
        return {**server, "W": torch.eye(population.clients, dtype=torch.float64)}, memory

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Give the cohort its mixtures W Theta; everybody else keeps what they had."""
        graph = self.graph(server, uploads, cohort)
        trees_to_mix = self.mixed(trees.plain(uploads), cohort)
        mixtures = trees.join(**{name: mix(graph, tree, cohort) for name, tree in trees_to_mix.items()})
        W = rows_over_all(next(iter(graph.values())), cohort).to(server["W"].device)
        return trees.put(server, cohort.ids, {**mixtures, "W": W})

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        return trees.take(trees.under(server, "model"), cohort.ids)

    def collaboration(self, server: Tree, population: Population) -> Tensor:
        return server["W"]

    def start(self, client: Client) -> Tree:
        """Put the received mixture beside the client's private leaves."""
        return {**trees.plain(client.message), **client.memory}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        private, shared = client.task.split(work, self.private)
        return shared, private


@dataclass(frozen=True)
class CosineMixing(Mixing):
    """FedSaC's and pFedGraph's similarity of models by cosine, and their pull towards the mixture.

    The server computes S_ij = cos(theta_i - theta_0, theta_j - theta_0) and counts values above .9 as 1. A client
    minimises Eq. 9 of FedSaC over theta, F_i(theta) - lambda cos(theta, theta_tilde_i) with the received theta_tilde_i.

    The papers' text and the authors' code (one code base) disagree in these fields:
    - `attract`: the text subtracts lambda cos. The code adds it, which pushes away from the mixture.
    - `reference`: theta_tilde ("mixed"), or the code's sum_j W_ij theta_j / |theta_j| ("directions", a second model in
      the message). The code does not normalise that sum: lambda <reference, theta> / |theta|.
    - `from_round`: the code has no term in the first round, nor for a client that is not in the round before.
    - `similarity`: FedSaC prints cosines of "parameters" (Eq. 4), in line with Ye et al. (appendix A.2). The code of
      both takes "updates" since theta_0, which is the default here.
    - `snap`: the code counts a cosine above .9 as 1, which is the default here. Neither text says so.

    Batch normalisation: statistics are mixed like weights. No cosine includes them.
    """

    family: ClassVar[str] = "mixture"

    lam: float = at_least(0, 1.0)  # lambda, weight of the cosine to the received mixture
    attract: bool = True  # false: the term has the code's sign
    # second argument of the cosine: the "mixed" model, or the code's "directions"
    reference: str = one_of("mixed", "directions")
    from_round: int = at_least(0, 0)  # first round with the term, counted from 0; the code: 1
    similarity: str = one_of("updates", "parameters")  # S compares "updates" since theta_0, or "parameters"
    snap: float | None = at_least(-1, 0.9)  # cosines above it count as 1; null: no limit
    solver: str = added(one_of(*SOLVERS))  # rows of W by the "closed" projection, or by "cvxpy" from the QP as printed

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Keep the initial model, or each client's reference, where the fields ask for it."""
        server, memory = super().init(task, population, generator)
        weights = task.weights(trees.under(server, "model"))
        if self.similarity == "updates":
            server.update(trees.join(initial=trees.row(weights, 0)))
        if self.reference == "directions":
            directions = unit_models(weights, task, torch.arange(population.clients))
            server.update(trees.join(direction=directions))
        return server, memory

    # ---- server

    def similarities(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tensor:
        """Return S [C, C]."""
        weights = cohort.task.weights(trees.plain(uploads))
        if self.similarity == "updates":
            start = trees.part(server, "initial")
            weights = {name: leaf - start[name] for name, leaf in weights.items()}
        S = cosines(trees.flatten(weights))
        return S if self.snap is None else S.masked_fill(self.snap < S, 1.0)

    def mixed(self, models: Tree, cohort: Cohort) -> dict[str, Tree]:
        if self.reference == "mixed":
            return {"model": models}
        return {
            "model": models,
            "direction": unit_models(cohort.task.weights(models), cohort.task, cohort.ids),
        }

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Send each client its mixture, and its reference where that is another vector."""
        direction = trees.take(trees.under(server, "direction"), cohort.ids)
        return {**super().send(server, cohort), **trees.join(direction=direction)}

    # ---- client

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """Return the term's weight in this round, [S]."""
        weight = 0.0 if client.clock.round < self.from_round else self.lam
        return {"pull": torch.full((steps,), weight if self.attract else -weight, dtype=torch.float64)}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Return F_i(theta) - lambda cos(theta, theta_tilde_i)."""
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


@dataclass(frozen=True)
class ModelStore(Method):
    """Stores every client's latest model in model/*; a client's message is their mixture by its row of W.

    In warm-up rounds all clients get FedAvg's model.
    """

    private: tuple[str, ...] = selectors(())  # leaves that never leave a client, see Task.select

    family: ClassVar[str] = "personalised"

    @abstractmethod
    def warm(self, clock: Clock) -> bool:
        """Return whether a round belongs to the warm-up."""

    @abstractmethod
    def rows(self, server: Tree, cohort: Cohort) -> Mapping[str, Tensor]:
        """Return W [C, N] for each group of leaves (selector); leaves in no group are the client's own."""

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        return client_models(task, self.private, population, generator)

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """Mix all stored models by the cohort's rows of W."""
        models = trees.under(server, "model")
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
        """Put the received leaves beside the client's own."""
        return {**client.message, **client.memory}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        private, shared = client.task.split(work, self.private)
        return shared, private


# ---- models of all clients, and their mixtures


def client_models(
    task: Task, private: tuple[str, ...], population: Population, generator: torch.Generator
) -> tuple[Tree, Tree]:
    """Return (model/* [N, ...] of a server that keeps one for each client, their `private` leaves [N, ...]).

    All start from one model.
    """
    own, shared = task.split(task.init(generator), private)
    return trees.join(model=trees.expand(shared, population.clients)), trees.expand(own, population.clients)


def mix(graph: Mapping[str, Tensor], models: Tree, cohort: Cohort) -> Tree:
    """Mix the cohort's `models` as `mix_groups` does, each leaf among the clients that have it.

    Raises:
        ValueError: a matrix [C, C] has them mix with clients that do not.
    """
    parts = []
    for members, leaves in cohort.task.among(models, cohort.ids):
        submatrices = {selector: _submatrix(matrix, members) for selector, matrix in graph.items()}
        parts.append((members, mix_groups(submatrices, leaves, cohort.task)))
    return trees.spread(parts, len(cohort.ids))


def _submatrix(matrix: Tensor, members: Rows) -> Tensor:
    """Return the rows and columns of `matrix` [C, C] of the clients `members`."""
    if isinstance(members, slice):
        return matrix
    index = sent(members.nonzero().flatten(), matrix.device)
    return matrix[index][:, index]


def mix_groups(graph: Mapping[str, Tensor], models: Tree, task: Task) -> Tree:
    """Mix `models` by the matrix of each leaf's group; leaves in no group are left out."""
    mixed: Tree = {}
    rest = models
    for selector, matrix in graph.items():
        group, rest = task.split(rest, (selector,))
        mixed.update(trees.mix(matrix, group) if group else {})
    return mixed


def rows_over_all(matrix: Tensor, cohort: Cohort) -> Tensor:
    """Return the rows [C, N] over all clients of `matrix` [C, C], which is over the cohort."""
    rows = matrix.new_zeros(len(matrix), cohort.population.clients, dtype=torch.float64)
    rows[:, sent(cohort.ids, rows.device)] = matrix.to(torch.float64)
    return rows


def cosines(rows: Tensor) -> Tensor:
    """Return the cosine of every two rows of [C, P], float64 [C, C]: 1 on the diagonal, 0 with a row of zeros."""
    unit = functional.normalize(rows.to(torch.float64), dim=1)
    return (unit @ unit.t()).clamp(-1, 1).fill_diagonal_(1.0)


def _norm(tree: Tree) -> Tensor:
    return trees.dot(tree, tree).clamp(min=1e-24).sqrt()


def unit_models(models: Tree, task: Task, ids: Tensor) -> Tree:
    """Return each of `models` [C, ...], those of clients `ids`, divided by its length."""
    modality, parts = task.modality_of(ids), []
    for index, own_task in enumerate(task.modalities):
        own = trees.rows(own_task.own(models), modality == index)
        unit = functional.normalize(trees.flatten(own), dim=1)
        parts.append((modality == index, trees.unflatten(unit, own)))
    return trees.spread(parts, len(ids))


# ---- rows of W on the simplex


def closest(p: Tensor, cost: Tensor, allowed: Tensor | None = None, solver: str = "closed") -> Tensor:
    """Return the points w of the simplex that minimise |w - p|^2 + cost^T w, rows [R, n] in float64.

    That is the projection of p - cost / 2 on the simplex, so no solver is needed; "cvxpy" states the problem as the
    papers print it and solves it row by row. They agree to 1e-6.

    Args:
        p: [n], or one a row [R, n].
        cost: [R, n].
        allowed: bool [R, n], at least one a row: the other entries of the result are zero.
        solver: "closed" or "cvxpy".

    Raises:
        FedbenchError: cvxpy finds no solution.
    """
    if solver == "closed":
        return project(p - cost / 2, allowed)
    return _by_cvxpy(p.expand_as(cost), cost, torch.ones_like(cost) if allowed is None else allowed)


def _by_cvxpy(p: Tensor, cost: Tensor, most: Tensor) -> Tensor:
    """Solve row by row for entries of at most those of `most`."""
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
            raise FedbenchError(f"cvxpy does not find a row of W ({problem.status}); try method.solver=closed")
        rows.append(torch.from_numpy(w.value))
    solution = sent(torch.stack(rows), cost.device).clamp(min=0) * most
    return solution / solution.sum(-1, keepdim=True)


def project(rows: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the nearest points of the simplex to `rows` [R, n], in float64.

    Held, Wolfe & Crowder (1974); Duchi et al., ICML 2008: with v sorted in descending order and
    rho = max {j : v_(j) - (sum_{i <= j} v_(i) - 1) / j > 0}, the projection is max(v - tau, 0),
    tau = (sum_{i <= rho} v_(i) - 1) / rho.

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
    projected = (v - tau).clamp(min=0)
    return projected / projected.sum(-1, keepdim=True)
