"""Several simulations that share an engine, each in a thread of its own of which one runs at a time.

A simulation is given a `Seat` as its engine. What it asks of the seat waits until every other one has asked too, or
ended; then requests that are alike are served as one. So the loop over rounds knows nothing of the others.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from fedbench.core.errors import FedbenchError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup
from fedbench.engine.train.joint import Request, merged, split
from fedbench.engine.train.trainer import Counts, Outcome, Trainer

ResultT = TypeVar("ResultT")
Seating = Callable[[Trainer], Trainer]  # a simulation's own engine -> the one that it is to use
log = logging.getLogger("fedbench")


@dataclass(frozen=True)
class Answer:
    """The outcome of a request, or what ended it, and the seconds it took: a share of what was done as one."""

    outcome: Outcome | BaseException
    seconds: float = 0.0


class Seat(Trainer):
    """The engine as one of several simulations sees it. Its clock leaves out what the others take."""

    def __init__(self, own: Trainer, ask: Callable[[Request], Answer]) -> None:
        super().__init__(own.setup)
        self.own = own
        self._ask = ask
        self._others = 0.0  # seconds

    def train(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """See Trainer.train."""
        return self._answered(Request(True, ids, message, memory, clock, tuple(score)))

    def evaluate(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]
    ) -> Counts:
        """See Trainer.evaluate."""
        return self._answered(Request(False, ids, message, memory, clock, tuple(score))).counts

    def clock(self) -> float:
        """See Trainer.clock."""
        return time.perf_counter() - self._others

    def close(self) -> None:
        """See Trainer.close."""
        self.own.close()

    def _answered(self, request: Request) -> Outcome:
        begin = time.perf_counter()
        answer = self._ask(request)
        self._others += time.perf_counter() - begin - answer.seconds
        if isinstance(answer.outcome, BaseException):
            raise answer.outcome
        return answer.outcome


def together(
    works: Sequence[Callable[[Seating], ResultT]], joint: Callable[[Sequence[Setup]], Trainer]
) -> list[ResultT | Exception]:
    """Run all simulations to their ends, alike requests as one; the result of each, or the error that ended it.

    A work runs a simulation on the engine that its `Seating` makes of its own. Requests are alike that ask for the same
    at the same round. The one furthest behind goes first, so simulations that began apart meet. A joint request that
    fails is served again one by one, so that an error ends only its own simulation. `joint` makes the engine for all of
    the setups, once, when every simulation has asked for the first time. An interruption of one stops all.
    """
    threads = [_Thread(work) for work in works]
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
    return [each.result() for each in threads]


class _Thread(Generic[ResultT]):
    """A simulation in a thread of its own, which moves only while `start`, `go_on` or `stop` waits for it."""

    def __init__(self, work: Callable[[Seating], ResultT]) -> None:
        self.request: Request | None = None  # what it waits for; None before its start and after its end
        self.seat: Seat | None = None  # from when it has an engine
        self._work = work
        self._results: list[ResultT] = []
        self._error: BaseException | None = None
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()  # None: its end
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._going = False

    def start(self) -> None:
        """Let it run until it asks for the first time, or ends. Raises what interrupts it."""
        self._going = True
        self._thread.start()
        self._listen()
        self._raise_interruption()

    def go_on(self, answer: Answer) -> None:
        """Let it run until it asks again, or ends. Raises what interrupts it."""
        self._answers.put(answer)
        self._listen()
        self._raise_interruption()

    def stop(self) -> None:
        """Interrupt it where it asks next, and wait for its end."""
        while self._going:
            self._answers.put(Answer(KeyboardInterrupt()))
            self._listen()

    def result(self) -> ResultT | Exception:
        """What it ended with."""
        return self._error if isinstance(self._error, Exception) else self._results[0]

    def _listen(self) -> None:
        self.request = self._requests.get()
        if self.request is None:
            self._thread.join()
            self._going = False

    def _raise_interruption(self) -> None:
        if self._error is not None and not isinstance(self._error, Exception):
            raise self._error

    # ---- in the thread

    def _run(self) -> None:
        try:
            self._results.append(self._work(self._seated))
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            self._error = error
        self._requests.put(None)

    def _seated(self, own: Trainer) -> Trainer:
        self.seat = Seat(own, self._ask)
        return self.seat

    def _ask(self, request: Request) -> Answer:
        self._requests.put(request)
        return self._answers.get()


class _Shared(Generic[ResultT]):
    """The engine for all threads, made when it is first needed."""

    def __init__(
        self, threads: Sequence[_Thread[ResultT]], joint: Callable[[Sequence[Setup]], Trainer]
    ) -> None:
        self._threads = threads
        self._joint = joint
        self._trainer: Trainer | None = None
        self._first: dict[_Thread[ResultT], int] = {}  # place of its client 0; empty before the first need

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()

    def answers(self, group: Sequence[_Thread[ResultT]]) -> Iterator[Answer]:
        """An answer for each of the group, which waits for the same: served as one, or else one by one."""
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

    def _as_one(self, group: Sequence[_Thread[ResultT]]) -> list[Outcome] | None:
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


def _furthest_behind(waiting: Sequence[_Thread[ResultT]]) -> list[_Thread[ResultT]]:
    """Those whose requests are alike to that of the earliest round; a round is scored before the next one trains."""
    requests = {each: each.request for each in waiting if each.request is not None}
    first = min(requests.values(), key=lambda request: (request.clock.round, request.training))
    return [each for each, request in requests.items() if request.kind == first.kind]
