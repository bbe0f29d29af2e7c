"""What every engine needs to train clients: the method, the network, the data, the local work, the seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedbench.config.schema import ProtocolConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch, Population
from fedbench.core.transfer import fetched
from fedbench.core.trees import Tree
from fedbench.data.federation import (
    Augmentation,
    Federation,
    augment,
    augmentations,
    draw_augmentation,
)
from fedbench.engine import schedule
from fedbench.engine.contract import Client, Clock, Cohort, Stage
from fedbench.engine.hooks import Calls, check_announced
from fedbench.engine.method import Method
from fedbench.engine.scored_sets import ScoredSets
from fedbench.engine.selectors import check_selectors
from fedbench.models.task import Task

Drawn = tuple[schedule.Order, Tree]
"""(a client's mini-batches, per-step noise leaves [S, ...])."""

BatchSource = Callable[["Setup", int, Stage, Client, str], Drawn]
"""(setup, client, stage, the client as it sees itself, purpose) -> all mini-batches of the stage."""


def drawn(setup: Setup, client: int, stage: Stage, view: Client, purpose: str) -> Drawn:
    """The mini-batches of one client's stage, keyed by (seed, purpose, round, client, the stage's order).

    The noise is the method's, and beside it, under `augment/`, the augmentation's for each place in a batch.
    """
    seed, order = setup.seed_of(client), setup.order(client, stage, view.clock, purpose)
    keys = (view.clock.round, setup.federation.ids[client], stage.order)
    call = Calls(setup.method, view.clock, [client])
    generator = rng.torch_rng(seed, purpose + "/noise", *keys)
    noise = call("draw", setup.method.draw, generator, len(order), call.view("draw", view))
    if setup.augmentations:
        generator = rng.torch_rng(seed, purpose + "/augment", *keys)
        changes = draw_augmentation(
            setup.augmentations, generator, (len(order), setup.protocol.local.batch_size)
        )
        noise = {**noise, **trees.join(augment=changes)}
    return order, noise


@dataclass(frozen=True, eq=False)
class Setup:
    """One simulation's fixed parts. Picklable: worker processes get a copy that shares the tensors.

    `ahead` alone changes: orders drawn before they are asked for. What `order` returns is the same without it.
    """

    method: Method
    task: Task
    federation: Federation
    protocol: ProtocolConfig
    seed: int
    source: BatchSource = field(
        default=drawn
    )  # of mini-batches; a trial takes some of those that are `drawn`
    ahead: dict[tuple[object, ...], schedule.Order] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Refuse a method that selects leaves which the network lacks, or names hooks that there are not."""
        check_selectors(self.method, self.task)
        check_announced(self.method)

    @property
    def population(self) -> Population:
        """Sizes and label counts of all clients, on the CPU."""
        return self.federation.population

    @property
    def kinds(self) -> tuple[Setup, ...]:
        """The setup of each kind of client: this one, where all are alike."""
        return (self,)

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

    def learns(self, client: int, stages: Sequence[Stage]) -> bool:
        """Whether `client` takes a step that has a loss."""
        size, local = self.federation.size(client), self.protocol.local
        return any(stage.direction is None and schedule.steps(size, local, stage) > 0 for stage in stages)

    def heard(self, message: Tree) -> Tree:
        """The leaves [C, ...] of `message` that `draw` reads, on the CPU."""
        names = self.task.select(message, self.method.draws_from)
        return dict(zip(names, fetched([message[name] for name in names]), strict=True))

    def cohort(self, ids: Tensor, clock: Clock, purpose: str = "server") -> Cohort:
        """The clients `ids` [C] as server hooks see them."""
        steps = torch.tensor([self.steps(int(i)) for i in ids], dtype=torch.float64)
        generator = rng.torch_rng(self.seed, purpose, clock.round)
        return Cohort(ids, clock, self.population, steps, generator, self.everyone, self.task)

    @cached_property
    def everyone(self) -> Tensor:
        """Ids of all clients, int64 [N]."""
        return torch.arange(self.population.clients)

    def draw_cohort(self, clock: Clock) -> Tensor:
        """Ids of this round's clients, sorted, drawn without replacement; a function of (seed, round) alone."""
        count = self.federation.clients
        return schedule.cohort(self.seed, clock, count, self.protocol.cohort_size(count))

    def traffic(self, tree: Tree, ids: Tensor) -> int:
        """Bytes that cross the network when clients `ids` [C] are sent, or send, their rows of `tree`."""
        parts = self.task.among(tree, ids)
        return sum(trees.row_bytes(leaves) * len(ids[chosen]) for chosen, leaves in parts)

    def batches(self, client: int, stage: Stage, view: Client, purpose: str) -> Drawn:
        """One client's stage, `view` as it sees it, from `source`."""
        return self.source(self, client, stage, view, purpose)

    def order(self, client: int, stage: Stage, clock: Clock, purpose: str) -> schedule.Order:
        """The mini-batches of one client's stage in the round of `clock`, whatever the server sent."""
        if (key := self._drawing(client, stage, clock, purpose)) in self.ahead:
            return self.ahead.pop(key)
        keys = (clock.round, self.federation.ids[client], stage.order)
        generator = rng.torch_rng(self.seed_of(client), purpose, *keys)
        return schedule.batches(self.federation.size(client), self.protocol.local, stage, generator)

    def draw_ahead(self, ids: Tensor, clock: Clock) -> None:
        """Draw the orders of clients `ids`, who train next, at `clock`: for the host while the device works.

        A CPU is the device itself: there they are drawn when they are needed.
        """
        self.ahead.clear()
        if self.federation.device.type == "cpu" or clock.round >= clock.rounds:
            return
        for stage in Calls(self.method, clock, ids)("stages", self.method.stages, self.protocol.local, clock):
            for client in ids.tolist():
                drawing = client, stage, clock, "batches"
                self.ahead[self._drawing(*drawing)] = self.order(*drawing)

    def _drawing(self, client: int, stage: Stage, clock: Clock, purpose: str) -> tuple[object, ...]:
        return purpose, clock, client, stage.order, schedule.local_work(stage, self.protocol.local)

    @cached_property
    def scored(self) -> ScoredSets:
        """The samples that clients are scored on."""
        return ScoredSets(self.federation, self.protocol.test.weighting == "label_shares")

    @cached_property
    def augmentations(self) -> tuple[Augmentation, ...]:
        """What the protocol does to training images."""
        if self.protocol.augment:
            self.federation.require_images("protocol.augment changes")
        return augmentations(self.protocol.augment)

    def augmented(self, x: Tensor, noise: Tree) -> tuple[Tensor, Tree]:
        """(samples [..., B, C, H, W] of a local step augmented by this step's `noise`, the method's part of it)."""
        if not self.augmentations:
            return x, noise
        drawn = trees.part(noise, "augment")
        x = augment(self.augmentations, x, drawn, self.federation.black)
        return x, {name: leaf for name, leaf in noise.items() if not name.startswith("augment/")}

    def client(
        self, client: int, message: Tree, memory: Tree, clock: Clock, heard: Tree | None = None
    ) -> Client:
        """Client `client` as its hooks see it; its data are fetched when a hook asks.

        `heard`: its row of what `heard` returns, where that is not the same as in the message.
        """
        return Client(
            self.task,
            clock,
            message,
            memory,
            torch.full((), float(self.federation.size(client)), device=self.federation.device),
            torch.full((), float(self.steps(client)), device=self.federation.device),
            self.protocol.optimizer,
            heard or {},
            lambda: self.federation.all_of(client),
            lambda: Batch(*self.federation.gather(self.federation.validation_indices(client))),
        )
