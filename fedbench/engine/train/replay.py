"""Programs that are captured once and replayed: on a GPU a step is then one launch, however many kernels it has.

A captured step has fixed addresses and a fixed number of rows. So a program is copied once, tensors and all; every
round's inputs are copied into it, and what it has trained out of it. Rows come in few sizes: a step of 17 clients may
run on 20 rows, of which three are of clients that have had all their steps. Their results were taken out after the
last of these, so that what becomes of the rows no longer matters; rows never mix.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedbench.engine.contract import Clock, Stage
from fedbench.engine.train.program import Program, copy_all

WARM = 2  # calls before a step is captured: libraries choose kernels and take memory in their first
NARROWER = 0.75  # rows of a program, in those of the next larger one

Capture = Callable[[Program, int, bool], Callable[[], None]]
"""(program, rows, full) -> a function that does what `program.step(rows, full=full)` would do."""

log = logging.getLogger("fedbench")


class Replayed:
    """The stage of a chunk of one size, round after round."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._own: Program | None = None
        self._calls: Counter[tuple[int, bool]] = Counter()
        self._replays: dict[tuple[int, bool], Callable[[], None]] = {}
        self._captures = True

    def run(self, given: Program) -> None:
        """As `given.run()`, up to rounding."""
        if self._own is None or not _alike(self._own, given):
            self._own = given.over({name: leaf.clone() for name, leaf in given.inputs().items()})
            self._calls.clear()
            self._replays.clear()
        own = self._own
        own.chunk = replace(own.chunk, ids=given.chunk.ids, clock=given.chunk.clock)
        copy_all(own.inputs(), given.inputs())
        torch._foreach_zero_(list(own.state().values()))
        active, full = given.plan.active, given.plan.full
        for now, after, whole in zip(active, [*active[1:], 0], full, strict=True):
            self._step(own, rows_for(now, len(given.chunk.ids)), whole)
            if after < now:
                _take_out(own, given, after, now)

    def _step(self, own: Program, rows: int, full: bool) -> None:
        key = rows, full
        self._calls[key] += 1
        if key not in self._replays and self._captures and self._calls[key] > WARM:
            self._try(own, key)
        replay = self._replays.get(key)
        own.step(rows, full=full) if replay is None else replay()

    def _try(self, own: Program, key: tuple[int, bool]) -> None:
        """Capture a step, if that is possible."""
        chunk = own.chunk
        own.chunk = replace(chunk, clock=Unread(0, 0))
        try:
            self._replays[key] = self._capture(own, *key)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it can be run as it is
            self._captures = False
            name = type(own.stacking.setup.method).__name__
            log.warning("%s.%s is not captured, its steps run one by one: %s", name, own.hook, error)
        finally:
            own.chunk = chunk


@dataclass(frozen=True)
class Unread(Clock):
    """The clock while a step is captured: what a loss reads there would be the same in every later round."""

    def __getattribute__(self, name: str) -> Any:
        """As any object's; but the round raises RuntimeError."""
        if name == "round":
            raise RuntimeError("it reads the round; let `draw` put what depends on it into the batch's noise")
        return super().__getattribute__(name)


def rows_for(active: int, clients: int) -> int:
    """Rows of the program that serves a step of `active` clients of a chunk: a few more, so that sizes are few."""
    rows = clients
    while (fewer := int(NARROWER * rows)) >= active:
        rows = fewer
    return rows


def _take_out(own: Program, given: Program, begin: int, end: int) -> None:
    """Copy what rows `begin` to `end` were trained to."""
    for target, source in (({"total": given.total}, {"total": own.total}), (given.work, own.work)):
        copy_all(*({name: leaf[begin:end] for name, leaf in tree.items()} for tree in (target, source)))


def _alike(one: Program, other: Program) -> bool:
    """Whether two programs differ in nothing but the values of their tensors."""
    kinds = [
        {name: (leaf.shape, leaf.dtype) for name, leaf in each.inputs().items()} for each in (one, other)
    ]
    return kinds[0] == kinds[1] and one.chunk.dims == other.chunk.dims and _same(one.stage, other.stage)


def _same(one: Stage, other: Stage) -> bool:
    """Whether two stages do the same; hooks of equal methods are equal."""

    def bare(stage: Stage) -> Stage:
        return replace(stage, loss=None, direction=None)

    def hooks(stage: Stage) -> list[tuple[object, object]]:
        found = (stage.loss, stage.direction)
        return [(getattr(hook, "__func__", hook), getattr(hook, "__self__", None)) for hook in found]

    return bare(one) == bare(other) and hooks(one) == hooks(other)


def cuda_capture(device: torch.device) -> Capture:
    """Captures steps in CUDA graphs, which share one pool of memory: they never run at the same time."""
    pool = torch.cuda.graph_pool_handle()

    def capture(program: Program, rows: int, full: bool) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        # Other threads (draws of the next round) may go on allocating meanwhile.
        with torch.cuda.device(device), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            program.step(rows, full=full)
        return graph.replay

    return capture
