"""The ray engine: Ray actors on several GPUs or machines train the parts of a cohort.

An actor has the data and its clients' memory, and trains with the engine of its device. The driver has the loop, the
server and the checkpoint. Data that are equal for all clients of a round are sent once to each machine. A client's
memory is sent only if the actor does not have it. Uploads and memories come back. Clients are independent within a
round, so the number of actors and their order do not change a result.
"""

from __future__ import annotations

import functools
import hashlib
import signal
import time
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.config.schema import HardwareConfig
from fedbench.core import source, trees
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.rays import started_ray
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.hooks import portable
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.trainer import Counts, Outcome, Trainer, rejoined
from fedbench.engine.workers import in_blocks

Packed = dict[str, tuple[np.ndarray, torch.dtype, tuple[int, ...]]]  # a tree as bytes, which Ray does not copy
PickTrainer = Callable[[Setup, HardwareConfig], Trainer]
ENGINES = ("fedbench.engine.looped:LoopedTrainer", "fedbench.engine.stacked:StackedTrainer")
TRIES = 3  # of a part of a round whose actor dies each time


def packed(tree: Mapping[str, Tensor]) -> Packed:
    """Return `tree` in contiguous arrays of bytes."""
    return {
        name: (leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), leaf.dtype, tuple(leaf.shape))
        for name, leaf in tree.items()
    }


def unpacked(tree: Packed) -> Tree:
    """The inverse of `packed`; received arrays are read-only, leaves are copies."""
    return {
        name: torch.frombuffer(array.copy(), dtype=dtype).view(shape) if array.size else torch.empty(shape, dtype=dtype)
        for name, (array, dtype, shape) in tree.items()
    }


def size(tree: Packed) -> int:
    """Bytes of a packed tree."""
    return sum(array.nbytes for array, _, _ in tree.values())


@dataclass(frozen=True)
class ActorOrder:
    """The task of one actor in a round."""

    training: bool
    rows: tuple[int, ...]  # of the cohort
    ids: Tensor
    message: Packed  # its leaves [c, ...] that differ between clients
    memory: dict[int, Packed]  # client -> leaves that the actor lacks
    kept: tuple[str, ...]  # names of all leaves of a memory that differ between clients
    clock: Clock
    score: tuple[str, ...]


def hashes(setup: Setup) -> tuple[str, str]:
    """Return hashes of (the code that trains, the samples) as this process has them."""
    methods, found = [setup.method], []
    while methods:  # a method may hold others
        found.append(method := methods.pop())
        methods += [each for field in fields(method) if isinstance(each := getattr(method, field.name), Method)]
    layers = {type(layer) for modality in setup.modalities for layer in modality.task.fresh().modules()}
    own = [each for each in (*map(type, found), *layers, type(setup), Shard) if not each.__module__.startswith("torch")]
    code = _code((*ENGINES, *sorted(f"{each.__module__}:{each.__qualname__}" for each in own)))
    data = 0
    for modality in setup.modalities:
        for leaf in (modality.federation.x, modality.federation.answers, modality.federation.sets["train"].values):
            data = zlib.crc32(leaf.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data, data)
    return code, f"{data:08x}"


_code = functools.cache(source.digest)  # of files that are read once


