"""Several simulations of one configuration, of different seeds, as rows of one stacked program.

The clients of all simulations train in one chunk, each on its own data with its own randomness; servers stay apart. The
results equal those of separate runs up to rounding.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from fedbench.core.errors import FedbenchError
from fedbench.core.trees import Tree
from fedbench.data.federation import Federation
from fedbench.engine.request import Answer, Asking, Request
from fedbench.engine.setup import Setup
from fedbench.engine.train.trainer import Outcome, Trainer

ResultT = TypeVar("ResultT")
log = logging.getLogger("fedbench")


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
        return cls(first.method, first.task, federation, first.protocol, first.seed, seeds)

    @property
    def clients(self) -> int:
        """Of each run."""
        return self.federation.clients // len(self.seeds)

    @property
    def at_once(self) -> int:
        """Clients of a round of all runs."""
        return len(self.seeds) * self.protocol.cohort_size(self.clients)

    def seed_of(self, client: int) -> int:
        """The seed of the client's own run."""
        return self.seeds[client // self.clients]


@dataclass(frozen=True)
class Joint:
    """An engine on a joint setup, and the first client there of each simulation that it serves."""

    trainer: Trainer
    first: dict[int, int]


def serve_together(
    askings: Sequence[Asking[ResultT]], alone: Sequence[Callable[[], Trainer]], joint: Callable[[], Joint]
) -> list[ResultT | Exception]:
    """Run all to their ends, alike requests as one; the result of each, or the error that ended it.

    Requests are alike that ask for the same at the same round. The one furthest behind goes first, so simulations that
    began apart meet. A joint request that fails is served again one by one, so that an error ends only its own run.
    `joint` is called once, when every simulation has asked for the first time. However this ends, all are closed.
    """
    serving = _Serving(askings, alone)
    engine = functools.cache(functools.partial(_attempted, joint))
    with contextlib.ExitStack() as stack:
        for asking in askings:
            stack.callback(asking.close)
        for index in range(len(askings)):
            serving.resume(index, None)
        while serving.waiting:
            group = _furthest_behind(serving.waiting)
            answers = _joint(group, engine()) if len(group) > 1 else None
            for index in group:
                if answers is not None:
                    serving.resume(index, answers[index])
                else:
                    serving.serve_alone(index)
    return [serving.results[index] for index in range(len(askings))]


class _Serving(Generic[ResultT]):
    """Where each simulation stands: what it waits for, or how it ended."""

    def __init__(self, askings: Sequence[Asking[ResultT]], alone: Sequence[Callable[[], Trainer]]) -> None:
        self.askings = askings
        self.alone = alone
        self.waiting: dict[int, Request] = {}
        self.results: dict[int, ResultT | Exception] = {}

    def resume(self, index: int, answer: Answer | None) -> None:
        """Let a simulation go on with the `answer` to its request, until its next one; None: until its first."""
        self.waiting.pop(index, None)
        try:
            asking = self.askings[index]
            self.waiting[index] = next(asking) if answer is None else asking.send(answer)
        except StopIteration as done:
            self.results[index] = done.value
        except Exception as error:  # noqa: BLE001 - returned to the caller, who knows what the others did
            self.results[index] = error

    def serve_alone(self, index: int) -> None:
        """Answer a simulation's request with its own engine; an error ends it."""
        begin = time.perf_counter()
        try:
            outcome = self.waiting[index].serve(self.alone[index]())
        except Exception as error:  # noqa: BLE001
            del self.waiting[index]
            self.askings[index].close()
            self.results[index] = error
        else:
            self.resume(index, Answer(outcome, time.perf_counter() - begin))


def _attempted(joint: Callable[[], Joint]) -> Joint | None:
    try:
        return joint()
    except Exception as error:  # noqa: BLE001 - each run has an engine of its own
        log.warning("the runs train one by one, an engine for all of them failed: %s", error)
        return None


def _furthest_behind(waiting: dict[int, Request]) -> dict[int, Request]:
    """The requests alike to that of the earliest round; a round is scored before the next one trains."""
    first = min(waiting.values(), key=lambda request: (request.clock.round, request.training))
    return {index: request for index, request in waiting.items() if _kind(request) == _kind(first)}


def _kind(request: Request) -> tuple[object, ...]:
    shapes = [
        tuple((name, leaf.shape[1:], leaf.dtype) for name, leaf in sorted(tree.items()))
        for tree in (request.message, request.memory)
    ]
    return (request.training, request.clock, tuple(request.score), *shapes)


def _joint(group: dict[int, Request], joint: Joint | None) -> dict[int, Answer] | None:
    """An answer to each request; None if they cannot be served as one."""
    if joint is None:
        return None
    begin = time.perf_counter()
    try:
        outcome = _merged(group, joint.first).serve(joint.trainer)
    except FedbenchError:
        return None
    except Exception as error:  # noqa: BLE001 - one by one, it ends only the runs that raise it again
        log.warning("a step of %d runs as one failed, each takes it alone: %s", len(group), error)
        return None
    seconds = (time.perf_counter() - begin) / len(group)
    sizes = [len(request.ids) for request in group.values()]
    parts = _split(outcome, sizes)
    return {index: Answer(part, seconds) for index, part in zip(group, parts, strict=True)}


def _merged(group: dict[int, Request], first_client: dict[int, int]) -> Request:
    requests = list(group.values())
    ids = torch.cat([request.ids + first_client[index] for index, request in group.items()])
    message, memory = (
        {name: torch.cat([tree[name] for tree in part]) for name in part[0]}
        for part in ([r.message for r in requests], [r.memory for r in requests])
    )
    first = requests[0]
    return Request(first.training, ids, message, memory, first.clock, first.score)


def _split(outcome: Outcome, sizes: Sequence[int]) -> list[Outcome]:
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
