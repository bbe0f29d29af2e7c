"""The workers engine: looped training in several single-threaded processes over shared memory.

Small networks gain nothing from a second thread, two processes do not slow each other down. Processes start once a run;
messages, memories and uploads pass through shared buffers, never through a pipe.
"""

from __future__ import annotations

import heapq
import multiprocessing
import os
import pickle
import signal
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
import torch.multiprocessing as torch_multiprocessing
from torch import Tensor

from fedbench.core import trees
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.signals import SIGNALS
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.hooks import HookCaller, portable
from fedbench.engine.looped import LoopedTrainer, SharedScores, stack_counts
from fedbench.engine.optim import KEPT
from fedbench.engine.setup import Setup
from fedbench.engine.trainer import Counts, Engine, Outcome

BLOCKS_PER_WORKER = 6  # pieces a cohort is cut into, for balance
SCORED_BLOCK = 5000  # samples a piece has at least where clients are only scored: dealing takes a core, too


def scored_blocks(samples: int, workers: int) -> int:
    """Return the number of scoring blocks for each worker: many for balance, few if there is little to do."""
    return max(1, min(BLOCKS_PER_WORKER, samples // (SCORED_BLOCK * workers)))


def in_blocks(work: Sequence[float], count: int) -> list[list[int]]:
    """Return rows in up to `count` blocks of similar work [C]; the largest come first and go to the smallest block."""
    blocks: list[tuple[float, int, list[int]]] = [(0.0, index, []) for index in range(min(count, len(work)))]
    for row in sorted(range(len(work)), key=lambda row: -work[row]):
        filled, index, rows = heapq.heappop(blocks)
        heapq.heappush(blocks, (filled + work[row], index, [*rows, row]))
    return [rows for _, _, rows in sorted(blocks, key=lambda block: -block[0]) if rows]


# Starting and ending worker processes that a script neither has to allow for nor can get in the way of.


def start(serve: Callable[[Connection, Any], None], argument: Any, count: int) -> tuple[list[Any], list[Connection]]:
    """Start `count` processes that run `serve` on a link and `argument`; return them with our ends of the links.

    The module of `serve` is imported once for all of them.

    Raises:
        ConfigError: `argument` holds a definition of the script.
    """
    _name_a_known_start_method()
    context = torch_multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([serve.__module__])
    with _unheard(*SIGNALS):  # which a terminal sends to all, also to one that still imports
        forkserver.ensure_running()
    processes: list[Any] = []
    links: list[Connection] = []
    for _ in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, argument), daemon=True)
        with _without_main():
            process.start()
        theirs.close()
        links.append(ours)
        processes.append(process)
    return processes, links


def end(processes: list[Any], links: list[Connection]) -> None:
    """Close the links, which ends the processes; kill those that go on."""
    for link in links:
        link.close()
    for process in processes:
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
            process.join()
    links.clear()
    processes.clear()


@contextmanager
def _unheard(*numbers: int) -> Iterator[None]:
    """Start processes in the block that never get these signals; this process gets them after it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_main() -> Iterator[None]:
    """Start processes that do not import the script, because one without `if __name__ == "__main__"` would run again.

    multiprocessing has no setting for it, but leaves out a main module that has neither a file nor a specification.

    Raises:
        ConfigError: something that the processes need is defined in the script.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    except (pickle.PicklingError, AttributeError) as error:
        raise ConfigError(
            f"worker processes do not import the script, so they lack its definitions ({error}): move them to a module "
            "that the script imports, or use hardware.engine=looped"
        ) from error
    finally:
        sys.modules["__main__"] = main


def _name_a_known_start_method() -> None:
    """Name a start method that child processes know; in a process of joblib the default is joblib's own."""
    if multiprocessing.get_start_method(allow_none=True) not in (
        None,
        *multiprocessing.get_all_start_methods(),
    ):
        multiprocessing.set_start_method("spawn", force=True)


