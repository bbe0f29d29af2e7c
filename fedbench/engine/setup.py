"""What every engine needs to train clients: the method, the network, the data, the local work, the seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedbench.config.schema import ProtocolConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch, Population
from fedbench.core.trees import Tree
from fedbench.data import augment
from fedbench.data.federation import Federation
from fedbench.engine import schedule
from fedbench.engine.contract import Client, Clock, Cohort, Stage
from fedbench.engine.method import Method
from fedbench.engine.selectors import check_selectors
from fedbench.models.task import Task

SHUFFLED = 10_000  # clients among whom a cohort is drawn by shuffling all; among more, its cost must not grow with them


@dataclass(frozen=True, eq=False)
class Setup:
    """One simulation's fixed parts. Picklable: worker processes get a copy that shares the tensors."""

    method: Method
    task: Task
    federation: Federation
    protocol: ProtocolConfig
    seed: int

    def __post_init__(self) -> None:
        """Refuse a method that selects leaves which the network lacks."""
        check_selectors(self.method, self.task)

    @property
    def population(self) -> Population:
        """Sizes and label counts of all clients, on the CPU."""
        return self.federation.population

    @property
    def at_once(self) -> int:
        """Clients of a round."""
        return self.protocol.cohort_size(self.federation.clients)

    def seed_of(self, client: int) -> int:
        """What keys the client's randomness, beside its id: the run's seed."""
        return self.seed

    def steps(self, client: int) -> int:
        """Local steps of the protocol's plain local work on `client`."""
        return schedule.steps(self.federation.size(client), self.protocol.local)

    def cohort(self, ids: Tensor, clock: Clock, purpose: str = "server") -> Cohort:
        """The clients `ids` [C] as server hooks see them."""
        steps = torch.tensor([self.steps(int(i)) for i in ids], dtype=torch.float64)
        generator = rng.torch_rng(self.seed, purpose, clock.round)
        return Cohort(ids, clock, self.population, steps, generator, self.everyone, self.task)

    @cached_property
    def everyone(self) -> Tensor:
        """Ids of all clients, int64 [N]."""
        return torch.arange(self.population.clients)

    @torch.no_grad()
    def opening(self, ids: Tensor, clock: Clock) -> tuple[Tree, Tree]:
        """(message, memory) of clients `ids` as a first round without any preparation has them; for trials."""
        server, memory = self.method.init(self.task, self.population, rng.torch_rng(self.seed, "init"))
        server, memory = (self.federation.placed(tree) for tree in (server, trees.take(memory, ids)))
        return self.method.send(server, self.cohort(ids, clock)), trees.clone(memory)

    def draw_cohort(self, clock: Clock) -> Tensor:
        """Ids of this round's clients, sorted, drawn without replacement; a function of (seed, round) alone."""
        count = self.federation.clients
        size = self.protocol.cohort_size(count)
        if size == count:
            return torch.arange(count)
        generator = rng.torch_rng(self.seed, "cohort", clock.round)
        if count > SHUFFLED and size <= count // 2:
            return _distinct(count, size, generator)
        return torch.randperm(count, generator=generator)[:size].sort().values

    def batches(self, client: int, stage: Stage, view: Client, purpose: str) -> tuple[list[Tensor], Tree]:
        """(positions of each local step, per-step noise leaves [S, ...]) of one client's stage, `view` as it sees it.

        The noise is the method's, and beside it, under `augment/`, the augmentation's for each place in a batch.
        """
        seed = self.seed_of(client)
        keys = (view.clock.round, self.federation.ids[client], stage.order)
        order = schedule.batches(
            self.federation.size(client), self.protocol.local, stage, rng.torch_rng(seed, purpose, *keys)
        )
        noise = self.method.draw(rng.torch_rng(seed, purpose + "/noise", *keys), len(order), view)
        if self.augmentations:
            generator = rng.torch_rng(seed, purpose + "/augment", *keys)
            shape = (len(order), self.protocol.local.batch_size)
            drawn = augment.draw(self.augmentations, generator, shape)
            noise = {**noise, **trees.join(augment=drawn)}
        return order, noise

    def scored_classes(self, client: int) -> Tensor:
        """Classes of the global test set that a client is scored on, bool [K].

        All; or where they are weighted by its label shares, those that weigh anything.
        """
        counts = self.population.label_counts[client]
        return counts > 0 if self._by_class else torch.ones_like(counts, dtype=torch.bool)

    @property
    def _by_class(self) -> bool:
        return self.protocol.test.weighting == "label_shares"

    @cached_property
    def global_parts(self) -> tuple[Tensor, ...]:
        """Indices of the global test set, in the parts on which a client is scored or not: classes, or the whole."""
        tests = self.federation.global_test
        if not self._by_class:
            return (tests,)
        labels = self.federation.y[tests]
        return tuple(tests[labels == label] for label in range(self.task.classes))

    def parts_of(self, client: int) -> list[int]:
        """Places in `global_parts` of those that a client is scored on."""
        return self.scored_classes(client).nonzero().flatten().tolist() if self._by_class else [0]

    def scored(self, name: str, client: int) -> Tensor:
        """Indices of the samples of one of its sets that a client is scored on."""
        if name != "global":
            return self.federation.indices(name, client)
        parts = [self.global_parts[place] for place in self.parts_of(client)]
        return torch.cat(parts) if parts else self.federation.global_test[:0]

    @cached_property
    def augmentations(self) -> tuple[augment.Augmentation, ...]:
        """What the protocol does to training images."""
        if self.protocol.augment:
            self.federation.require_images("protocol.augment changes")
        return augment.augmentations(self.protocol.augment)

    def augmented(self, x: Tensor, noise: Tree) -> tuple[Tensor, Tree]:
        """(samples [..., B, C, H, W] of a local step augmented by this step's `noise`, the method's part of it)."""
        if not self.augmentations:
            return x, noise
        drawn = trees.part(noise, "augment")
        x = augment.apply(self.augmentations, x, drawn, self.federation.black)
        return x, {name: leaf for name, leaf in noise.items() if not name.startswith("augment/")}

    def client(self, client: int, message: Tree, memory: Tree, clock: Clock) -> Client:
        """Client `client` as its hooks see it; its data are fetched when a hook asks."""
        return Client(
            self.task,
            clock,
            message,
            memory,
            torch.tensor(float(self.federation.size(client))),
            torch.tensor(float(self.steps(client))),
            self.protocol.optimizer,
            lambda: self.federation.all_of(client),
            lambda: Batch(*self.federation.gather(self.federation.validation_indices(client))),
        )


def _distinct(count: int, size: int, generator: torch.Generator) -> Tensor:
    """`size` numbers below `count`, sorted: the first distinct ones of a stream of draws, so each set is as likely."""
    chosen: dict[int, None] = {}
    while len(chosen) < size:
        chosen.update(dict.fromkeys(torch.randint(count, (size,), generator=generator).tolist()))
    return torch.tensor(sorted(list(chosen)[:size]))
