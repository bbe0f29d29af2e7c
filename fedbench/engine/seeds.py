"""Join setups of different seeds or learning rates into one, and their simulations' requests to an engine into one.

The clients of all simulations train in one chunk, each with its own data and random numbers. Servers stay separate.
Results equal those of separate runs up to rounding.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from fedbench.core.errors import FedbenchError
from fedbench.core.signals import Stopped
from fedbench.core.trees import Tree
from fedbench.data.federation import Federation
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup
from fedbench.engine.trainer import Counts, Outcome, Trainer


def joint_setup(setups: Sequence[Setup]) -> Setup:
    """Return one setup of the clients of several setups, in the setups' order.

    The setups have one modality and differ only in their seeds, partitions and learning rates.
    """
    rates = tuple(each.protocol.optimizer.lr for each in setups)
    return replace(
        setups[0],
        federation=Federation.joined([each.federation for each in setups]),
        seeds=tuple(each.seed for each in setups),
        rates=rates if len({*rates}) > 1 else (),
        members=sum(each.members for each in setups),
    )


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
        """Return the answer of `trainer`; for scoring only the counts.

        Raises:
            Diverged: see Trainer.train.
        """
        arguments = (self.ids, self.message, self.memory, self.clock, self.score)
        if self.training:
            return trainer.train(*arguments)
        return Outcome({}, {}, torch.zeros(len(self.ids)), trainer.evaluate(*arguments))

    @property
    def kind(self) -> tuple[object, ...]:
        """A key that is equal for requests that can be served as one."""
        shapes = [
            tuple((name, leaf.shape[1:], leaf.dtype) for name, leaf in sorted(tree.items()))
            for tree in (self.message, self.memory)
        ]
        return (self.training, self.clock, self.score, *shapes)


def merged(requests: Sequence[Request], first: Sequence[int]) -> Request:
    """Return requests of one kind as one; `first` has the place of each one's client 0 in the joint setup."""
    ids = torch.cat([request.ids + place for request, place in zip(requests, first, strict=True)])
    message, memory = (
        {name: torch.cat([tree[name] for tree in part]) for name in part[0]}
        for part in ([r.message for r in requests], [r.memory for r in requests])
    )
    one = requests[0]
    return Request(one.training, ids, message, memory, one.clock, one.score)


def split(outcome: Outcome, sizes: Sequence[int]) -> list[Outcome]:
    """Split the outcome of a merged request into one for each request, of `sizes` clients."""

    def cut(leaf: Tensor) -> tuple[Tensor, ...]:
        return torch.split(leaf, list(sizes))

    def trees_of(tree: Tree) -> list[Tree]:
        pieces = {name: cut(leaf) for name, leaf in tree.items()}
        return [{name: piece[k] for name, piece in pieces.items()} for k in range(len(sizes))]

    counts = {name: (cut(correct), cut(total)) for name, (correct, total) in outcome.counts.items()}
    return [
        Outcome(upload, memory, loss, {name: (correct[k], total[k]) for name, (correct, total) in counts.items()})
        for k, (upload, memory, loss) in enumerate(
            zip(trees_of(outcome.uploads), trees_of(outcome.memory), cut(outcome.loss), strict=True)
        )
    ]


# A simulation in a thread of its own, and the engine as it sees it: one that waits until it is given an answer.
#
# So the loop over rounds, which calls its engine as any other, can be made to wait for other simulations.

ResultT = TypeVar("ResultT")
MakeProxy = Callable[[Trainer], Trainer]  # a simulation's own engine -> the one that it is to use


@dataclass(frozen=True)
class Answer:
    """The outcome of a request or its error, and its share of the seconds of the joint work."""

    outcome: Outcome | BaseException
    seconds: float = 0.0


class TrainerProxy(Trainer):
    """The engine as one of several simulations sees it. Its clock leaves out the other simulations' time."""

    def __init__(self, own: Trainer, ask: Callable[[Request], Answer]) -> None:
        super().__init__(own.setup)
        self.own = own
        self._ask = ask
        self._others = 0.0  # seconds

    def train(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()) -> Outcome:
        return self._answered(Request(True, ids, message, memory, clock, tuple(score)))

    def evaluate(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]) -> Counts:
        return self._answered(Request(False, ids, message, memory, clock, tuple(score))).counts

    def clock(self) -> float:
        return time.perf_counter() - self._others

    def close(self) -> None:
        self.own.close()

    def _answered(self, request: Request) -> Outcome:
        begin = time.perf_counter()
        answer = self._ask(request)
        self._others += time.perf_counter() - begin - answer.seconds
        if isinstance(answer.outcome, BaseException):
            raise answer.outcome
        return answer.outcome


