"""Leaves without effect: memory that never changes or that no hook uses, uploads that no server hook reads.

Each leaf is changed in several ways in two rounds of a run. It has an effect if any result of a client or the server
then differs in a bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock, Cohort
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.trainer import Counts
from fedbench.testing.toys import ROUNDS, SIZES, Subject

EVERYONE = torch.arange(len(SIZES))
CLIENTS = (4, 3, 1)  # the first has a single mini-batch, and most leaves show there that they are of use


def dead_leaves(subject: Subject, kind: str) -> Iterator[tuple[str, str]]:
    """Yield (name, fault) of each leaf of memory and uploads without effect on toy `kind`."""
    run = subject.run(kind)
    for name, leaf in run.start.memory.items():
        if same(leaf, run.state.memory[name]):
            yield name, f"memory '{name}' is never changed by `finish`"
    moments = [*_moments(subject, kind)]
    for name in _unused(moments):
        yield name, f"memory '{name}' changes no score, no upload and no other memory that does: no hook uses it"
    for name in _unread(moments):
        yield name, f"upload '{name}' of `finish` changes nothing that `aggregate` returns"


@dataclass(frozen=True)
class _Moment:
    """The inputs of a round: the server's state, and the message and memory of each client [N, ...]."""

    setup: Setup
    clock: Clock
    server: Tree
    message: Tree
    memory: Tree

    @property
    def cohort(self) -> Cohort:
        """All clients."""
        return self.setup.cohort(EVERYONE, self.clock)


def _moments(subject: Subject, kind: str) -> Iterator[_Moment]:
    """The round after a run's last, and its first."""
    run, chosen = subject.run(kind), subject.toy(kind, rounds=ROUNDS + 1)
    for state, number in ((run.state, ROUNDS), (run.start, 0)):
        clock = Clock(number, ROUNDS + 1)
        with torch.no_grad():
            message = chosen.method.send(state.server, chosen.cohort(EVERYONE, clock))
        yield _Moment(chosen, clock, state.server, message, state.memory.take(EVERYONE))


# Memory: what a client makes of it.


class _Witness(LoopedTrainer):
    """Keeps the scores of every model that it scores."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.scores: list[Tensor] = []

    def count(self, client: int, model: Tree, score: Sequence[str], known: object = None) -> Counts:
        """As the looped engine, without the cache of equal models."""
        x, _ = self.setup.federation.gather(self.setup.federation.indices("local", client))
        self.scores.append(self.setup.method.predict(model, x, self.setup.task))
        return super().count(client, model, score)


def _unused(moments: Sequence[_Moment]) -> list[str]:
    """Names of memory on which neither a score nor an upload depends, now or through other memory in a later round."""
    used, feeds = set[str](), dict[str, set[str]]()
    for moment in moments:
        for client in CLIENTS:
            ids = torch.tensor([client])
            memory = trees.take(moment.memory, ids)
            seen, after = _of_client(moment, ids, memory)
            for name in memory.keys() - used:
                for leaf in changed(moment.memory[name]):
                    try:
                        other, kept = _of_client(moment, ids, {**memory, name: leaf[ids]})
                    except Exception:  # noqa: BLE001 - a hook that refuses the value has read it
                        used.add(name)
                        break
                    if not all(map(same, seen, other)):
                        used.add(name)
                        break
                    moved = {key for key, value in kept.items() if not same(value, after[key])}
                    feeds.setdefault(name, set()).update(moved - {name})
            while more := {name for name, fed in feeds.items() if fed & used} - used:
                used |= more
    return [name for name in moments[0].memory if name not in used]


def _of_client(moment: _Moment, ids: Tensor, memory: Tree) -> tuple[list[Tensor], Tree]:
    """(scores before and after training, and the upload; the new memory) of the client `ids` [1]."""
    trainer, message = _Witness(moment.setup), trees.take(moment.message, ids)
    trainer.evaluate(ids, message, memory, moment.clock, ("local",))
    outcome = trainer.train(ids, message, memory, moment.clock, ("local",))
    return [*trainer.scores, *outcome.uploads.values()], outcome.memory


# Uploads: what the server makes of them.


def _unread(moments: Sequence[_Moment]) -> list[str]:
    """Names of uploaded leaves that do not affect the server's state."""
    read, names = set[str](), dict[str, None]()
    for moment in moments:
        outcome = LoopedTrainer(moment.setup).train(EVERYONE, moment.message, moment.memory, moment.clock)
        names |= dict.fromkeys(outcome.uploads)
        state = _of_server(moment, outcome.uploads)
        for name in outcome.uploads.keys() - read:
            for leaf in changed(outcome.uploads[name]):
                try:
                    other = _of_server(moment, {**outcome.uploads, name: leaf})
                except Exception:  # noqa: BLE001 - a hook that refuses the value has read it
                    read.add(name)
                    break
                if not all(same(value, other[key]) for key, value in state.items()):
                    read.add(name)
                    break
    return [name for name in names if name not in read]


@torch.no_grad()
def _of_server(moment: _Moment, uploads: Tree) -> Tree:
    return moment.setup.method.aggregate(moment.server, uploads, moment.cohort)


# How a leaf is changed, and what counts as another.


def changed(leaf: Tensor) -> Iterator[Tensor]:
    """Other values of a leaf [C, ...]: near ones, far ones, none, and those of other clients."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
    if leaf.dtype == torch.bool:
        yield from (leaf ^ (noise > level) for level in (0.0, 1.0, -10.0))
    elif leaf.is_floating_point():
        noise = noise.to(leaf.dtype)
        yield from (leaf + 0.1 * noise, 3 * leaf + noise, (leaf + noise).abs(), torch.zeros_like(leaf))
    else:
        yield from (leaf + 1, (leaf - 1).clamp(min=0))
    yield leaf.roll(1, 0)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two values are equal to the bit; nan equals nan."""
    return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
