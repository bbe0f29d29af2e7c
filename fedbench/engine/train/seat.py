"""A simulation in a thread of its own, and the engine as it sees it: one that waits until it is given an answer.

So the loop over rounds, which calls its engine as any other, can be made to wait for other simulations.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from fedbench.core.interruption import Stopped
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.train.joint import Request
from fedbench.engine.train.trainer import Counts, Outcome, Trainer

ResultT = TypeVar("ResultT")
Seating = Callable[[Trainer], Trainer]  # a simulation's own engine -> the one that it is to use


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


class SimulationThread(Generic[ResultT]):
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
        """Let it run until it asks for the first time, or ends. Raises what interrupts it, but for `Stopped`."""
        self._going = True
        self._thread.start()
        self._listen()
        self._raise_interruption()

    def go_on(self, answer: Answer) -> None:
        """Let it run until it asks again, or ends. Raises what interrupts it, but for `Stopped`."""
        self._answers.put(answer)
        self._listen()
        self._raise_interruption()

    def stop(self) -> None:
        """Interrupt it where it asks next, and wait for its end."""
        while self._going:
            self._answers.put(Answer(KeyboardInterrupt()))
            self._listen()

    @property
    def stopped(self) -> Stopped | None:
        """How a signal ended it, after a round of its own."""
        return self._error if isinstance(self._error, Stopped) else None

    def result(self) -> ResultT | Exception:
        """What it ended with."""
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