class SimulationThread(Generic[ResultT]):
    """A simulation in its own thread, which runs only while `start`, `go_on` or `stop` waits for it."""

    def __init__(self, work: Callable[[MakeProxy], ResultT]) -> None:
        self.request: Request | None = None  # what it waits for; None before its start and after its end
        self.seat: TrainerProxy | None = None  # from when it has an engine
        self._work = work
        self._results: list[ResultT] = []
        self._error: BaseException | None = None
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()  # None: its end
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._going = False

    def start(self) -> None:
        """Run it until its first request or its end. Raises its interruptions, except `Stopped`."""
        self._going = True
        self._thread.start()
        self._listen()
        self._raise_interruption()

    def go_on(self, answer: Answer) -> None:
        """Run it until its next request or its end. Raises its interruptions, except `Stopped`."""
        self._answers.put(answer)
        self._listen()
        self._raise_interruption()

    def stop(self) -> None:
        """Interrupt it at its next request, and wait for its end."""
        while self._going:
            self._answers.put(Answer(KeyboardInterrupt()))
            self._listen()

    @property
    def stopped(self) -> Stopped | None:
        """The `Stopped` with which a signal ended it after a round, or None."""
        return self._error if isinstance(self._error, Stopped) else None

    def result(self) -> ResultT | Exception:
        """Its result."""
        return self._error if isinstance(self._error, Exception) else self._results[0]

    def _listen(self) -> None:
        self.request = self._requests.get()
        if self.request is None:
            self._thread.join()
            self._going = False

    def _raise_interruption(self) -> None:
        if self._error is not None and not isinstance(self._error, (Exception, Stopped)):
            raise self._error

    # ---- in the thread

    def _run(self) -> None:
        try:
            self._results.append(self._work(self._make_proxy))
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            self._error = error
        self._requests.put(None)

    def _make_proxy(self, own: Trainer) -> Trainer:
        self.seat = TrainerProxy(own, self._ask)
        return self.seat

    def _ask(self, request: Request) -> Answer:
        self._requests.put(request)
        return self._answers.get()


# Several simulations that share an engine, each in a thread of its own of which one runs at a time.
#
# What a simulation asks of its proxy waits until every other one has asked too, or ended; then requests that are alike
# are served as one.

log = logging.getLogger("fedbench")


def together(
    works: Sequence[Callable[[MakeProxy], ResultT]], joint: Callable[[Sequence[Setup]], Trainer]
) -> list[ResultT | Exception]:
    """Run all simulations to their ends, with equal requests as one; return each one's result, or its error.

    A work runs a simulation on the proxy that `MakeProxy` makes of its engine. Requests are equal if they ask for the
    same at the same round. The simulation furthest behind goes first, so simulations that began apart meet. A failing
    joint request is served again one by one, so that an error ends only its own simulation. `joint` makes the engine
    for all setups, once, when every simulation has made its first request.

    Raises:
        Stopped: a signal was held back, and each simulation has ended after its round.
        KeyboardInterrupt: one was interrupted at once, so all are.
    """
    threads = [SimulationThread(work) for work in works]
    shared = _Shared(threads, joint)
    try:
        for each in threads:
            each.start()
        while waiting := [each for each in threads if each.request is not None]:
            group = _furthest_behind(waiting)
            for each, answer in zip(group, shared.answers(group), strict=True):
                each.go_on(answer)
    finally:
        for each in threads:
            each.stop()
        shared.close()
    if stops := [each.stopped for each in threads if each.stopped is not None]:
        raise Stopped(stops[0].number, "\n".join(stop.where for stop in stops))
    return [each.result() for each in threads]


class _Shared(Generic[ResultT]):
    """The engine for all threads, made when it is first needed."""

    def __init__(
        self, threads: Sequence[SimulationThread[ResultT]], joint: Callable[[Sequence[Setup]], Trainer]
    ) -> None:
        self._threads = threads
        self._joint = joint
        self._trainer: Trainer | None = None
        # The place of each one's client 0 in the joint setup; empty before the first need.
        self._first: dict[SimulationThread[ResultT], int] = {}

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()

    def answers(self, group: Sequence[SimulationThread[ResultT]]) -> Iterator[Answer]:
        """Return an answer for each of a group with equal requests, served as one or else one by one."""
        begin = time.perf_counter()
        outcomes = self._as_one(group) if len(group) > 1 else None
        if outcomes is not None:
            seconds = (time.perf_counter() - begin) / len(group)
            yield from (Answer(outcome, seconds) for outcome in outcomes)
            return
        for each in group:
            assert each.request is not None
            assert each.seat is not None
            begin = time.perf_counter()
            outcome: Outcome | Exception
            try:
                outcome = each.request.served_by(each.seat.own)
            except Exception as error:  # noqa: BLE001 - raised again in its thread
                outcome = error
            yield Answer(outcome, time.perf_counter() - begin)

    def _as_one(self, group: Sequence[SimulationThread[ResultT]]) -> list[Outcome] | None:
        self._make()
        if self._trainer is None:
            return None
        requests = [each.request for each in group if each.request is not None]
        try:
            outcome = merged(requests, [self._first[each] for each in group]).served_by(self._trainer)
        except FedbenchError:
            return None
        except Exception as error:  # noqa: BLE001 - one by one, it ends only the runs that raise it again
            log.warning("a step of %d runs as one failed, each takes it alone: %s", len(group), error)
            return None
        return split(outcome, [len(request.ids) for request in requests])

    def _make(self) -> None:
        if self._first:
            return
        seated = {each: each.seat.setup for each in self._threads if each.seat is not None}
        starts = itertools.accumulate((each.federation.clients for each in seated.values()), initial=0)
        self._first = dict(zip(seated, starts, strict=False))
        try:
            self._trainer = self._joint(list(seated.values()))
        except Exception as error:  # noqa: BLE001 - each run has an engine of its own
            log.warning("the runs train one by one, an engine for all of them failed: %s", error)


def _furthest_behind(waiting: Sequence[SimulationThread[ResultT]]) -> list[SimulationThread[ResultT]]:
    """Return those with the request of the earliest round; a round is scored before the next one trains."""
    requests = {each: each.request for each in waiting if each.request is not None}
    first = min(requests.values(), key=lambda request: (request.clock.round, request.training))
    return [each for each, request in requests.items() if request.kind == first.kind]
