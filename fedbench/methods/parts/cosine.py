"""Shared by FedSaC and pFedGraph: similarity of models by cosine, and a pull towards what the server mixed.

Server: S_ij = cos(theta_i - theta_0, theta_j - theta_0), 1 where that is above .9. Client: Eq. 9 of FedSaC, min over
theta of F_i(theta) - lambda cos(theta, theta_tilde_i), theta_tilde_i as received.

Where the papers' text and the authors' code (one code base) disagree, a field says which:
- `attract`: the text subtracts lambda cos, the code adds it, which pushes away from the mixture;
- `reference`: theta_tilde ("mixed"), or the code's sum_j W_ij theta_j / |theta_j| ("directions", a second model in the
  message), whose own length the code leaves in: lambda <reference, theta> / |theta|;
- `from_round`: the code has no term in the first round;
- `similarity`: FedSaC prints cosines of "parameters" (Eq. 4), in line with Ye et al. (appendix A.2); the code of either
  has "updates" since theta_0, the default here;
- `snap`: the code takes a cosine above .9 for 1, the default too; neither text says so.
Batch normalisation: statistics are mixed like weights, but are in no cosine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.config.fields import at_least, one_of, selectors
from fedbench.config.schema import added
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Cohort
from fedbench.engine.method import Method
from fedbench.methods.parts import simplex
from fedbench.methods.parts.mixing import cosines, mix_among, one_each, scatter
from fedbench.models.task import Task


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
    solver: str = added(one_of(*simplex.SOLVERS))  # of the rows of W: the projection, or the QP as printed

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
