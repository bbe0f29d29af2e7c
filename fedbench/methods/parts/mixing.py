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

from fedbench.config.fields import selectors
from fedbench.core import trees
from fedbench.core.batch import Population
from fedbench.core.transfer import sent
from fedbench.core.trees import Rows, Tree
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
