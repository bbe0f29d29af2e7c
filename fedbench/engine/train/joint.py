"""Several setups of different seeds as one, and what their simulations ask of an engine as one request.

The clients of all simulations train in one chunk, each on its own data with its own randomness; servers stay apart. The
results equal those of separate runs up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.core.trees import Tree
from fedbench.data.federation import Federation
from fedbench.engine import schedule
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup
from fedbench.engine.train.trainer import Outcome, Trainer


@dataclass(frozen=True, eq=False)
class JointSetup(Setup):
    """The clients of several setups, those of the first before those of the second, and so on."""

    seeds: tuple[int, ...] = ()  # of each setup

    @classmethod
    def of(cls, setups: Sequence[Setup]) -> JointSetup:
        """Of setups that differ in their seeds and partitions only."""
        first = setups[0]
        federation = Federation.joined([each.federation for each in setups])
        seeds = tuple(each.seed for each in setups)
        return cls(first.method, first.task, federation, first.protocol, first.seed, seeds=seeds)

    @property
    def clients(self) -> int:
        """Of each run."""
        return self.federation.clients // len(self.seeds)

    @property
    def at_once(self) -> int:
        """Clients of a round of all runs."""
        return len(self.seeds) * self.protocol.cohort_size(self.clients)

    def draw_cohort(self, clock: Clock) -> Tensor:
        """Of each run its own."""
        size = self.protocol.cohort_size(self.clients)
        cohorts = [schedule.cohort(seed, clock, self.clients, size) for seed in self.seeds]
        return torch.cat([ids + place * self.clients for place, ids in enumerate(cohorts)])

    def seed_of(self, client: int) -> int:
        """The seed of the client's own run."""
        return self.seeds[client // self.clients]


@dataclass(frozen=True)
class Request:
    """The arguments of Trainer.train or, if it is not `training`, of Trainer.evaluate."""

    training: bool
    ids: Tensor
    message: Tree
    memory: Tree
    clock: Clock
    score: tuple[str, ...] = ()

    def served_by(self, trainer: Trainer) -> Outcome:
        """What `trainer` makes of it; of scoring only the counts.

        Raises:
            Diverged: see Trainer.train.
        """
        arguments = (self.ids, self.message, self.memory, self.clock, self.score)
        if self.training:
            return trainer.train(*arguments)
        return Outcome({}, {}, torch.zeros(len(self.ids)), trainer.evaluate(*arguments))

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for requests that can be served as one."""
        shapes = [
            tuple((name, leaf.shape[1:], leaf.dtype) for name, leaf in sorted(tree.items()))
            for tree in (self.message, self.memory)
        ]
        return (self.training, self.clock, self.score, *shapes)


def merged(requests: Sequence[Request], first: Sequence[int]) -> Request:
    """Requests of one kind as one; `first`: the place of each one's client 0 in the joint setup."""
    ids = torch.cat([request.ids + place for request, place in zip(requests, first, strict=True)])
    message, memory = (
        {name: torch.cat([tree[name] for tree in part]) for name in part[0]}
        for part in ([r.message for r in requests], [r.memory for r in requests])
    )
    one = requests[0]
    return Request(one.training, ids, message, memory, one.clock, one.score)


def split(outcome: Outcome, sizes: Sequence[int]) -> list[Outcome]:
    """The outcome of a merged request as one for each of the requests, of `sizes` clients."""

    def cut(leaf: Tensor) -> tuple[Tensor, ...]:
        return torch.split(leaf, list(sizes))

    def trees_of(tree: Tree) -> list[Tree]:
        pieces = {name: cut(leaf) for name, leaf in tree.items()}
        return [{name: piece[k] for name, piece in pieces.items()} for k in range(len(sizes))]

    counts = {name: (cut(correct), cut(total)) for name, (correct, total) in outcome.counts.items()}
    return [
        Outcome(
            upload, memory, loss, {name: (correct[k], total[k]) for name, (correct, total) in counts.items()}
        )
        for k, (upload, memory, loss) in enumerate(
            zip(trees_of(outcome.uploads), trees_of(outcome.memory), cut(outcome.loss), strict=True)
        )
    ]