class Shard:
    """An actor: trains and scores the clients that it is given, and keeps their memory."""

    def __init__(self, setup: Setup, config: HardwareConfig, pick: PickTrainer) -> None:
        """`pick` makes the engine for `config`."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a terminal sends to all; the driver decides
        torch.set_num_threads(config.threads or 1)
        self.hashes = hashes(setup)
        self.setup = setup.on(torch.device(config.device))
        self.trainer = pick(self.setup, config)
        self.memory: dict[int, Tree] = {}

    def known(self) -> tuple[str, str]:
        """Return `hashes` of this process."""
        return self.hashes

    def work(
        self, shared: tuple[Packed, Packed], order: ActorOrder
    ) -> tuple[Packed, Packed, Tensor, Counts] | Exception:
        """Return (uploads, memory, loss, counts) of an order, or why there are none.

        `shared`: the leaves of message and memory, without a client axis, that all clients of the round share.
        """
        try:
            return self._done(shared, order)
        except Exception as error:  # noqa: BLE001 - raised again by the driver
            return portable(error)

    def _done(self, shared: tuple[Packed, Packed], order: ActorOrder) -> tuple[Packed, Packed, Tensor, Counts]:
        clients = order.ids.tolist()
        for client, leaves in order.memory.items():
            self.memory.setdefault(client, {}).update(unpacked(leaves))
        own = {name: torch.stack([self.memory[client][name] for client in clients]) for name in order.kept}
        message, memory = (
            self.setup.federation.placed({**trees.expand(unpacked(same), len(clients)), **each})
            for same, each in zip(shared, (unpacked(order.message), own), strict=True)
        )
        given = order.ids, message, memory, order.clock, order.score
        if not order.training:
            return {}, {}, torch.zeros(len(clients)), self.trainer.evaluate(*given)
        outcome = self.trainer.train(*given)
        home = trees.map_leaves(lambda leaf: leaf.cpu(), outcome.memory)
        for row, client in enumerate(clients):
            self.memory.setdefault(client, {}).update(trees.clone(trees.row(home, row)))
        return packed(outcome.uploads), packed(home), outcome.loss, outcome.counts


class RayTrainer(Trainer):
    """Deals the clients of a round to Ray actors; if an actor dies, a new one does its part again."""

    def __init__(self, setup: Setup, config: HardwareConfig, pick: PickTrainer) -> None:
        """Start `config.workers` actors (0: one for each GPU, without GPUs one for each core).

        Raises:
            ConfigError: Ray is missing or has too few GPUs, or a machine has other code or data.
        """
        super().__init__(setup)
        opened = ExitStack()
        self.crossed: Counter[str] = Counter()  # bytes: shared (once a machine), down and up
        self.waited = 0.0  # seconds for actors
        self._end = weakref.finalize(self, opened.close)  # also at the end of the program
        self._ray = opened.enter_context(started_ray(config.address, {}, "hardware"))
        there = self._ray.cluster_resources()
        gpus = 0 if config.device == "cpu" else int(there.get("GPU", 0))
        count = config.workers or gpus or int(there.get("CPU", 1))
        if config.device != "cpu" and count > gpus and (gpus or config.device != "auto"):
            self.close()
            raise ConfigError(f"hardware.workers={count} actors take a GPU each, Ray has {gpus}; hardware.device=cpu")
        device = "cuda" if gpus else "cpu"
        own = replace(config, engine="stacked" if gpus else "looped", device=device)
        self._given = self._ray.put(setup), own, pick
        # A GPU each; beside those, more actors than cores do no harm.
        self._kind = self._ray.remote(num_cpus=0, num_gpus=bool(gpus), scheduling_strategy="SPREAD")(Shard)
        self._hashes = hashes(setup)
        self._actors = [self._kind.remote(*self._given) for _ in range(min(count, setup.at_once))]
        self._held: list[dict[tuple[int, str], bytes]] = [{} for _ in self._actors]  # what each has, by its hash
        for actor in self._actors:
            self._check(actor)

    def close(self) -> None:
        """End the actors, and Ray if it is started here."""
        self._end()

    def train(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()) -> Outcome:
        return self._together(ids, message, memory, clock, score, training=True)

    def evaluate(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]) -> Counts:
        return self._together(ids, message, memory, clock, score, training=False).counts

    def _check(self, actor: Any) -> None:
        """Refuse an actor that cannot begin, or whose code or data differ from this process's."""
        try:
            found = self._ray.get(actor.known.remote())
        except self._ray.exceptions.RayError as error:
            said = " ".join(str(error).split())[-300:]
            raise ConfigError(f"an actor of Ray does not start; install fedbench on its machine: {said}") from error
        for what, ours, theirs in zip(("code", "data"), self._hashes, found, strict=True):
            if ours != theirs:
                self.close()
                raise ConfigError(
                    f"an actor of Ray has other {what} ({theirs}) than this process ({ours}): install the same version "
                    "of fedbench, and of your own methods, on all machines"
                )

    def _together(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str], *, training: bool
    ) -> Outcome:
        (same, own), (alike, kept) = _parted(message), _parted(memory)
        shared = packed(same), packed(alike)
        sent = self._ray.put(shared)
        self.crossed["shared"] += sum(map(size, shared))
        waiting = self._dealt(ids, stays=bool(memory))
        parts: dict[int, tuple[Tensor, Outcome]] = {}
        failures: dict[int, Exception] = {}
        for _ in range(TRIES):
            orders = {}
            for place, rows in waiting.items():
                lacking, marks = self._lacking(place, ids, rows, kept)
                chosen = trees.take(own, torch.tensor(rows))
                order = ActorOrder(
                    training, tuple(rows), ids[rows], packed(chosen), lacking, tuple(kept), clock, tuple(score)
                )
                self.crossed["down"] += size(order.message) + sum(map(size, lacking.values()))
                orders[place] = self._actors[place].work.remote(sent, order), marks
            for place, (promised, marks) in orders.items():
                if (reply := self._answer(place, promised)) is None:
                    continue
                rows = waiting.pop(place)
                self._held[place].update(marks)
                if isinstance(reply, Exception):
                    failures[rows[0]] = reply
                else:
                    mask = torch.zeros(len(ids), dtype=torch.bool)
                    mask[rows] = True
                    parts[place] = mask, self._outcome(place, ids[rows].tolist(), reply)
            if failures:
                raise failures[min(failures)]
            if not waiting:
                return rejoined(list(parts.values()), len(ids))
        raise FedbenchError(
            f"an actor of Ray died {TRIES} times in round {clock.round + 1} (killed, or out of memory); the run "
            "resumes from its last checkpoint, hardware.workers=1 needs less memory"
        )

    def _dealt(self, ids: Tensor, *, stays: bool) -> dict[int, list[int]]:
        """Return each actor's rows of the cohort: clients `stay` where their memory is, others are dealt by samples."""
        count = len(self._actors)
        if stays:
            dealt = [(ids % count == place).nonzero().flatten().tolist() for place in range(count)]
        else:
            dealt = [sorted(rows) for rows in in_blocks([self.setup.federation.size(int(each)) for each in ids], count)]
        return {place: rows for place, rows in enumerate(dealt) if rows}

    def _lacking(
        self, place: int, ids: Tensor, rows: Sequence[int], kept: Tree
    ) -> tuple[dict[int, Packed], dict[tuple[int, str], bytes]]:
        """Return the memories of `rows` that actor `place` lacks, by client, and their hashes."""
        lacking: dict[int, Packed] = {}
        marks = {}
        for row in rows:
            client = int(ids[row])
            for name, leaf in packed(trees.row(kept, row)).items():
                if self._held[place].get((client, name)) != (mark := _mark(leaf[0])):
                    lacking.setdefault(client, {})[name] = leaf
                    marks[client, name] = mark
        return lacking, marks

    def _answer(self, place: int, promised: Any) -> Any:
        """Return an actor's answer; None if it died and a new one replaces it."""
        begin = time.perf_counter()
        try:
            return self._ray.get(promised)
        except self._ray.exceptions.RayError:
            self._actors[place] = self._kind.remote(*self._given)
            self._held[place] = {}
            self._check(self._actors[place])
            return None
        finally:
            self.waited += time.perf_counter() - begin

    def _outcome(self, place: int, clients: Sequence[int], reply: tuple[Packed, Packed, Tensor, Counts]) -> Outcome:
        uploads, kept, loss, counts = reply
        self.crossed["up"] += size(uploads) + size(kept)
        memory = unpacked(kept)
        for row, client in enumerate(clients):
            marks = {(client, name): _mark(leaf[0]) for name, leaf in packed(trees.row(memory, row)).items()}
            self._held[place].update(marks)
        return Outcome(unpacked(uploads), memory, loss, counts)


def _parted(tree: Tree) -> tuple[Tree, Tree]:
    """Return (leaves that all clients share, without the client axis; the others)."""
    same = {name: leaf[0] for name, leaf in tree.items() if trees.is_shared(leaf)}
    return same, {name: leaf for name, leaf in tree.items() if name not in same}


def _mark(array: np.ndarray) -> bytes:
    return hashlib.blake2b(array.data, digest_size=16).digest()
