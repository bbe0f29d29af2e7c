"""The workers engine: looped training in several single-threaded processes over shared memory.

Small networks gain nothing from a second thread, two processes do not slow each other down. Processes start once a run;
messages, memories and uploads pass through shared buffers, never through a pipe.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.multiprocessing as torch_multiprocessing
from torch import Tensor

from fedbench.engine import trees
from fedbench.engine.contract import Clock
from fedbench.engine.looped import Known, LoopedTrainer, stack_counts
from fedbench.engine.setup import Setup
from fedbench.engine.shared_tree import SharedTree, Spec, spec_of
from fedbench.engine.trainer import Counts, Outcome, Trainer
from fedbench.engine.trees import Tree
from fedbench.errors import FedbenchError

BLOCKS_PER_WORKER = 6  # pieces a cohort is cut into, for balance
SCORED_BLOCK = 5000  # samples a piece has at least where clients are only scored: dealing takes a core, too


@dataclass(frozen=True)
class Order:
    """Work for one process: rows of the cohort, by client id."""

    verb: str  # train or evaluate
    rows: list[int]
    ids: list[int]
    clock: Clock
    score: tuple[str, ...]
    call: int  # counts the cohorts that were dealt: within one, message and memory stay as they are


class WorkersTrainer(Trainer):
    """Deals blocks of clients to worker processes, the largest first."""

    def __init__(self, setup: Setup, workers: int) -> None:
        """Start `workers` processes; they live until `close`."""
        super().__init__(setup)
        setup.federation.share_memory()
        context = torch_multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["fedbench.engine.workers"])
        self._buffers: dict[str, SharedTree] = {}
        self._calls = 0
        self._links: list[Connection] = []
        self._processes: list[Any] = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, setup), daemon=True)
            process.start()
            theirs.close()
            self._links.append(ours)
            self._processes.append(process)

    def close(self) -> None:
        """End the processes."""
        for link in self._links:
            link.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
        self._links, self._processes = [], []

    def train(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """See Trainer.train."""
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

    def evaluate(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]
    ) -> Counts:
        """See Trainer.evaluate."""
        self._share("message", message, spec_of(message))
        self._share("memory", memory, spec_of(memory))
        return stack_counts([counts for _, counts in self._deal("evaluate", ids, clock, score)])

    # ---- buffers

    @torch.no_grad()
    def _specimen(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock) -> tuple[Tree, Tree]:
        """(upload, memory) of an untrained client, one row: tells the shapes the workers will write."""
        method = self.setup.method
        view = self.setup.client(int(ids[0]), trees.row(message, 0), trees.row(memory, 0), clock)
        upload, kept = method.finish(trees.clone(method.start(view)), view)
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
        """Samples that pass through a client's model, once in an epoch: what its block is weighed by."""
        trained = self.setup.federation.size(client) if self._trains(verb, clock) else 0
        scored = 0 if verb == "train" else sum(len(self.setup.scored(name, client)) for name in score)
        return trained + scored

    def _deal(
        self, verb: str, ids: Tensor, clock: Clock, score: Sequence[str]
    ) -> list[tuple[Tensor, Counts]]:
        """Hand out blocks as workers become free; (loss, counts) of each row in order."""
        self._calls += 1
        workers = len(self._links)
        work = [self._work(verb, client, clock, score) for client in ids.tolist()]
        each = BLOCKS_PER_WORKER if self._trains(verb, clock) else scored_blocks(sum(work), workers)
        blocks = in_blocks(work, each * workers)[::-1]
        replies: dict[int, tuple[Tensor, Counts]] = {}
        busy: dict[Connection, list[int]] = {}
        idle = list(self._links)
        failure: BaseException | None = None
        while blocks or busy:
            while blocks and idle:
                rows = blocks.pop()
                order = Order(verb, rows, [int(ids[row]) for row in rows], clock, tuple(score), self._calls)
                link = idle.pop()
                _send(link, ("order", order))
                busy[link] = rows
            for ready in wait(list(busy)):
                link = next(each for each in busy if each is ready)
                rows = busy.pop(link)
                verdict, result = self._receive(link)
                if verdict == "error":
                    failure = failure or result
                    blocks.clear()  # but the others are waited for: they still write into the shared buffers
                else:
                    replies.update(zip(rows, map(_unplain, result), strict=True))
                idle.append(link)
        if failure is not None:
            raise failure
        return [replies[row] for row in range(len(ids))]

    def _receive(self, link: Connection) -> tuple[str, Any]:
        """The answer to an order of this call; one to an earlier call, which was interrupted, is passed over."""
        try:
            verdict, call, result = link.recv()
            while call != self._calls:
                verdict, call, result = link.recv()
        except (EOFError, ConnectionError):
            raise _dead() from None
        return verdict, result


