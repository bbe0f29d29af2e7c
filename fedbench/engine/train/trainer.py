"""What an engine does with a cohort: train it, score it. Looped, stacked and worker engines are Trainers."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbench.core.errors import Diverged
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup

# (correct, total) by true class, each float64 [K], or [C, K] of several clients
Counted = tuple[Tensor, Tensor]
Counts = dict[str, Counted]  # by test set


@dataclass(frozen=True)
class Outcome:
    """A trained cohort: first axis C everywhere."""

    uploads: Tree
    memory: Tree
    loss: Tensor  # float32 [C], mean training loss over the local steps (nan where no step had a loss)
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


def check_finite(clock: Clock, client: int, loss: float, upload: Tree) -> None:
    """Raise Diverged if training of `client` produced a value that is not finite.

    `loss` is the mean over the steps that had one; a caller whose stages have none passes 0.
    """
    floats = {name: leaf for name, leaf in upload.items() if leaf.is_floating_point()}
    norms = torch.stack(torch._foreach_norm(list(floats.values()))) if floats else torch.zeros(1)
    if not math.isfinite(loss) or not math.isfinite(float(norms.sum())):
        bad = [name for name, leaf in floats.items() if not bool(torch.isfinite(leaf).all())]
        what = f"leaf '{bad[0]}'" if bad else "the training loss"
        raise Diverged(
            f"training diverged in round {clock.round + 1} on client {client}: {what} is not finite; "
            "lower protocol.optimizer.lr or set protocol.optimizer.clip"
        )


def count_correct(scores: Tensor, labels: Tensor, classes: int) -> Counted:
    """(correct, total) per true class, float64 [K], of scores [B, K] against labels, int64 [B]."""
    correct = scores.argmax(dim=-1) == labels
    counts = torch.bincount(2 * labels + correct, minlength=2 * classes).view(classes, 2)
    return counts[:, 1].double(), counts.sum(1).double()
