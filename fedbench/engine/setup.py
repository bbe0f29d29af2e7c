"""The input of every engine: method, network, data, local work, seed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.config.groups import registry
from fedbench.config.schema import ProtocolConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch, Population
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Augmentation, Federation, augment, augmentations, draw_augmentation
from fedbench.data.partition import Partition
from fedbench.engine import schedule
from fedbench.engine.contract import Client, Clock, Cohort, Stage
from fedbench.engine.hooks import HookCaller, check_announced, check_selectors
from fedbench.engine.method import Method
from fedbench.engine.optim import KEPT, round_factors
from fedbench.models.modalities import JointTask
from fedbench.models.task import Model, Task, check_input


@dataclass(frozen=True, eq=False)
class ScoredSets:
    """The test sets that count for each client.

    If a client's label shares weight the global test set (`by_class`), classes of weight zero are left out.
    """

    federation: Federation
    by_class: bool

    @cached_property
    def parts(self) -> tuple[Tensor, ...]:
        """Indices of the global test set, in the parts on which a client is scored or not: classes, or the whole."""
        tests = self.federation.global_test
        if not self.by_class:
            return (tests,)
        labels = self.federation.y[tests]
        return tuple(tests[labels == label] for label in range(self.federation.classes))

    def parts_of(self, client: int) -> list[int]:
        """Places in `parts` of the parts that a client is scored on."""
        return self.classes(client).nonzero().flatten().tolist() if self.by_class else [0]

    def classes(self, client: int) -> Tensor:
        """Classes of the global test set that a client is scored on, bool [K]."""
        counts = self.federation.population.label_counts[client]
        return counts > 0 if self.by_class else torch.ones_like(counts, dtype=torch.bool)

    def indices(self, name: str, client: int) -> Tensor:
        """Indices of the samples of set `name` (local, val, global) that a client is scored on."""
        if name != "global":
            return self.federation.indices(name, client)
        parts = [self.parts[place] for place in self.parts_of(client)]
        return torch.cat(parts) if parts else self.federation.global_test[:0]

    def most(self, name: str) -> int:
        """The largest number of samples of set `name` on a client."""
        sizes = self.federation.sets[name].sizes if name != "global" else [len(self.federation.global_test)]
        return int(max(sizes))

    def labels(self, name: str, client: int) -> np.ndarray[Any, Any]:
        """Labels of the samples of set `name` that a client is scored on, int64; a quantity in the data's own units."""
        found: np.ndarray[Any, Any] = self._labels[self.indices(name, client).cpu().numpy()]
        return found

    @cached_property
    def _labels(self) -> np.ndarray[Any, Any]:
        answers = self.federation.answers.cpu().numpy()
        return answers if self.federation.target is None else self.federation.in_units(answers)


Drawn = tuple[schedule.Order, Tree]
"""(a client's mini-batches, per-step noise leaves [S, ...])."""

BatchSource = Callable[["Setup", int, Stage, Client, str], Drawn]
"""(setup, client, stage, the client as it sees itself, purpose) -> all mini-batches of the stage."""


def drawn(setup: Setup, client: int, stage: Stage, view: Client, purpose: str) -> Drawn:
    """The mini-batches of one client's stage, keyed by (seed, purpose, round, client, the stage's order).

    The noise is the method's, and beside it, under `augment/`, the augmentation's for each place in a batch.
    """
    order = setup.order(client, stage, view.clock, purpose)
    keys = (view.clock.round, setup.federation.ids[client], stage.order)
    call = HookCaller(setup.method, view.clock, [client])
    generator = rng.torch_rng(setup.seed, purpose + "/noise", *keys)
    noise = call("draw", setup.method.draw, generator, len(order), call.client_view("draw", view))
    if setup.augmentations:
        generator = rng.torch_rng(setup.seed, purpose + "/augment", *keys)
        changes = draw_augmentation(setup.augmentations, generator, (len(order), setup.protocol.local.batch_size))
        noise = {**noise, **trees.join(augment=changes)}
    return order, noise


