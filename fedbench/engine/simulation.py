"""The one loop over rounds: draw, send, train, aggregate, score. Every method runs through it without a branch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from fedbench.core import rng, trees
from fedbench.core.trees import Tree
from fedbench.engine.clients.storage import Storage
from fedbench.engine.clients.store import ClientStore
from fedbench.engine.contract import Clock, Cohort
from fedbench.engine.preparation import Preparation
from fedbench.engine.request import Asking, Request, serve
from fedbench.engine.setup import Setup
from fedbench.engine.state import State
from fedbench.engine.train.trainer import Counts, Outcome, Trainer, count_correct
from fedbench.metrics.accuracy import Tally, weighted
from fedbench.results.history import TRAINED, Record
from fedbench.results.observer import Observer

EVALUATION_CLIENTS = 256  # clients messaged at once when all are scored, ...
EVALUATION_BYTES = 2**30  # ... or fewer, whose memory is not larger than this


class Simulation:
    """One run of one method: `prepare` once, then `step` until `done`."""

    def __init__(
        self,
        setup: Setup,
        trainer: Trainer,
        observer: Observer | None = None,
        storage: Storage | None = None,
    ) -> None:
        """`observer` is told of phases and records; `storage`: where clients' memory is kept."""
        self.observer = observer or Observer()
        self._phase = ""
        self.setup = setup
        self.trainer = trainer
        self.storage = storage or Storage.of(setup)
        protocol = setup.protocol
        self.sets = {"global": ("global",), "both": ("local", "global")}.get(protocol.test.sets, ("local",))
        if protocol.test.val_fraction > 0:
            self.sets = (*self.sets, "val")

    # ---- life

    def begin(self) -> State:
        """Initialise and prepare the method, and score it untrained (round 0)."""
        return serve(self.beginning(), lambda: self.trainer)

    def step(self, state: State) -> None:
        """One round, in place."""
        serve(self.round(state), lambda: self.trainer)

    def beginning(self) -> Asking[State]:
        """`begin`, for whoever serves the requests."""
        setup = self.setup
        server, memory = setup.method.init(setup.task, setup.population, rng.torch_rng(setup.seed, "init"))
        server, memory = setup.federation.placed(server), setup.federation.placed(memory)
        seconds: dict[str, float] = {}
        with self.timed(seconds, "prepare"), torch.no_grad():
            preparation = Preparation(setup, self.trainer)
            server, memory = setup.method.prepare(preparation, server, memory)
        federation = setup.federation
        store = ClientStore(memory, federation.clients, self.storage, federation.device)
        state = State(server, store, seconds=seconds)
        state.bytes_up, state.bytes_down = preparation.bytes_up, preparation.bytes_down
        state.arrays = preparation.arrays
        if setup.protocol.score != "trained":
            tallies = yield from self._score(state)
            self._record(state, tallies, float("nan"))
        return state

    def done(self, state: State) -> bool:
        """Whether all rounds are completed."""
        return state.round >= self.setup.protocol.rounds

    def round(self, state: State) -> Asking[None]:
        """`step`, for whoever serves the requests."""
        setup = self.setup
        clock = Clock(state.round, setup.protocol.rounds)
        ids = setup.draw_cohort(clock)
        cohort = setup.cohort(ids, clock)
        due = self._due(state.round + 1)
        after_training = due and setup.protocol.score != "received"
        score = self.sets if after_training else ()
        message, memory = self._send(state, cohort)
        outcome = yield from self._ask(state, "train", Request(True, ids, message, memory, clock, score))
        self._receive(state, cohort, outcome)
        state.round += 1
        self.observer.advance(state.round)
        if due:
            tallies = {} if setup.protocol.score == "trained" else (yield from self._score(state))
            if after_training:
                tallies |= self._trained(state, ids, outcome.counts, tallies)
            self._record(state, tallies, float(outcome.loss.nanmean()))

    @torch.no_grad()
    def _send(self, state: State, cohort: Cohort) -> tuple[Tree, Tree]:
        """(message, memory) of the cohort's clients [C, ...]."""
        with self.timed(state.seconds, "server"):
            message = self.setup.method.send(state.server, cohort)
            memory = state.memory.take(cohort.ids)
        state.bytes_down += trees.row_bytes(message) * len(cohort.ids)
        return message, memory

    @torch.no_grad()
    def _receive(self, state: State, cohort: Cohort, outcome: Outcome) -> None:
        state.bytes_up += trees.row_bytes(outcome.uploads) * len(cohort.ids)
        with self.timed(state.seconds, "server"):
            state.memory.put(cohort.ids, outcome.memory)
            state.server = self.setup.method.aggregate(state.server, outcome.uploads, cohort)

    def _ask(self, state: State, phase: str, request: Request) -> Asking[Outcome]:
        self._enter(phase)
        answer = yield request
        state.seconds[phase] = state.seconds.get(phase, 0.0) + answer.seconds
        return answer.outcome

    # ---- scoring

    def _due(self, completed: int) -> bool:
        """Evaluate every `eval_every` rounds, and in the last rounds, which reports may average."""
        protocol = self.setup.protocol
        tail = 5 if protocol.report == "mean_last_5" else 1
        return completed % protocol.eval_every == 0 or completed > protocol.rounds - tail

    def _score(self, state: State) -> Asking[dict[str, Tally]]:
        """Score every client's personal model as received, and the global model where there is one."""
        setup, method = self.setup, self.setup.method
        clock = Clock(state.round, setup.protocol.rounds)
        parts: list[Counts] = []
        at_once = EVALUATION_BYTES // max(1, state.memory.layout.width)
        everyone = torch.arange(setup.federation.clients)
        for ids in everyone.split(max(1, min(EVALUATION_CLIENTS, at_once))):
            with self.timed(state.seconds, "evaluate"), torch.no_grad():
                message = method.send(state.server, setup.cohort(ids, clock, "evaluate"))
                memory = state.memory.take(ids)
            request = Request(False, ids, message, memory, clock, self.sets)
            parts.append((yield from self._ask(state, "evaluate", request)).counts)
        with self.timed(state.seconds, "evaluate"):
            counts = {
                name: (torch.cat([p[name][0] for p in parts]), torch.cat([p[name][1] for p in parts]))
                for name in self.sets
            }
            tallies = {name: self._tally(name, *counts[name]) for name in self.sets}
            if setup.protocol.test.sets != "local":
                tallies.update(self._score_common(state))
        return tallies

    def _tally(self, name: str, correct: Tensor, total: Tensor, ids: Tensor | None = None) -> Tally:
        """Counts per class [C, K] as counts per client, by the protocol's weighting of the global set."""
        if name == "global" and self.setup.protocol.test.weighting == "label_shares":
            counts = self.setup.population.label_counts
            chosen = counts if ids is None else counts[ids]
            shares = chosen / chosen.sum(1, keepdim=True)
            return weighted(correct.numpy(), total.numpy(), shares.numpy())
        return Tally(correct.sum(1).numpy(), total.sum(1).numpy())

    @torch.no_grad()
    def _score_common(self, state: State) -> dict[str, Tally]:
        """The global model on the global test set."""
        setup = self.setup
        model = setup.method.common(state.server, setup.task)
        if model is None:
            return {}
        correct = total = 0.0
        for indices in setup.federation.global_test.split(1024):
            x, y = setup.federation.gather(indices)
            hits, seen = count_correct(setup.task.apply(model, x), y, setup.task.classes)
            correct, total = correct + float(hits.sum()), total + float(seen.sum())
        return {"common": Tally(np.array([correct]), np.array([total]))}

    def _trained(
        self, state: State, ids: Tensor, counts: Counts, received: Mapping[str, Tally]
    ) -> dict[str, Tally]:
        """Scores after local training: the cohort's are new, the others keep their latest.

        Beside scores as `received` they have names of their own, and a client that has not trained yet its model
        as received.
        """
        for name, (correct, total) in counts.items():
            fresh = self._tally(name, correct, total, ids)
            unknown = np.zeros(self.setup.federation.clients)
            latest = state.scores.get(name, Tally(unknown, unknown))
            correct_all, total_all = latest.correct.copy(), latest.total.copy()
            correct_all[ids.numpy()], total_all[ids.numpy()] = fresh.correct, fresh.total
            state.scores[name] = Tally(correct_all, total_all)
        if not received:
            return dict(state.scores)
        return {TRAINED + name: tally.or_else(received[name]) for name, tally in state.scores.items()}

    def _record(self, state: State, tallies: dict[str, Tally], loss: float) -> None:
        record = Record(state.round, tallies, state.bytes_up, state.bytes_down, dict(state.seconds), loss)
        state.history.add(record)
        self.observer.record(record)

    def _enter(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self.observer.phase(phase)

    @contextmanager
    def timed(self, seconds: dict[str, float], phase: str) -> Iterator[None]:
        """Add the wall time of a block to a phase's seconds."""
        self._enter(phase)
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - begin
