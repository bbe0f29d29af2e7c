"""The one loop over rounds: draw, send, train, aggregate, score. Every method runs through it without a branch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.core import rng, trees
from fedbench.core.errors import CheckpointError
from fedbench.core.trees import Tree
from fedbench.engine import checkpoint
from fedbench.engine.client_state import ClientMemory
from fedbench.engine.contract import Clock, Cohort
from fedbench.engine.history import COMMON, TRAINED, VALIDATION, History, Observer, Record
from fedbench.engine.hooks import HookCaller
from fedbench.engine.looped import moved
from fedbench.engine.optim import KEPT, kept_leaves
from fedbench.engine.preparation import EnginePreparation
from fedbench.engine.recording import Recorder, RoundContext
from fedbench.engine.scored_models import (
    Sources,
    compact,
    noted,
    nothing_known,
    reported_now,
    restored,
    sources_of,
)
from fedbench.engine.setup import Setup
from fedbench.engine.trainer import Counts, Outcome, Trainer, count_correct, diverged, outputs_of
from fedbench.metrics import PARTS, Measured, Tally, weighted
from fedbench.sample_metrics import measure


def initial(setup: Setup) -> tuple[Tree, Tree]:
    """Return the initial (server, clients' memory [N, ...]) on the device; a row of all clients stays one row."""
    call = HookCaller(setup.method, None, ())
    key = rng.torch_rng(setup.seed, "init")
    server, memory = call("init", setup.method.init, setup.task, setup.population, key)
    placed = setup.federation.placed
    rows = placed({name: leaf[:1] if trees.is_shared(leaf) else leaf for name, leaf in memory.items()})
    return placed(server), {name: leaf.expand(memory[name].shape) for name, leaf in rows.items()}


# From counts of right answers to what is recorded: each client's own, the global model's, those after training.

COMMON_BATCH = 1024  # samples of the global test set a forward pass of the global model


def scored_sets(setup: Setup, completed: int | None = None) -> tuple[str, ...]:
    """Names of the sets that clients' models are scored on after `completed` rounds; None: all of them."""
    test = setup.protocol.test
    sets = {"global": ("global",), "both": ("local", "global"), "validation": ()}.get(test.sets, ("local",))
    if test.once and completed is not None and completed < setup.protocol.rounds:
        sets = ()
    return (*sets, VALIDATION) if test.val_fraction > 0 else sets


def tallies(setup: Setup, counts: Counts, ids: Tensor) -> dict[str, Tally]:
    """Return counts per client from counts per class [C, K] of clients `ids`, with the protocol's weighting."""
    found: dict[str, Tally] = {}
    for name in scored_sets(setup):
        if name not in counts:
            continue
        correct, total = counts[name]
        if name == "global" and setup.protocol.test.weighting == "label_shares":
            owned = setup.population.label_counts[ids]
            shares = owned / owned.sum(1, keepdim=True)
            found[name] = weighted(correct.numpy(), total.numpy(), shares.numpy())
        else:
            outputs, _ = counts.get(outputs_of(name), (None, None))
            kept = None if outputs is None else outputs[:, : setup.scored.most(name)].numpy()
            found[name] = Tally(correct.sum(1).numpy(), total.sum(1).numpy(), kept)
    return found


def measured(setup: Setup, name: str, tally: Tally, ids: Tensor) -> dict[str, Measured]:
    """The protocol's metrics of scores of the clients `ids` [C] on the set `name`; none if no scores are kept."""
    if tally.outputs is None:
        return {}
    own, scored = name.removeprefix(TRAINED), setup.scored
    if own == COMMON:  # which is scored in every modality's view of the samples
        labels = [np.tile(scored.labels("global", 0), len(setup.modalities))]
    else:
        labels = [scored.labels(own, client) for client in ids.tolist()]
    tested = [y if total else y[:0] for y, total in zip(labels, tally.total, strict=True)]
    outputs = [each[: len(y)] for each, y in zip(tally.outputs, tested, strict=True)]
    if setup.task.regresses:
        outputs = [setup.federation.in_units(each) for each in outputs]
    return measure(setup.protocol.of_scores, outputs, tested)


@torch.no_grad()
def common_tally(setup: Setup, model: Tree, clock: Clock) -> Tally:
    """The global model at `clock` on the global test set, in every modality's view of it.

    Raises:
        Diverged: its scores are not finite.
    """
    correct, total = (torch.zeros(1, setup.task.classes, dtype=torch.float64) for _ in range(2))
    kept = []
    for modality in setup.modalities:
        for indices in modality.federation.global_test.split(COMMON_BATCH):
            x, y = modality.federation.gather(indices)
            scores = modality.task.apply(model, x)
            counts = count_correct(scores, y, modality.task.classes)
            correct, total = (one + each.cpu() for one, each in zip((correct, total), counts, strict=True))
            kept += [scores.cpu()] if setup.keeps_scores else []
    if total.isnan().any():
        raise diverged(clock.round, "the server", "the global model's scores are")
    outputs = torch.cat(kept).unsqueeze(0).numpy() if kept else None
    return Tally(correct.sum(1).numpy(), total.sum(1).numpy(), outputs)


def latest(known: Mapping[str, Tally], fresh: Mapping[str, Tally], ids: Tensor, clients: int) -> dict[str, Tally]:
    """Return scores after training of all `clients`: `fresh` ones of `ids`, and the `known` ones of the others."""
    merged: dict[str, Tally] = {}
    for name, tally in fresh.items():
        parts = {part: getattr(tally, part) for part in PARTS if getattr(tally, part) is not None}
        places = {part: np.zeros((clients, *each.shape[1:]), each.dtype) for part, each in parts.items()}
        for part, values in parts.items():
            places[part][ids.numpy()] = values
        merged[name] = Tally(**places).or_else(known[name]) if name in known else Tally(**places)
    return merged


def competing(trained: Mapping[str, Tally], received: Mapping[str, Tally]) -> dict[str, Tally]:
    """Return scores after training, under their own names, for a record that also has those as `received`.

    A client that has not trained yet counts with its model as received.
    """
    return {TRAINED + name: tally.or_else(received[name]) for name, tally in trained.items()}


# The state of a simulation, and the same as one tree and JSON-able meta: what a checkpoint holds.


@dataclass(eq=False)
class State:
    """All that a round changes, and all that a checkpoint holds."""

    server: Tree
    memory: ClientMemory
    optimizers: ClientMemory  # like `memory`, the state that clients' optimisers keep between rounds
    round: int = 0  # rounds completed
    bytes_up: int = 0
    bytes_down: int = 0
    prepared: tuple[int, int] = (0, 0)  # bytes up and down of the method's preparation, included in the above
    seconds: dict[str, float] = field(default_factory=dict)
    scores: dict[str, Tally] = field(default_factory=dict)  # latest score of each client after training
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    history: History = field(default_factory=History)
    trained: Sources = field(default_factory=dict)  # of each client's model after its latest local training; {}: unkept
    scored: Sources = field(default_factory=dict)  # of the models whose numbers would be reported now


def save_state(path: Path, state: State, key: str) -> None:
    """Write a checkpoint of `state` for the run `key`.

    Raises:
        FedbenchError: it cannot be written; the previous one is kept, and whole.
    """
    checkpoint.write_checkpoint(path, *pack(state), key=key)


def load_state(path: Path, key: str, device: torch.device) -> State:
    """The state that `save_state` wrote.

    Raises:
        CheckpointError: missing, damaged, or of another configuration.
    """
    tree, meta = checkpoint.read_checkpoint(path, key=key)
    if not {"clients", "prepared", "leaves"} <= meta.keys():
        raise CheckpointError(f"checkpoint {path} comes from an earlier version; delete it to start again")
    return unpack(tree, meta, device)


def models(state: State) -> Tree:
    """Return the server's state, every client's memory [N, ...], and the sources of the scored models."""
    return trees.join(server=state.server, memory=state.memory, scored=compact(state.scored))


def pack(state: State) -> tuple[Tree, dict[str, Any]]:
    """(tree, meta) of everything in `state`, to the bit."""
    history, history_meta = state.history.state()
    scores = {
        f"{name}/{part}": torch.tensor(getattr(tally, part))
        for name, tally in state.scores.items()
        for part in PARTS
        if getattr(tally, part) is not None
    }
    arrays = {name: torch.from_numpy(array) for name, array in state.arrays.items()}
    memory = state.memory.state()
    optimizers = state.optimizers.state() if state.optimizers else {}
    parts = {"server": state.server, "memory": memory, "optimizers": optimizers, "scores": scores, "arrays": arrays}
    parts |= {"trained": compact(state.trained), "scored": compact(state.scored)}
    tree = {**trees.join(**parts), **history}
    meta = {
        "leaves": list(tree),  # a file sorts them, and a norm over leaves depends on their order in its last bits
        "clients": state.memory.clients,
        "round": state.round,
        "bytes_up": state.bytes_up,
        "bytes_down": state.bytes_down,
        "prepared": state.prepared,
        "seconds": state.seconds,
        "scores": sorted(state.scores),
        "history": history_meta,
    }
    return tree, meta


def unpack(tree: Tree, meta: dict[str, Any], device: torch.device) -> State:
    """The state that `pack` described, models on `device`."""
    tree = {name: tree[name] for name in meta["leaves"]}
    scores, kept, clients = trees.under(tree, "scores"), trees.under(tree, "optimizers"), meta["clients"]
    return State(
        server=trees.map_leaves(lambda leaf: leaf.to(device), trees.under(tree, "server")),
        memory=ClientMemory.restore(trees.part(tree, "memory"), clients, device),
        optimizers=ClientMemory.restore(kept, clients, device) if kept else ClientMemory({}, clients, device),
        round=meta["round"],
        bytes_up=meta["bytes_up"],
        bytes_down=meta["bytes_down"],
        prepared=tuple(meta["prepared"]),
        seconds=dict(meta["seconds"]),
        scores={
            n: Tally(**{part: leaf.numpy() for part, leaf in trees.part(scores, n).items()}) for n in meta["scores"]
        },
        arrays={name: leaf.numpy() for name, leaf in trees.under(tree, "arrays").items()},
        history=History.restore(tree, meta["history"]),
        trained=restored(trees.under(tree, "trained"), clients),
        scored=restored(trees.under(tree, "scored"), clients),
    )


# What each client would be sent now, to be scored.


EVALUATION_CLIENTS = 256  # clients messaged at once when all are scored, ...
EVALUATION_BYTES = 2**30  # ... or fewer, whose memory is not larger than this


def scored_together(setup: Setup, state: State) -> tuple[Tensor, ...]:
    """Return all clients in the groups that get their messages together for scoring: ids [C] each."""
    at_once = EVALUATION_BYTES // max(1, state.memory.row_bytes)
    return tuple(setup.everyone.split(max(1, min(EVALUATION_CLIENTS, at_once))))


@torch.no_grad()
def received(setup: Setup, state: State, ids: Tensor) -> tuple[Tree, Tree]:
    """Return (message, memory), leaves [C, ...], with which the clients `ids` [C] of such a group are scored now."""
    cohort = setup.cohort(ids, Clock(state.round, setup.protocol.rounds), "evaluate")
    return message_to(setup, state, cohort), state.memory.take(ids)


def message_to(setup: Setup, state: State, cohort: Cohort) -> Tree:
    """Return the server's messages to the clients of a cohort [C, ...]."""
    method = setup.method
    return HookCaller(method, cohort.clock, cohort.ids)("send", method.send, state.server, cohort)


class Simulation:
    """One run of one method: `begin` once, then `step` until `done`."""

    def __init__(
        self,
        setup: Setup,
        trainer: Trainer,
        observer: Observer | None = None,
        recorders: Sequence[Recorder] = (),
        *,
        keeps_sources: bool = False,
    ) -> None:
        """`observer` is told of phases and records; `keeps_sources`: of the scored models, see `scored_models`."""
        self.observer = observer or Observer()
        self._phase = ""
        self.setup = setup
        self.trainer = trainer
        self.recorders = recorders
        trainer.tell = self.observer.within
        self.keeps_sources = keeps_sources

    def begin(self) -> State:
        """Initialise and prepare the method, and score it untrained (round 0)."""
        setup = self.setup
        server, memory = initial(setup)
        state = State(server, self._memory(memory), self._memory({}))
        if self.keeps_sources and setup.protocol.report != "mean_last_5":  # of which no one model has the accuracies
            state.trained = nothing_known(setup.federation.clients)
        self.prepare(state)
        state.optimizers = self._memory(self._optimizers(state))
        if setup.protocol.score != "trained":
            self._record(state, self.score(state), float("nan"))
        return state

    def _memory(self, initial: Tree) -> ClientMemory:
        return ClientMemory(initial, self.setup.federation.clients, self.setup.federation.device)

    @torch.no_grad()
    def _optimizers(self, state: State) -> Tree:
        """Return the initial optimiser states [N, ...] of all clients for every stage of any round."""
        setup, method, rounds = self.setup, self.setup.method, self.setup.protocol.rounds
        if setup.protocol.optimizer.state == "fresh":
            return {}
        modalities = setup.task.modality_of(setup.everyone).tolist()
        cohort = setup.cohort(
            torch.tensor([modalities.index(modality) for modality in sorted(set(modalities))]), Clock(0, rounds)
        )
        message, memory = message_to(setup, state, cohort), state.memory.take(cohort.ids)
        leaves: Tree = {}
        for row, client in enumerate(cohort.ids.tolist()):
            view = setup.client(client, trees.row(message, row), trees.row(memory, row), cohort.clock)
            call = HookCaller(method, cohort.clock, [client])
            work = call("start", method.start, call.client_view("start", view))
            for number in range(rounds):
                for place, stage in enumerate(method.stages(setup.protocol.local, Clock(number, rounds))):
                    moving = {name: work[name] for name in moved(stage, work, view.task)}
                    kept = kept_leaves(stage.optimizer_or(setup.protocol.optimizer), moving)
                    leaves |= trees.join(**{str(place): kept})
        return trees.expand(setup.federation.placed(leaves), setup.federation.clients)

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
        # A client that is drawn may not be again before the next scores: it is scored whenever it has trained.
        after_training = setup.protocol.score != "received" and (due or len(ids) < setup.federation.clients)
        message, memory = self._send(state, cohort)
        with self.timed(state.seconds, "train"):
            outcome = self.trainer.train(ids, message, memory, clock, scored_sets(setup) if after_training else ())
        self._receive(state, cohort, outcome)
        state.round += 1
        self._look(state, cohort, message, outcome)
        self.prepare(state)
        if after_training:
            fresh = tallies(setup, outcome.counts, ids)
            state.scores |= latest(state.scores, fresh, ids, setup.federation.clients)
            if state.trained:
                fresh_sources = sources_of(message, memory, clock, len(ids), trained=True)
                state.trained = noted(state.trained, ids, fresh_sources, setup.federation.clients)
        if due:
            scores = {} if setup.protocol.score == "trained" else self.score(state)
            if after_training:
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
            preparation = EnginePreparation(setup, self.trainer, Clock(state.round, setup.protocol.rounds))
            given = state.memory.take(setup.everyone)
            call = HookCaller(method, preparation.clock if state.round else None, ())
            state.server, memory = call("prepare", method.prepare, preparation, state.server, dict(given))
            if not state.round:  # so far a method may choose other leaves
                state.memory = self._memory(memory)
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
            message = message_to(self.setup, state, cohort)
            memory = state.memory.take(cohort.ids) | trees.join(**{KEPT: state.optimizers.take(cohort.ids)})
        state.bytes_down += self.setup.traffic(message, cohort.ids)
        return message, memory

    @torch.no_grad()
    def _receive(self, state: State, cohort: Cohort, outcome: Outcome) -> None:
        """Store the clients' memory, and let the server aggregate the uploads that arrive, if any."""
        arrived = torch.tensor([self.setup.falls_short(client, cohort.clock)[1] for client in cohort.ids.tolist()])
        with self.timed(state.seconds, "server"):
            state.memory.put(cohort.ids, trees.without(outcome.memory, KEPT))
            state.optimizers.put(cohort.ids, trees.under(outcome.memory, KEPT))
            if not arrived.any():
                return
            uploads = outcome.uploads
            if not arrived.all():
                cohort, uploads = cohort.where(arrived, cohort.served), trees.rows(uploads, arrived)
            method = self.setup.method
            call = HookCaller(method, cohort.clock, cohort.ids)
            state.server = call("aggregate", method.aggregate, state.server, uploads, cohort)
        state.bytes_up += self.setup.traffic(uploads, cohort.ids)

    @torch.no_grad()
    def _look(self, state: State, cohort: Cohort, message: Tree, outcome: Outcome) -> None:
        """Let the due recorders add to the run's arrays."""
        due = [each for each in self.recorders if each.due(state.round, self.setup.protocol.rounds)]
        memory = trees.without(outcome.memory, KEPT)
        moment = RoundContext(self.setup, cohort, message, memory, outcome.uploads, state.server)
        for recorder in due:
            state.arrays = recorder.added(state.arrays, moment)

    # ---- scoring

    def _due(self, completed: int) -> bool:
        """Evaluate every `eval_every` rounds, and in the last rounds, which reports may average."""
        protocol = self.setup.protocol
        tail = 5 if protocol.report == "mean_last_5" else 1
        return completed % protocol.eval_every == 0 or completed > protocol.rounds - tail

    @torch.no_grad()
    def score(self, state: State) -> dict[str, Tally]:
        """Score every client's personal model as received, and the global model if there is one."""
        setup = self.setup
        clock = Clock(state.round, setup.protocol.rounds)
        sets = scored_sets(setup, state.round)
        with self.timed(state.seconds, "evaluate"):
            parts = [
                self.trainer.evaluate(ids, *received(setup, state, ids), clock, sets)
                for ids in scored_together(setup, state)
            ]
            counts = {
                name: (torch.cat([p[name][0] for p in parts]), torch.cat([p[name][1] for p in parts]))
                for name in parts[0]
            }
            scores = tallies(setup, counts, setup.everyone)
            if setup.protocol.test.whole and sets != (VALIDATION,):
                method = setup.method
                model = HookCaller(method, clock, ())("common", method.common, state.server, setup.task)
                scores |= {} if model is None else {"common": common_tally(setup, model, clock)}
        return scores

    def _record(self, state: State, scores: dict[str, Tally], loss: float) -> None:
        with self.timed(state.seconds, "evaluate"):
            everyone = self.setup.everyone
            measures = {name: measured(self.setup, name, tally, everyone) for name, tally in scores.items()}
        counts = {name: replace(tally, outputs=None) for name, tally in scores.items()}
        spent = dict(state.seconds)
        record = Record(state.round, counts, state.bytes_up, state.bytes_down, spent, loss, measures)
        state.history.add(record)
        if state.trained:
            self._keep_sources(state)
        self.observer.record(record)

    def _keep_sources(self, state: State) -> None:
        """Note the sources of the models whose numbers would now be reported.

        Models as received after the last round come from the final state and need none; nor does a mean of rounds.
        """
        setup, protocol = self.setup, self.setup.protocol
        last = protocol.report == "last"
        if protocol.report == "mean_last_5" or (last and (protocol.score == "received" or not self.done(state))):
            return
        now, after = reported_now(state.history, protocol.report, protocol.average, per_client=protocol.per_client)
        has_trained = state.trained["round"] >= 0  # others compete with their model as received
        after = has_trained & (after | torch.tensor(protocol.score == "trained"))
        clients, clock = setup.federation.clients, Clock(state.round, protocol.rounds)
        for ids in scored_together(setup, state):
            if protocol.score != "trained" and (chosen := (now & ~after)[ids]).any():
                found = sources_of(*received(setup, state, ids), clock, len(ids), trained=False)
                state.scored = noted(state.scored, ids[chosen], trees.rows(found, chosen), clients)
        chosen = (now & after).nonzero().flatten()
        if len(chosen):
            state.scored = noted(state.scored, chosen, trees.take(state.trained, chosen), clients)

    @contextmanager
    def timed(self, seconds: dict[str, float], phase: str) -> Iterator[None]:
        """Add the time of a block to a phase's seconds."""
        if phase != self._phase:
            self._phase = phase
            self.observer.phase(phase)
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - begin
