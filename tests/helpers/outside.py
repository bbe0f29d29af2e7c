"""Methods written outside the package: one that keeps its promises, and one for each promise that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Cohort, Conformance
from fedbench.engine.method import Method
from fedbench.methods.fedavg import FedAvg
from fedbench.models.task import Task


@dataclass(frozen=True)
class Momentum(FedAvg):
    """FedAvg with momentum on the server."""

    beta: float = 0.9

    paper: ClassVar[str] = "Hsu et al., 2019"

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """The model, and no velocity."""
        model, memory = super().init(task, population, generator)
        return trees.join(model=model, velocity=trees.map_leaves(torch.zeros_like, model)), memory

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """The model."""
        return trees.expand(trees.part(server, "model"), len(cohort.ids))

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """velocity = beta velocity + (average - model); model += velocity."""
        mean, old = trees.mean(uploads, cohort.weights), trees.part(server, "velocity")
        model = trees.part(server, "model")
        velocity = {name: self.beta * leaf + mean[name] - model[name] for name, leaf in old.items()}
        return trees.join(model={k: model[k] + v for k, v in velocity.items()}, velocity=velocity)


class Undecorated(FedAvg):
    """No dataclass of its own."""


@dataclass(frozen=True)
class WritesToTheServer(FedAvg):
    """Adds to what it is given."""

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """In place."""
        for name, leaf in trees.mean(uploads, cohort.weights).items():
            server[name].copy_(leaf)
        return server


@dataclass(frozen=True)
class WritesToTheModel(FedAvg):
    """Finishes by emptying what was trained."""

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """In place."""
        found = trees.clone(work)
        for leaf in work.values():
            leaf.zero_()
        return found, {}


@dataclass(frozen=True)
class Loud(FedAvg):
    """Draws from the global generator."""

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """A little noise."""
        return {k: v + 1e-3 * torch.rand(()) for k, v in super().aggregate(server, uploads, cohort).items()}


@dataclass(frozen=True)
class Forgetful(FedAvg):
    """Keeps something outside of its state."""

    rounds: list[int] = field(default_factory=list)

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Steps get smaller with every call."""
        self.rounds.append(1)
        mean = trees.mean(uploads, cohort.weights)
        return {k: v + (mean[k] - v) / len(self.rounds) for k, v in server.items()}


@dataclass(frozen=True)
class Double(FedAvg):
    """Uploads in double precision."""

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Twice the bytes."""
        return {k: v.double() for k, v in work.items()}, {}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Back to the server's precision."""
        mean = trees.mean(uploads, cohort.weights)
        return {k: v.to(server[k].dtype) for k, v in mean.items()}


@dataclass(frozen=True)
class Growing(FedAvg):
    """The server's state gets a leaf in the first round."""

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """And a count."""
        return {**super().aggregate(server, uploads, cohort), "count": torch.zeros((), dtype=torch.float64)}

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """All but the count."""
        return super().send({k: v for k, v in server.items() if k != "count"}, cohort)


@dataclass(frozen=True)
class Padded(FedAvg):
    """A mean over places in the batch, not over samples."""

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """Padding counts."""
        scores = client.task.apply(work, batch.x, train=True, mask=batch.mask)
        return torch.nn.functional.cross_entropy(scores, batch.y) + 1e-2 * scores.square().mean()


@dataclass(frozen=True)
class Crowded(FedAvg):
    """Sends another model to each place in the cohort."""

    def send(self, server: Tree, cohort: Cohort) -> Tree:
        """The first client's is the model itself."""
        places = torch.arange(len(cohort.ids), dtype=torch.float64)
        return {k: v + places.view(-1, *[1] * (v.dim() - 1)) for k, v in super().send(server, cohort).items()}


@dataclass(frozen=True)
class Lopsided(FedAvg):
    """Its matrix is not stochastic."""

    def collaboration(self, server: Tree, population: Population) -> Tensor:
        """Twice the identity."""
        return 2 * torch.eye(population.clients)


@dataclass(frozen=True)
class Frozen(FedAvg):
    """Nothing that is trained arrives."""

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """The server stays."""
        return server


@dataclass(frozen=True)
class Keeping(FedAvg):
    """Keeps on a client what it began with, instead of what it trained."""

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """A head of its own for each client."""
        head, body = task.split(task.init(generator), ("@head",))
        return body, trees.expand(head, population.clients)

    def start(self, client: Client) -> Tree:
        """Both."""
        return {**client.message, **client.memory}

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """The slip."""
        return {name: leaf for name, leaf in work.items() if name not in client.memory}, client.memory


@dataclass(frozen=True)
class Counting(FedAvg):
    """Counts rounds on each client twice over, for nobody."""

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """Two counts that begin at zero."""
        zero = torch.zeros(population.clients)
        return super().init(task, population, generator)[0], {"rounds": zero, "twice": zero}

    def start(self, client: Client) -> Tree:
        """The received model."""
        return client.message

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """Each count is made of the other."""
        return work, {"rounds": client.memory["twice"] / 2 + 1, "twice": 2 * client.memory["rounds"] + 2}


@dataclass(frozen=True)
class Chatty(FedAvg):
    """Uploads its number of samples, which the server knows."""

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        """The model, and n_k."""
        return {**work, "size": client.size.double()}, {}

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        """Only the model counts."""
        return super().aggregate(server, {k: v for k, v in uploads.items() if k in server}, cohort)


@dataclass(frozen=True)
class Misnamed(Keeping):
    """Asks for a namespace by another name than it gave it."""

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        """The head is own/*."""
        body, head = super().init(task, population, generator)
        return body, trees.join(own=head)

    def start(self, client: Client) -> Tree:
        """The slip."""
        return {**client.message, **trees.part(client.memory, "personal")}


@dataclass(frozen=True)
class Lively(FedAvg):
    """Declares a leaf inert that is not."""

    @property
    def conformance(self) -> Conformance:
        """The head."""
        return Conformance(inert={"@head": "nobody reads it"})


@dataclass(frozen=True)
class Modest(FedAvg):
    """Declares an exception that is none."""

    @property
    def conformance(self) -> Conformance:
        """As if it drew by position, and needed two samples."""
        return Conformance(draws_by_position="it does not", smallest=2)


@dataclass(frozen=True)
class Unpicklable(FedAvg):
    """Holds a function."""

    step: Callable[[int], int] = lambda _: 0


@dataclass(frozen=True)
class Unfinished(Method):
    """Without its hooks."""
