"""The one loop over rounds: draw, send, train, aggregate, score. Every method runs through it without a branch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fedbench.core import rng
from fedbench.core.trees import Tree
from fedbench.engine.clients.storage import Storage
from fedbench.engine.clients.store import ClientStore
from fedbench.engine.contract import Clock, Cohort
from fedbench.engine.hooks import Calls
from fedbench.engine.preparing import Preparing
from fedbench.engine.recording import Moment, Recorder
from fedbench.engine.scores import common_tally, competing, latest, scored_sets, tallies
from fedbench.engine.setup import Setup
from fedbench.engine.state import State
from fedbench.engine.train.trainer import Counts, Outcome, Trainer
from fedbench.metrics import Tally
from fedbench.results.history import Record
from fedbench.results.observer import Observer

EVALUATION_CLIENTS = 256  # clients messaged at once when all are scored, ...
EVALUATION_BYTES = 2**30  # ... or fewer, whose memory is not larger than this


class Simulation:
    """One run of one method: `begin` once, then `step` until `done`."""

    def __init__(
        self,
        setup: Setup,
        trainer: Trainer,
        observer: Observer | None = None,
        storage: Storage | None = None,
        recorders: Sequence[Recorder] = (),
    ) -> None:
        """`observer` is told of phases and records; `storage`: where clients' memory is kept."""
        self.observer = observer or Observer()
        self._phase = ""
        self.setup = setup
        self.trainer = trainer
        self.storage = storage or Storage.of(setup)
        self.sets = scored_sets(setup)
        self.recorders = recorders

    def begin(self) -> State:
        """Initialise and prepare the method, and score it untrained (round 0)."""
        setup, method = self.setup, self.setup.method
        call = Calls(method, None, ())
        server, memory = call(
            "init", method.init, setup.task, setup.population, rng.torch_rng(setup.seed, "init")
        )
        server, memory = setup.federation.placed(server), setup.federation.placed(memory)
        state = State(server, self._store(memory))
        self.prepare(state)
        if setup.protocol.score != "trained":
            self._record(state, self.score(state), float("nan"))
        return state

    def _store(self, memory: Tree) -> ClientStore:
        return ClientStore(memory, self.setup.federation.clients, self.storage, self.setup.federation.device)

    def done(self, state: State) -> bool:
        """Whether all rounds are completed."""
        return state.round >= self.setup.protocol.rounds

    def step(self, state: State) -> None:
        """One round, in place."""
        setup = self.setup
        clock = Clock(state.round, setup.protocol.rounds)
        ids = setup.draw_cohort(clock)
        cohort = setup.cohort(ids, clock)
        due = self._due(state.round + 1)
        after_training = due and setup.protocol.score != "received"
        message, memory = self._send(state, cohort)
        with self.timed(state.seconds, "train"):
            outcome = self.trainer.train(ids, message, memory, clock, self.sets if after_training else ())
        self._receive(state, cohort, outcome)
        state.round += 1
        self._look(state, cohort, message, outcome)
        self.prepare(state)
        if due:
            scores = {} if setup.protocol.score == "trained" else self.score(state)
            if after_training:
                fresh = tallies(setup, outcome.counts, ids)
                state.scores |= latest(state.scores, fresh, ids, setup.federation.clients)
                scores |= competing(state.scores, scores) if scores else state.scores
            self._record(state, scores, float(outcome.loss.nanmean()))
        self.observer.advance(state.round)

    @torch.no_grad()
    def prepare(self, state: State) -> None:
        """Let the method prepare, if this is the moment."""
        setup, method = self.setup, self.setup.method
        if state.round != method.prepare_round:
            return
        with self.timed(state.seconds, "prepare"):
            preparation = Preparing(setup, self.trainer, Clock(state.round, setup.protocol.rounds))
            given = state.memory.take(setup.everyone)
            call = Calls(method, preparation.clock if state.round else None, ())
            state.server, memory = call("prepare", method.prepare, preparation, state.server, dict(given))
            if not state.round:  # so far a method may choose other leaves
                state.memory = self._store(memory)
            elif any(leaf is not given.get(name) for name, leaf in memory.items()):
                state.memory.put(setup.everyone, memory)
        state.seconds["prepare"] += preparation.seconds
        state.prepared = preparation.meter.up, preparation.meter.down
        state.bytes_up += preparation.meter.up
        state.bytes_down += preparation.meter.down
        state.arrays = {**state.arrays, **preparation.arrays}

    @torch.no_grad()
    def _send(self, state: State, cohort: Cohort) -> tuple[Tree, Tree]:
        """(message, memory) of the cohort's clients [C, ...]."""
        with self.timed(state.seconds, "server"):
            message = self._message(state, cohort)
            memory = state.memory.take(cohort.ids)
        state.bytes_down += self.setup.traffic(message, cohort.ids)
        return message, memory

    @torch.no_grad()
    def _receive(self, state: State, cohort: Cohort, outcome: Outcome) -> None:
        state.bytes_up += self.setup.traffic(outcome.uploads, cohort.ids)
        with self.timed(state.seconds, "server"):
            state.memory.put(cohort.ids, outcome.memory)
            method = self.setup.method
            call = Calls(method, cohort.clock, cohort.ids)
            state.server = call("aggregate", method.aggregate, state.server, outcome.uploads, cohort)

    @torch.no_grad()
    def _look(self, state: State, cohort: Cohort, message: Tree, outcome: Outcome) -> None:
        """Let the recorders that are due add to the run's arrays."""
        due = [each for each in self.recorders if each.due(state.round, self.setup.protocol.rounds)]
        moment = Moment(self.setup, cohort, message, outcome.memory, outcome.uploads, state.server)
        for recorder in due:
            state.arrays = recorder.added(state.arrays, moment)

    def _message(self, state: State, cohort: Cohort) -> Tree:
        method = self.setup.method
        return Calls(method, cohort.clock, cohort.ids)("send", method.send, state.server, cohort)

    # ---- scoring

    def _due(self, completed: int) -> bool:
        """Evaluate every `eval_every` rounds, and in the last rounds, which reports may average."""
        protocol = self.setup.protocol
        tail = 5 if protocol.report == "mean_last_5" else 1
        return completed % protocol.eval_every == 0 or completed > protocol.rounds - tail

    @torch.no_grad()
    def score(self, state: State) -> dict[str, Tally]:
        """Score every client's personal model as received, and the global model where there is one."""
        setup = self.setup
        clock = Clock(state.round, setup.protocol.rounds)
        at_once = EVALUATION_BYTES // max(1, state.memory.layout.width)
        everyone = setup.everyone
        with self.timed(state.seconds, "evaluate"):
            parts = [
                self._score_some(state, ids, clock)
                for ids in everyone.split(max(1, min(EVALUATION_CLIENTS, at_once)))
            ]
            counts = {
                name: (torch.cat([p[name][0] for p in parts]), torch.cat([p[name][1] for p in parts]))
                for name in self.sets
            }
            scores = tallies(setup, counts, everyone)
            if setup.protocol.test.sets != "local":
                method = setup.method
                model = Calls(method, clock, ())("common", method.common, state.server, setup.task)
                scores |= {} if model is None else {"common": common_tally(setup, model, clock)}
        return scores

    def _score_some(self, state: State, ids: Tensor, clock: Clock) -> Counts:
        message = self._message(state, self.setup.cohort(ids, clock, "evaluate"))
        return self.trainer.evaluate(ids, message, state.memory.take(ids), clock, self.sets)

    def _record(self, state: State, scores: dict[str, Tally], loss: float) -> None:
        record = Record(state.round, scores, state.bytes_up, state.bytes_down, dict(state.seconds), loss)
        state.history.add(record)
        self.observer.record(record)

    @contextmanager
    def timed(self, seconds: dict[str, float], phase: str) -> Iterator[None]:
        """Add the time of a block to a phase's seconds."""
        if phase != self._phase:
            self._phase = phase
            self.observer.phase(phase)
        begin = self.trainer.clock()
        try:
            yield
        finally:
            seconds[phase] = seconds.get(phase, 0.0) + self.trainer.clock() - begin