def scored_blocks(samples: int, workers: int) -> int:
    """Blocks a worker that scoring is cut into: many for balance, few where there is little to do."""
    return max(1, min(BLOCKS_PER_WORKER, samples // (SCORED_BLOCK * workers)))


def in_blocks(work: Sequence[float], count: int) -> list[list[int]]:
    """Rows in up to about `count` blocks of similar work [C], the largest rows first."""
    target = sum(work) / count
    blocks: list[list[int]] = []
    filled = target
    for row in sorted(range(len(work)), key=lambda row: -work[row]):
        if filled >= target:
            blocks.append([])
            filled = 0.0
        blocks[-1].append(row)
        filled += work[row]
    return blocks


def _send(link: Connection, message: object) -> None:
    try:
        link.send(message)
    except ConnectionError:
        raise _dead() from None


def _dead() -> FedbenchError:
    return FedbenchError(
        "a worker process died (killed, or out of memory); the run resumes from its last checkpoint, "
        "hardware.workers=1 or hardware.engine=looped needs less memory"
    )


def serve(link: Connection, setup: Setup) -> None:
    """A worker process: train or score the rows it is dealt until the link closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    torch.set_num_threads(1)
    trainer = LoopedTrainer(setup)
    leaves: dict[str, Tree] = {}
    known, call = Known(), 0
    while True:
        try:
            name, payload = link.recv()
        except (EOFError, OSError):
            return
        if name != "order":
            leaves[name] = payload.leaves()
            continue
        if payload.call != call:
            known, call = Known(), payload.call
        try:
            reply: tuple[str, int, Any] = (
                "done",
                call,
                [_one(trainer, payload, index, leaves, known) for index in range(len(payload.rows))],
            )
        except Exception as error:  # noqa: BLE001 - raised again by the parent
            reply = ("error", call, error)
        try:
            link.send(reply)
        except ConnectionError:  # the parent is gone
            return


def _one(
    trainer: LoopedTrainer, order: Order, index: int, leaves: dict[str, Tree], known: Known
) -> tuple[float, Any]:
    """Train or score one row; trees go to the shared buffers, numbers are returned (as plain lists)."""
    row, client = order.rows[index], order.ids[index]
    message = {key: leaf[min(row, leaf.shape[0] - 1)] for key, leaf in leaves["message"].items()}
    memory = {key: leaf[min(row, leaf.shape[0] - 1)] for key, leaf in leaves["memory"].items()}
    if order.verb == "evaluate":
        counts = trainer.evaluate_one(client, message, memory, order.clock, order.score, known)
        return float("nan"), _plain(counts)
    outcome = trainer.train_one(client, message, memory, order.clock, order.score)
    for name, tree in (("upload", outcome.uploads), ("kept", outcome.memory)):
        for key, leaf in tree.items():
            leaves[name][key][row].copy_(leaf)
    return float(outcome.loss), _plain(outcome.counts)


def _plain(counts: Counts) -> dict[str, tuple[list[float], list[float]]]:
    return {name: (a.tolist(), b.tolist()) for name, (a, b) in counts.items()}


def _unplain(result: tuple[float, Any]) -> tuple[Tensor, Counts]:
    loss, counts = result
    float64 = partial(torch.tensor, dtype=torch.float64)
    return torch.tensor(loss), {name: (float64(a), float64(b)) for name, (a, b) in counts.items()}


def available_workers() -> int:
    """Cores this process may use."""
    import os

    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return multiprocessing.cpu_count()
