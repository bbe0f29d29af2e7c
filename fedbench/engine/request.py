"""What a simulation asks of an engine.

It asks where it could call, so that one engine can serve several simulations at once (fedbench.engine.train.joint).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.train.trainer import Outcome, Trainer


@dataclass(frozen=True)
class Request:
    """Train clients `ids` [C], or score them as received: the arguments of Trainer.train and Trainer.evaluate."""

    training: bool
    ids: Tensor
    message: Tree
    memory: Tree
    clock: Clock
    score: Sequence[str] = ()

    def serve(self, trainer: Trainer) -> Outcome:
        """What `trainer` makes of it; of scoring only the counts.

        Raises:
            Diverged: see Trainer.train.
        """
        arguments = (self.ids, self.message, self.memory, self.clock, self.score)
        if self.training:
            with torch.enable_grad():
                return trainer.train(*arguments)
        return Outcome({}, {}, torch.zeros(len(self.ids)), trainer.evaluate(*arguments))


@dataclass(frozen=True)
class Answer:
    """The outcome of a request, and the seconds it took."""

    outcome: Outcome
    seconds: float


ResultT = TypeVar("ResultT")
Asking = Generator[Request, Answer, ResultT]


def serve(asking: Asking[ResultT], trainer: Callable[[], Trainer]) -> ResultT:
    """Run `asking` to its end; `trainer` gives the engine that answers its requests."""
    try:
        request = next(asking)
        while True:
            begin = time.perf_counter()
            outcome = request.serve(trainer())
            request = asking.send(Answer(outcome, time.perf_counter() - begin))
    except StopIteration as done:
        result: ResultT = done.value
        return result
    finally:
        asking.close()
