"""What an engine does with a cohort: train it, score it. Looped, stacked and worker engines are Engines."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbench.core.transfer import fetched
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.hooks import Calls
from fedbench.engine.setup import Setup
from fedbench.engine.train import divergence

# (correct, total) by true class, each float64 [K], or [C, K] of several clients; nan where scores are not finite
Counted = tuple[Tensor, Tensor]
Counts = dict[str, Counted]  # by test set


@dataclass(frozen=True)
class Outcome:
    """A trained cohort: first axis C everywhere. Unless it is settled, `uploads` are what `finish` returned."""

    uploads: Tree
    memory: Tree
    loss: Tensor  # float64 [C], mean training loss over the local steps (nan where no step had a loss)
    counts: Counts = field(default_factory=dict)  # scores after local training, of the sets asked for


class Trainer(ABC):
    """Trains and scores clients of one simulation."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @abstractmethod
    def train(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """Local work of clients `ids` [C] given messages and memories [C, ...], with gradients on or off.

        `score` names the sets (local, val, global) on which each client's trained model is scored.

        Raises:
            Diverged: a client's loss, upload, memory or scores are not finite.
        """

    @abstractmethod
    def evaluate(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]
    ) -> Counts:
        """Scores of the personal models of clients `ids` [C] as received.

        Raises:
            Diverged: a model's scores are not finite.
        """

    def clock(self) -> float:
        """Seconds on the clock that the simulation's phases are timed by."""
        return time.perf_counter()

    def close(self) -> None:
        """Release processes and buffers."""
        return


class Engine(Trainer):
    """A trainer of clients of one kind, which sets the device to all work, draws for the next round, and then waits."""

    @abstractmethod
    def launch(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """`train`, not settled: the host has waited for nothing."""

    @abstractmethod
    def launch_scoring(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]
    ) -> Counts:
        """`evaluate`, with counts that may still be on the device."""

    def train(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """See Trainer.train."""
        launched, after = self.launch(ids, message, memory, clock, score), clock.next
        self.setup.draw_ahead(self.setup.draw_cohort(after), after)
        return settled([(self.setup, ids, launched)], clock)[0]

    def evaluate(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]
    ) -> Counts:
        """See Trainer.evaluate."""
        return on_host(self.launch_scoring(ids, message, memory, clock, score), ids, clock)


def settled(parts: Sequence[tuple[Setup, Tensor, Outcome]], clock: Clock) -> list[Outcome]:
    """What clients `ids` [C] of each setup came to, and send: the host waits here for the device, once for all parts.

    Raises:
        Diverged: a client's loss, upload, memory or scores are not finite.
    """
    flat = [
        [divergence.norms(each.uploads, each.memory), each.loss, *_flat(each.counts)] for _, _, each in parts
    ]
    home = iter(fetched([leaf for part in flat for leaf in part]))
    found = []
    for (setup, ids, outcome), part in zip(parts, flat, strict=True):
        norms, loss, *scored = [next(home) for _ in part]
        counts = _named(outcome.counts, scored)
        stages = setup.method.stages(setup.protocol.local, clock)
        learned = torch.tensor([setup.learns(client, stages) for client in ids.tolist()])
        if not bool(norms.isfinite().all()) or not bool(loss[learned].isfinite().all()):
            losses = loss.masked_fill(~learned, 0)
            divergence.check_finite(clock.round + 1, ids, losses, outcome.uploads, outcome.memory)
        divergence.check_scores(clock.round + 1, ids, [total for _, total in counts.values()])
        uploads = compressed(setup, ids, outcome.uploads, clock)
        found.append(Outcome(uploads, outcome.memory, loss, counts))
    return found


@torch.no_grad()
def compressed(setup: Setup, ids: Tensor, uploads: Tree, clock: Clock) -> Tree:
    """What clients `ids` send of their `uploads` [C, ...]."""
    if not uploads:
        return uploads
    compress = setup.method.compress
    found: Tree = Calls(setup.method, clock, ids)("compress", torch.vmap(compress), uploads)
    return found


def on_host(counts: Counts, ids: Tensor, clock: Clock) -> Counts:
    """`counts` of clients `ids` [C], scored at `clock`, on the CPU, in one copy.

    Raises:
        Diverged: a model's scores are not finite.
    """
    found = _named(counts, fetched(_flat(counts)))
    divergence.check_scores(clock.round, ids, [total for _, total in found.values()])
    return found


def _flat(counts: Counts) -> list[Tensor]:
    return [part for pair in counts.values() for part in pair]


def _named(like: Counts, flat: Sequence[Tensor]) -> Counts:
    return {name: (flat[2 * place], flat[2 * place + 1]) for place, name in enumerate(like)}


def count_correct(scores: Tensor, labels: Tensor, classes: int) -> Counted:
    """(correct, total) per true class, float64 [K], of scores [B, K] against labels, int64 [B].

    The total is nan in a class of which a sample's scores are not finite.
    """
    kinds = 2 * labels + (scores.argmax(dim=-1) == labels)
    counts = torch.zeros(2 * classes, dtype=torch.float64, device=labels.device)
    # Not bincount, for which a GPU makes the host wait.
    counts = counts.index_add_(0, kinds, divergence.samples(scores)).view(classes, 2)
    return counts[:, 1], counts.sum(1)
