"""The workers engine: looped training in several single-threaded processes over shared memory.

Small networks gain nothing from a second thread, two processes do not slow each other down. Processes start once a run;
messages, memories and uploads pass through shared buffers, never through a pipe.
"""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.errors import FedbenchError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.hooks import Calls
from fedbench.engine.setup import Setup
from fedbench.engine.train.blocks import BLOCKS_PER_WORKER, in_blocks, scored_blocks
from fedbench.engine.train.looped_scorer import stack_counts
from fedbench.engine.train.processes import end, start
from fedbench.engine.train.shared_tree import SharedTree, Spec, spec_of
from fedbench.engine.train.trainer import Counts, Engine, Outcome
from fedbench.engine.train.worker import Order, serve, unplain


class WorkersTrainer(Engine):
    """Deals blocks of clients to worker processes, the largest first."""

    def __init__(self, setup: Setup, workers: int) -> None:
        """Start `workers` processes; they live until `close`."""
        super().__init__(setup)
        setup.federation.share_memory()
        self._buffers: dict[str, SharedTree] = {}
        self._calls = 0
        self._processes, self._links = start(serve, setup, workers, __package__ + ".worker")
        self._end = weakref.finalize(
            self, end, self._processes, self._links
        )  # also at the end of the program

    def close(self) -> None:
        """End the processes."""
        self._end()

    def launch(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """See Engine.launch."""
        self._share("message", message, spec_of(message))
        self._share("memory", memory, spec_of(memory))
        upload, kept = self._specimen(ids, message, memory, clock)
        self._reserve("upload", spec_of(upload, len(ids)))
        self._reserve("kept", spec_of(kept, len(ids)))
        replies = self._deal("train", ids, clock, score)
        return Outcome(
            trees.clone(self._buffers["upload"].leaves()),
            trees.clone(self._buffers["kept"].leaves()),
            torch.stack([loss for loss, _ in replies]),
            stack_counts([counts for _, counts in replies]),
        )

    def launch_scoring(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]
    ) -> Counts:
        """See Engine.launch_scoring."""
        self._share("message", message, spec_of(message))
        self._share("memory", memory, spec_of(memory))
        return stack_counts([counts for _, counts in self._deal("evaluate", ids, clock, score)])

    # ---- buffers

    @torch.no_grad()
    def _specimen(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock) -> tuple[Tree, Tree]:
        """(upload, memory) of an untrained client, one row: tells the shapes the workers will write."""
        method, client = self.setup.method, int(ids[0])
        view = self.setup.client(client, trees.row(message, 0), trees.row(memory, 0), clock)
        call = Calls(method, clock, [client])
        work = trees.clone(call("start", method.start, call.view("start", view)))
        upload, kept = call("finish", method.finish, work, call.view("finish", view))
        return trees.expand(upload, 1), trees.expand(kept, 1)

    def _reserve(self, name: str, spec: Spec) -> None:
        """Make buffer `name` fit `spec`, and tell the workers when it changed."""
        if name not in self._buffers or self._buffers[name].spec != spec:
            self._buffers[name] = SharedTree.like(spec)
            for link in self._links:
                _send(link, (name, self._buffers[name]))

    def _share(self, name: str, tree: Tree, spec: Spec) -> None:
        self._reserve(name, spec)
        for key, leaf in self._buffers[name].leaves().items():
            leaf.copy_(tree[key][: leaf.shape[0]])

    # ---- dealing

    def _trains(self, verb: str, clock: Clock) -> bool:
        """Whether clients train, if only before they are scored."""
        return verb == "train" or bool(self.setup.method.adapt(self.setup.protocol.local, clock))

    def _work(self, verb: str, client: int, clock: Clock, score: Sequence[str]) -> int:
        """What a client's block is weighed by: samples that it trains on and is scored on, each counted once."""
        trained = self.setup.federation.size(client) if self._trains(verb, clock) else 0
        scored = 0 if verb == "train" else sum(len(self.setup.scored.indices(name, client)) for name in score)
        return trained + scored

    def _deal(
        self, verb: str, ids: Tensor, clock: Clock, score: Sequence[str]
    ) -> list[tuple[Tensor, Counts]]:
        """Hand out blocks as workers become free; (loss, counts) of each row in order."""
        self._calls += 1
        workers = len(self._links)
        work = [self._work(verb, client, clock, score) for client in ids.tolist()]
        pieces = BLOCKS_PER_WORKER if self._trains(verb, clock) else scored_blocks(sum(work), workers)
        blocks = in_blocks(work, pieces * workers)[::-1]
        replies: dict[int, tuple[Tensor, Counts]] = {}
        busy: dict[Connection, list[int]] = {}
        idle = list(self._links)
        failure: BaseException | None = None
        try:
            while blocks or busy:
                while blocks and idle:
                    rows, link = blocks.pop(), idle.pop()
                    own = [int(ids[row]) for row in rows]
                    _send(link, ("order", Order(verb, rows, own, clock, tuple(score), self._calls)))
                    busy[link] = rows
                for link in cast("list[Connection]", wait(list(busy))):
                    rows, (verdict, result) = busy.pop(link), _receive(link)
                    if verdict == "error":
                        failure = failure or result
                        blocks.clear()  # but those handed out are waited for: they write into the shared buffers
                    else:
                        replies.update(zip(rows, map(unplain, result), strict=True))
                    idle.append(link)
        except BaseException:  # an interrupt, a dead worker: whatever is under way must not write any longer
            self.close()
            if failure is None:
                raise
        if failure is not None:
            raise failure
        return [replies[row] for row in range(len(ids))]


def _send(link: Connection, message: object) -> None:
    try:
        link.send(message)
    except ConnectionError:
        raise _dead() from None


def _receive(link: Connection) -> tuple[str, Any]:
    try:
        verdict, result = link.recv()
    except (EOFError, ConnectionError):
        raise _dead() from None
    return verdict, result


def _dead() -> FedbenchError:
    return FedbenchError(
        "a worker process died (killed, or out of memory); the run resumes from its last checkpoint, "
        "hardware.workers=1 or hardware.engine=looped needs less memory"
    )


def available_workers() -> int:
    """Cores this process may use."""
    import os

    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return multiprocessing.cpu_count()