Spec = dict[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True)
class SharedTree:
    """A stacked tree in one shared allocation; a shared leaf (stride 0) is stored once."""

    buffer: Tensor  # uint8
    spec: Spec  # name -> (shape with the client axis as stored, dtype)

    @classmethod
    def like(cls, spec: Spec) -> SharedTree:
        """An allocation for leaves of `spec`."""
        size = sum(_padded_bytes(shape, dtype) for shape, dtype in spec.values())
        return cls(torch.empty(size, dtype=torch.uint8).share_memory_(), spec)

    def leaves(self) -> Tree:
        """The leaves as stored: views of the buffer."""
        views: Tree = {}
        offset = 0
        for name, (shape, dtype) in self.spec.items():
            count = torch.Size(shape).numel() * dtype.itemsize
            views[name] = self.buffer[offset : offset + count].view(dtype).view(shape)
            offset += _padded_bytes(shape, dtype)
        return views


def _padded_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    count = torch.Size(shape).numel() * dtype.itemsize
    return -(-count // 64) * 64


def spec_of(tree: Tree, rows: int | None = None) -> Spec:
    """Return the spec to store `tree`: shared leaves get one row; `rows`, if given, is the client axis's length."""
    spec: Spec = {}
    for name, leaf in tree.items():
        count = rows if rows is not None else (1 if trees.is_shared(leaf) else leaf.shape[0])
        spec[name] = ((count, *leaf.shape[1:]), leaf.dtype)
    return spec


# One process of the workers engine: trains or scores the clients it is dealt, and writes trees to shared buffers.


@dataclass(frozen=True)
class WorkOrder:
    """Work for one process: rows of the cohort, by client id."""

    verb: str  # train or evaluate
    rows: list[int]
    ids: list[int]
    clock: Clock
    score: tuple[str, ...]
    call: int  # counts the cohorts that were dealt: within one, message and memory stay as they are


def serve(link: Connection, setup: Setup) -> None:
    """Train or score the rows this process is dealt until the link closes."""
    for number in SIGNALS:  # often sent to all processes of a run
        signal.signal(number, signal.SIG_IGN)  # the parent decides what it means, and closes the link
    torch.set_num_threads(1)
    trainer = LoopedTrainer(setup)
    leaves: dict[str, Tree] = {}
    known, call = SharedScores(), 0
    while True:
        try:
            name, payload = link.recv()
        except (EOFError, OSError):
            return
        if name != "order":
            leaves[name] = payload.leaves()
            continue
        if payload.call != call:
            known, call = SharedScores(), payload.call
        reply: tuple[str, Any]
        try:
            rows = range(len(payload.rows))
            reply = "done", [_one(trainer, payload, index, leaves, known) for index in rows]
        except Exception as error:  # noqa: BLE001 - raised again by the parent
            reply = "error", portable(error)
        try:
            link.send(reply)
        except ConnectionError:  # the parent is gone
            return


def _one(
    trainer: LoopedTrainer, order: WorkOrder, index: int, leaves: dict[str, Tree], known: SharedScores
) -> tuple[float, Any]:
    """Train or score one row; write trees to the shared buffers and return numbers (as arrays)."""
    row, client = order.rows[index], order.ids[index]
    message = {key: leaf[min(row, leaf.shape[0] - 1)] for key, leaf in leaves["message"].items()}
    memory = {key: leaf[min(row, leaf.shape[0] - 1)] for key, leaf in leaves["memory"].items()}
    if order.verb == "evaluate":
        view = trainer.setup.client(client, message, memory, order.clock)
        return float("nan"), _plain(trainer.evaluate_one(client, view, order.score, known))
    one = torch.tensor([client]), trees.expand(message, 1), trees.expand(memory, 1)
    outcome = trainer.dispatch(*one, order.clock, order.score)
    for name, tree in (("upload", outcome.uploads), ("kept", outcome.memory)):
        for key, leaf in tree.items():
            leaves[name][key][row].copy_(leaf[0])
    return float(outcome.loss), _plain({name: (a[0], b[0]) for name, (a, b) in outcome.counts.items()})


def _plain(counts: Counts) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {name: (a.numpy(), b.numpy()) for name, (a, b) in counts.items()}


def unplain(result: tuple[float, Any]) -> tuple[Tensor, Counts]:
    """Return (loss, counts) of a row from the numbers of a process's answer."""
    loss, counts = result
    tensors = {name: (torch.from_numpy(a), torch.from_numpy(b)) for name, (a, b) in counts.items()}
    return torch.tensor(loss, dtype=torch.float64), tensors


class WorkersTrainer(Engine):
    """Deals blocks of clients to worker processes, the largest first."""

    def __init__(self, setup: Setup, workers: int) -> None:
        """Start `workers` processes; they live until `close`."""
        super().__init__(setup)
        setup.federation.share_memory()
        self._buffers: dict[str, SharedTree] = {}
        self._calls = 0
        self._processes, self._links = start(serve, setup, workers)
        self._end = weakref.finalize(self, end, self._processes, self._links)  # also at the end of the program

    def close(self) -> None:
        """End the processes."""
        self._end()

    def dispatch(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()) -> Outcome:
        self._share(message=message, memory=memory)
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

    def dispatch_scoring(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]) -> Counts:
        self._share(message=message, memory=memory)
        return stack_counts([counts for _, counts in self._deal("evaluate", ids, clock, score)])

    # ---- buffers

    @torch.no_grad()
    def _specimen(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock) -> tuple[Tree, Tree]:
        """Return (upload, memory) of an untrained client, one row, with the shapes that the workers will write."""
        method, client = self.setup.method, int(ids[0])
        view = self.setup.client(client, trees.row(message, 0), trees.row(memory, 0), clock)
        call = HookCaller(method, clock, [client])
        work = trees.clone(call("start", method.start, call.client_view("start", view)))
        upload, kept = call("finish", method.finish, work, call.client_view("finish", view))
        return trees.expand(upload, 1), trees.expand({**kept, **trees.join(**{KEPT: view.optimizers})}, 1)

    def _reserve(self, name: str, spec: Spec) -> None:
        """Make buffer `name` fit `spec`, and tell the workers if it changes."""
        if name not in self._buffers or self._buffers[name].spec != spec:
            self._buffers[name] = SharedTree.like(spec)
            for link in self._links:
                _send(link, (name, self._buffers[name]))

    def _share(self, **parts: Tree) -> None:
        for name, tree in parts.items():
            self._reserve(name, spec_of(tree))
            for key, leaf in self._buffers[name].leaves().items():
                leaf.copy_(tree[key][: leaf.shape[0]])

    # ---- dealing

    def _trains(self, verb: str, clock: Clock) -> bool:
        """Whether clients train, also if only before they are scored."""
        return verb == "train" or bool(self.setup.method.adapt(self.setup.protocol.local, clock))

    def _work(self, verb: str, client: int, clock: Clock, score: Sequence[str]) -> int:
        """The weight of a client in blocks: the samples that it trains on and is scored on, each counted once."""
        trained = self.setup.federation.size(client) if self._trains(verb, clock) else 0
        scored = 0 if verb == "train" else sum(len(self.setup.scored.indices(name, client)) for name in score)
        return trained + scored

    def _deal(self, verb: str, ids: Tensor, clock: Clock, score: Sequence[str]) -> list[tuple[Tensor, Counts]]:
        """Deal blocks as workers become free; return (loss, counts) of each row in order."""
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
                    _send(link, ("order", WorkOrder(verb, rows, own, clock, tuple(score), self._calls)))
                    busy[link] = rows
                for link in cast("list[Connection]", wait(list(busy))):
                    rows, (verdict, result) = busy.pop(link), _receive(link)
                    if verdict == "error":
                        failure = failure or result
                        blocks.clear()  # but those handed out are waited for: they write into the shared buffers
                    else:
                        replies.update(zip(rows, map(unplain, result), strict=True))
                        self.tell(len(replies) / len(ids))
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
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return multiprocessing.cpu_count()