@dataclass(frozen=True, eq=False)
class Setup:
    """The fixed parts of a simulation: method, task, federation, protocol, seed. Worker processes share its tensors.

    Clients of several modalities have their own networks, views of the data and batch shapes. `parts` holds one setup
    for each modality. It numbers all clients and serves only its `members`. Trees of a server and cohort hold the
    leaves of all modalities. A row is nan where the client does not have the leaf, so a private leaf that is sent by
    mistake spoils every later number. Only a client's own leaves are sent and counted.
    """

    method: Method
    task: Task
    federation: Federation
    protocol: ProtocolConfig
    seed: int
    source: BatchSource = field(default=drawn)  # of mini-batches; a trial takes some of those that are `drawn`
    parts: tuple[Setup, ...] = ()  # the setup of each modality, where there are several
    members: int = 0  # clients of this part's modality; 0: all clients

    def __post_init__(self) -> None:
        """Refuse a method that selects leaves which the network lacks, or names hooks that do not exist.

        Raises:
            ConfigError: also if the method is unfit for the target, or for clients whose networks differ.
        """
        if not self.members:  # the method was checked with all modalities
            check_selectors(self.method, self.task)
            check_announced(self.method)
            check_fits(self.method, self.task.modalities, regression=self.task.regresses)

    @property
    def population(self) -> Population:
        """Sizes and label counts of all clients, on the CPU."""
        return self.federation.population

    @property
    def modalities(self) -> tuple[Setup, ...]:
        """The setup of each modality, or this one if there is one modality."""
        return self.parts or (self,)

    def modality_of(self, client: int) -> Setup:
        """The setup of the modality of `client`."""
        return self.modalities[int(self.task.modality_of(torch.tensor([client])))]

    @property
    def seen(self) -> Setup:
        """The setup of the clients that rounds may meet: all but the last `protocol.unseen`.

        Raises:
            ConfigError: there is none, or none of a modality.
        """
        if not self.protocol.unseen:
            return self
        count = self.protocol.seen(self.federation.clients)
        federations = [modality.federation.first(count) for modality in self.modalities]
        if isinstance(self.task, JointTask):
            return joined(self.method, self.task.first(count), federations, self.protocol, self.seed)
        return replace(self, federation=federations[0])

    @property
    def at_once(self) -> int:
        """The largest number of clients of a round."""
        cohort = self.protocol.cohort_size(self.federation.clients)
        return min(self.members, cohort) if self.members else cohort

    def lr_of(self, client: int, clock: Clock) -> float:
        """The protocol's learning rate for `client` at `clock`: the mean over its plain steps of the round."""
        rate, schedule = self.protocol.optimizer.lr, self.protocol.optimizer.schedule
        if not schedule.moves:
            return rate
        done = max(1, self.steps(client, clock))
        return rate * float(round_factors(schedule, clock, max(1, self.steps(client)))[:done].mean())

    def scheduled_rates(self, client: int, stage: Stage, clock: Clock, purpose: str) -> Tree:
        """Learning rates at each local step of a stage, float64 [S]: `own` of its optimiser, `plain` of `client.lr`.

        It is {} without a schedule. A schedule covers rounds, so fine-tuning before scoring has full rates.
        """
        config = stage.optimizer_or(self.protocol.optimizer)
        if not config.schedule.moves:
            return {}
        steps = schedule.steps(self.federation.size(client), self.protocol.local, stage)
        times = round_factors(config.schedule, clock, steps) if purpose == "batches" else torch.ones(steps).double()
        return {"own": config.lr * times, "plain": self.protocol.optimizer.lr * times}

    def steps(self, client: int, clock: Clock | None = None) -> int:
        """Local steps of the protocol's plain local work on `client`; at `clock` the number done in that round."""
        count = schedule.steps(self.federation.size(client), self.protocol.local)
        return count if clock is None else schedule.part_of(count, self.falls_short(client, clock)[0])

    def falls_short(self, client: int, clock: Clock) -> tuple[float, bool]:
        """Return (share of its steps that `client` does in the round of `clock`, whether its upload arrives)."""
        return schedule.fallen_short(self.protocol.work, self.seed, clock.round, self.federation.ids[client])

    def learns(self, client: int, stages: Sequence[Stage]) -> bool:
        """Whether `client` takes a step that has a loss."""
        size, local = self.federation.size(client), self.protocol.local
        return any(stage.direction is None and schedule.steps(size, local, stage) > 0 for stage in stages)

    def cohort(self, ids: Tensor, clock: Clock, purpose: str = "server") -> Cohort:
        """The clients `ids` [C] as server hooks see them."""
        steps = torch.tensor([self.steps(int(i), clock) for i in ids], dtype=torch.float64)
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

    def order(self, client: int, stage: Stage, clock: Clock, purpose: str) -> schedule.Order:
        """The mini-batches of one client's stage in the round of `clock`, which do not depend on the message."""
        keys = (clock.round, self.federation.ids[client], stage.order)
        generator = rng.torch_rng(self.seed, purpose, *keys)
        share = self.falls_short(client, clock)[0] if purpose == "batches" else 1.0
        return schedule.batches(self.federation.size(client), self.protocol.local, stage, generator, share)

    @property
    def keeps_scores(self) -> bool:
        """Whether a metric needs the scores of each sample."""
        return bool(self.protocol.of_scores)

    @cached_property
    def scored(self) -> ScoredSets:
        """The samples that clients are scored on."""
        return ScoredSets(self.federation, self.protocol.test.weighting == "label_shares")

    @cached_property
    def augmentations(self) -> tuple[Augmentation, ...]:
        """The protocol's transforms of training images."""
        if self.protocol.augment:
            self.federation.require_images("protocol.augment changes")
        return augmentations(self.protocol.augment)

    def augmented(self, x: Tensor, noise: Tree) -> tuple[Tensor, Tree]:
        """Return (samples [..., B, C, H, W] of a local step augmented by its `noise`, the method's part of it)."""
        if not self.augmentations:
            return x, noise
        drawn = trees.part(noise, "augment")
        x = augment(self.augmentations, x, drawn, self.federation.black)
        return x, {name: leaf for name, leaf in noise.items() if not name.startswith("augment/")}

    def client(
        self, client: int, message: Tree, memory: Tree, clock: Clock, on_host: trees.OnHost | None = None
    ) -> Client:
        """Client `client` as its hooks see it; its data are gathered when a hook asks.

        `on_host`: the message on the CPU, for `draw`.
        """
        if self.parts:
            modality = self.modality_of(client)
            return modality.client(client, modality.task.own(message), modality.task.own(memory), clock, on_host)
        return Client(
            self.task,
            clock,
            message,
            trees.without(memory, KEPT),
            torch.full((), float(self.federation.size(client)), device=self.federation.device),
            torch.full((), float(self.steps(client, clock)), device=self.federation.device),
            self.protocol.optimizer,
            self.lr_of(client, clock),
            on_host,
            lambda: self.federation.all_of(client),
            lambda: Batch(*self.federation.gather(self.federation.validation_indices(client))),
            trees.under(memory, KEPT),
        )


