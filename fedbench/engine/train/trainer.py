"""What an engine does with a cohort: train it, score it. Looped, stacked and worker engines are Engines."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbench.core.errors import Diverged
from fedbench.core.transfer import fetched
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.hooks import Calls
from fedbench.engine.setup import Setup

# (correct, total) by true class, each float64 [K], or [C, K] of several clients
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
            Diverged: a client's loss or upload is not finite.
        """

    @abstractmethod
    def evaluate(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]
    ) -> Counts:
        """Scores of the personal models of clients `ids` [C] as received."""

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
        return on_host(self.launch_scoring(ids, message, memory, clock, score))


def settled(parts: Sequence[tuple[Setup, Tensor, Outcome]], clock: Clock) -> list[Outcome]:
    """What clients `ids` [C] of each setup came to, and send: the host waits here for the device, once for all parts.

    Raises:
        Diverged: a client's loss or upload is not finite.
    """
    flat = [[_norms(each.uploads), each.loss, *_flat(each.counts)] for _, _, each in parts]
    home = iter(fetched([leaf for part in flat for leaf in part]))
    found = []
    for (setup, ids, outcome), part in zip(parts, flat, strict=True):
        norms, loss, *counts = [next(home) for _ in part]
        stages = setup.method.stages(setup.protocol.local, clock)
        learned = torch.tensor([setup.learns(client, stages) for client in ids.tolist()])
        if not bool(norms.isfinite().all()) or not bool(loss[learned].isfinite().all()):
            check_finite(clock, ids.tolist(), loss.masked_fill(~learned, 0), outcome.uploads)
        uploads = compressed(setup, ids, outcome.uploads, clock)
        found.append(Outcome(uploads, outcome.memory, loss, _named(outcome.counts, counts)))
    return found


@torch.no_grad()
def compressed(setup: Setup, ids: Tensor, uploads: Tree, clock: Clock) -> Tree:
    """What clients `ids` send of their `uploads` [C, ...]."""
    if not uploads:
        return uploads
    compress = setup.method.compress
    found: Tree = Calls(setup.method, clock, ids)("compress", torch.vmap(compress), uploads)
    return found


def _norms(uploads: Tree) -> Tensor:
    floats = [leaf for leaf in uploads.values() if leaf.is_floating_point()]
    return torch.stack(torch._foreach_norm(floats)) if floats else torch.zeros(1)


def check_finite(clock: Clock, ids: Sequence[int], loss: Tensor, uploads: Tree) -> None:
    """Raise Diverged for the first of the clients `ids` whose `loss` [C] or whose row of `uploads` is not finite."""
    for row, client in enumerate(ids):
        bad = [name for name, leaf in uploads.items() if not bool(leaf[row].isfinite().all())]
        if bad or not bool(loss[row].isfinite()):
            what = f"leaf '{bad[0]}'" if bad else "the training loss"
            raise Diverged(
                f"training diverged in round {clock.round + 1} on client {client}: {what} is not finite; "
                "lower protocol.optimizer.lr or set protocol.optimizer.clip"
            )


def on_host(counts: Counts) -> Counts:
    """`counts` on the CPU, in one copy."""
    return _named(counts, fetched(_flat(counts)))


def _flat(counts: Counts) -> list[Tensor]:
    return [part for pair in counts.values() for part in pair]


def _named(like: Counts, flat: Sequence[Tensor]) -> Counts:
    return {name: (flat[2 * place], flat[2 * place + 1]) for place, name in enumerate(like)}


def count_correct(scores: Tensor, labels: Tensor, classes: int) -> Counted:
    """(correct, total) per true class, float64 [K], of scores [B, K] against labels, int64 [B]."""
    kinds = 2 * labels + (scores.argmax(dim=-1) == labels)
    counts = torch.zeros(2 * classes, dtype=torch.float64, device=labels.device)
    # Not bincount, for which a GPU makes the host wait.
    counts = counts.index_add_(0, kinds, torch.ones_like(kinds, dtype=torch.float64)).view(classes, 2)
    return counts[:, 1], counts.sum(1)
