"""Several simulations that share an engine, each in a thread of its own of which one runs at a time.

What a simulation asks of its seat waits until every other one has asked too, or ended; then requests that are alike are
served as one.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from fedbench.core.errors import FedbenchError
from fedbench.core.interruption import Stopped
from fedbench.engine.setup import Setup
from fedbench.engine.train.joint import merged, split
from fedbench.engine.train.seat import Answer, Seating, SimulationThread
from fedbench.engine.train.trainer import Outcome, Trainer

ResultT = TypeVar("ResultT")
log = logging.getLogger("fedbench")


def together(
    works: Sequence[Callable[[Seating], ResultT]], joint: Callable[[Sequence[Setup]], Trainer]
) -> list[ResultT | Exception]:
    """Run all simulations to their ends, alike requests as one; the result of each, or the error that ended it.

    A work runs a simulation on the engine that its `Seating` makes of its own. Requests are alike that ask for the same
    at the same round. The one furthest behind goes first, so simulations that began apart meet. A joint request that
    fails is served again one by one, so that an error ends only its own simulation. `joint` makes the engine for all of
    the setups, once, when every simulation has asked for the first time.

    Raises:
        Stopped: a signal was held back, and each simulation has ended after a round of its own.
        KeyboardInterrupt: one was interrupted at once, and so all were.
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
    """Those whose requests are alike to that of the earliest round; a round is scored before the next one trains."""
    requests = {each: each.request for each in waiting if each.request is not None}
    first = min(requests.values(), key=lambda request: (request.clock.round, request.training))
    return [each for each, request in requests.items() if request.kind == first.kind]