def check_fits(method: Method, networks: Collection[Model | Task], *, regression: bool) -> None:
    """Refuse a method that cannot serve clients with these networks, or cannot predict a quantity.

    Raises:
        ConfigError: with the reason, and the methods that can.
    """
    views = len({bool(each.tokens) for each in networks})
    there = {"regression": regression, "modalities": len(networks) > 1, "views": views > 1}
    asked = [name for name, is_there in there.items() if is_there]
    if not (lacking := [name for name in asked if name in method.unfit]):
        return
    methods = registry("method")
    able = [name for name in methods if not {*asked} & {*methods.build({"name": name}).unfit}]
    reason, choose = method.unfit[lacking[0]], f"choose one of {', '.join(able)}"
    if lacking[0] == "regression":
        raise ConfigError(f"{type(method).__name__} {reason}, and dataset.task=regression has no classes; {choose}")
    if lacking[0] == "views":
        raise ConfigError(f"{type(method).__name__} {reason}, but clients see different parts of the samples; {choose}")
    raise ConfigError(
        f"{type(method).__name__} {reason}, but clients have {len(networks)} different networks; {choose}, or "
        "method=per_kind method/base=NAME, which runs any method without a preparation among the clients of each"
    )


def assemble(
    method: Method,
    model: Model,
    dataset: Dataset,
    partition: Partition,
    protocol: ProtocolConfig,
    seed: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    bf16: bool = False,
) -> Setup:
    """The setup of `partition`'s clients with the networks of `model`, trained in bfloat16 if `bf16`.

    Raises:
        ConfigError: a network does not fit the data, a modality has no client, the method does not fit the modalities.
    """
    partition, modality = model.dealt(partition)
    networks = model.networks
    views = [each.view(dataset) for each in networks.values()]
    one_each = {
        id(view): Federation(view, partition, device, dtype) for view in {id(view): view for view in views}.values()
    }
    federations = [one_each[id(view)] for view in views]
    protocol.cohort_size(protocol.seen(len(partition)))
    tasks = [
        each.task(federation.shape, federation.classes, bf16=bf16)
        for each, federation in zip(networks.values(), federations, strict=True)
    ]
    batch, whole = protocol.local.batch_size, protocol.local.drop_last
    for place, (task, federation) in enumerate(zip(tasks, federations, strict=True)):
        sizes = [int(n) for n in federation.population.sizes[torch.from_numpy(modality == place)]]
        shortest = batch if whole else min(n % batch or batch for n in sizes)
        schedule.batches_an_epoch(min(sizes), protocol.local)  # which refuses a client of no whole batch
        check_input(task, shortest, shortest < batch <= min(sizes))
    if len(tasks) == 1:
        return Setup(method, tasks[0], federations[0], protocol, seed)
    return joined(method, JointTask(tasks, list(networks), torch.from_numpy(modality)), federations, protocol, seed)


def joined(
    method: Method, task: JointTask, federations: Sequence[Federation], protocol: ProtocolConfig, seed: int
) -> Setup:
    """The setup of the clients of `task`; each of `federations` has their samples in one modality's view.

    Raises:
        ConfigError: the clients of a modality are all unseen.
    """
    members: Tensor = torch.bincount(
        task.modality_of(torch.arange(federations[0].clients)), minlength=len(task.modalities)
    )
    if not members.all():
        raise ConfigError(f"protocol.unseen={protocol.unseen} holds out all clients of one modality; lower it")
    parts = tuple(
        Setup(method, own, federation, protocol, seed, members=int(count))
        for own, federation, count in zip(task.modalities, federations, members, strict=True)
    )
    return Setup(method, task, federations[0], protocol, seed, parts=parts)


# What a trial of an engine trains before the run has begun: clients as they would stand in a first round.


@torch.no_grad()
def first_round_inputs(setup: Setup, ids: Tensor, clock: Clock) -> tuple[Tree, Tree]:
    """Return (message, memory) of clients `ids` [C] in a first round without any preparation."""
    server, memory = setup.method.init(setup.task, setup.population, rng.torch_rng(setup.seed, "init"))
    server, memory = (setup.federation.placed(tree) for tree in (server, trees.take(memory, ids)))
    return setup.method.send(server, setup.cohort(ids, clock)), trees.clone(memory)
