"""Unseen clients (protocol.unseen), which no round draws: their scores at the end of a run.

They take no part in the run. After its last round the method's state gets rows for them, as `init` makes them, and the
server sends to them as to any client. Their rows do not affect what others receive. A server that cannot send to
unknown clients (IndexError) first prepares them, as `prepare` did with the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.errors import Diverged
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock
from fedbench.engine.hooks import NAMED, HookCaller, HookError
from fedbench.engine.looped import LoopedTrainer, SharedScores, stack_counts
from fedbench.engine.preparation import EnginePreparation
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import State, initial, measured, scored_sets, tallies
from fedbench.engine.trainer import Counts, on_host
from fedbench.metrics import Measured, Tally

ADAPTED = (1, 5)  # epochs of local adaptation after which they are scored, besides as received


@dataclass(frozen=True, eq=False)
class Unseen:
    """Scores of the unseen clients by moment (received, 1, 5) and test set, and reasons for missing ones."""

    tallies: Mapping[str, Mapping[str, Tally]] = field(default_factory=dict)
    note: str = ""
    measures: Mapping[str, Mapping[str, Mapping[str, Measured]]] = field(default_factory=dict)  # and by metric


class Newcomers:
    """The unseen clients of `whole`; its other clients are those of `seen`."""

    def __init__(self, whole: Setup, seen: Setup) -> None:
        """Begin the method with all clients, so that it refuses, before training, a client that it cannot serve."""
        self.whole, self.seen = whole, seen
        self.ids = torch.arange(seen.federation.clients, whole.federation.clients)
        self._begun = [dict(zip(("server", "memory"), initial(each), strict=True)) for each in (seen, whole)]

    @torch.no_grad()
    def score(self, state: State) -> Unseen:
        """Score the unseen clients with the looped engine, whichever engine trained the run.

        The score as received is left out if that model depends on state that the client itself would fill: its rows are
        still initial while others' rows moved, and lending it others' rows changes the model. A moment at which a
        client's model has no finite scores is left out too, because the finished run stays valid.
        """
        whole, clock, sets = self.whole, Clock(state.round, self.whole.protocol.rounds), scored_sets(self.whole)
        try:
            joined = self._joined(state, clock)
            own, lent = (self._views(state, clock, joined, lend=lend) for lend in (False, True))
        except HookError as error:
            if not isinstance(error.__cause__, IndexError):
                raise
            return Unseen(note="the server keeps no state for new clients")
        except Diverged as error:
            return Unseen(note=f"the server cannot prepare new clients: {str(error).partition(';')[0]}")
        counts: dict[str, list[Counts]] = {"received": [], **{str(epochs): [] for epochs in ADAPTED}}
        every: set[str] = set()
        lacking: set[str] = set()
        for client, view, other in zip(self.ids.tolist(), own, lent, strict=True):
            modality = whole.modality_of(client)
            call = HookCaller(whole.method, clock, [client])
            model, changed = (
                call("personal", whole.method.personal, call.client_view("personal", each)) for each in (view, other)
            )
            every |= model.keys()
            lacking |= {name for name, leaf in model.items() if not torch.equal(leaf, changed[name])}
            counts["received"].append(LoopedTrainer(modality).evaluate_one(client, view, sets, SharedScores()))
            for epochs in ADAPTED:
                counts[str(epochs)].append(_adapted(modality, client, view, epochs, sets))
        notes = []
        if lacking:
            del counts["received"]
            which = "the model" if lacking == every else ", ".join(sorted(lacking)[:NAMED])
            more = f" and {len(lacking) - NAMED} more leaves" if NAMED < len(lacking) < len(every) else ""
            notes.append(f"no score as received: {which}{more} would depend on state that only trained clients have")
        if given := sorted(set(state.memory) - set(self._begun[1]["memory"])):
            notes.append(f"scored without {', '.join(given[:NAMED])}, which other clients got in the preparation")
        found: dict[str, Mapping[str, Tally]] = {}
        for name, each in counts.items():
            try:
                found[name] = tallies(whole, on_host(stack_counts(each), self.ids, clock), self.ids)
            except Diverged as error:  # noqa: PERF203 - three moments
                notes.append(f"{name}: {str(error).partition(';')[0]}")
        measures = {
            moment: {name: measured(whole, name, tally, self.ids) for name, tally in each.items()}
            for moment, each in found.items()
        }
        return Unseen(found, "; ".join(notes), measures)

    def _joined(self, state: State, clock: Clock) -> Tree:
        """What of the server's state the method's preparation of the unseen clients changes; {} if it needs none."""
        whole, method = self.whole, self.whole.method
        try:
            self._views(state, clock, {}, lend=False)
        except HookError as error:
            if not isinstance(error.__cause__, IndexError):
                raise
        else:
            return {}
        moment = Clock(method.prepare_round, whole.protocol.rounds)
        preparation = EnginePreparation(whole, LoopedTrainer(whole), moment, self.ids)
        server, memory = self._state(state, lend=False)
        server = whole.federation.placed(server)
        found, _ = HookCaller(method, moment, self.ids)("prepare", method.prepare, preparation, server, memory)
        return {name: leaf.cpu() for name, leaf in found.items() if leaf is not server.get(name)}

    def _views(self, state: State, clock: Clock, joined: Tree, *, lend: bool) -> list[Client]:
        """Each unseen client as its hooks see it, with the server's message and the initial memory.

        Where the server's state has their `joined` part, it serves each, and is asked for one after another.
        """
        whole, served, views = self.whole, self.seen.everyone, list[Client]()
        server, memory = self._state(state, lend=lend)
        for ids in self.ids.split(1 if joined else len(self.ids)):
            known = torch.cat([served, ids]) if joined else served
            cohort = replace(whole.cohort(ids, clock, "unseen"), served=known)
            message = HookCaller(whole.method, clock, ids)("send", whole.method.send, {**server, **joined}, cohort)
            placed, on_host = whole.federation.placed(message), trees.OnHost(message)
            views += [
                whole.client(
                    client, trees.row(placed, row), trees.row(memory, len(views) + row), clock, on_host.row(row)
                )
                for row, client in enumerate(ids.tolist())
            ]
        return views

    def _state(self, state: State, *, lend: bool) -> tuple[Tree, Tree]:
        """(the server's state with rows for the unseen clients, their memory [C, ...]), see `_rows`.

        The server's is on the CPU, where a row that is not there raises an error instead of ending the device's work.
        """
        server = {name: self._rows("server", name, leaf.cpu(), lend=lend) for name, leaf in state.server.items()}
        begun = [name for name in self._begun[1]["memory"] if name in state.memory]
        memory = {name: self._rows("memory", name, state.memory[name], lend=lend) for name in begun}
        return server, trees.take(memory, self.ids)

    def _rows(self, side: str, name: str, leaf: Tensor, *, lend: bool) -> Tensor:
        """Return a leaf of the state with a row for each client, or with as many client axes as at the beginning.

        `lend`: unseen clients get the rows of other clients that moved and differ.
        """
        first, fresh = (begun[side][name].to(leaf) if name in begun[side] else leaf for begun in self._begun)
        if first.shape == fresh.shape or leaf.dim() != first.dim():
            return leaf
        if not all(each in (1, size) for each, size in zip(first.shape, leaf.shape, strict=True)):
            return leaf
        axes = [a != b for a, b in zip(first.shape, fresh.shape, strict=True)]
        shape = [b if apart else size for apart, b, size in zip(axes, fresh.shape, leaf.shape, strict=True)]
        rows = fresh.expand(shape).clone()
        rows[tuple(map(slice, leaf.shape))] = leaf
        if lend:
            by_client, seen = rows.movedim(axes.index(True), 0), self.seen.federation.clients
            moved = (leaf != first.expand(leaf.shape)).movedim(axes.index(True), 0).reshape(seen, -1).any(1)
            modality = self.whole.task.modality_of(torch.arange(len(by_client))).to(leaf.device)
            for client in self.ids.tolist():
                other = (by_client[:seen] != by_client[client]).reshape(seen, -1).any(1)
                lenders = (moved & other & (modality[:seen] == modality[client])).nonzero().flatten().tolist()
                if lenders:
                    by_client[client] = by_client[lenders[0]]
        return rows


def _adapted(setup: Setup, client: int, view: Client, epochs: int, score: Sequence[str]) -> Counts:
    """Counts of a client's model after `epochs` of its method's local work, from `start`.

    The work is the fine-tuning before scoring, if the method has one that moves leaves, else its local training.
    Stages that count iterations keep their number.
    """
    method, local, clock = setup.method, setup.protocol.local, view.clock
    own = replace(setup, protocol=replace(setup.protocol, local=replace(local, epochs=epochs, iterations=None)))
    view = replace(view, steps=torch.full_like(view.steps, own.steps(client)))
    trainer, call = LoopedTrainer(own), HookCaller(method, clock, [client])
    tuning = tuple(stage for stage in call("adapt", method.adapt, local, clock) if stage.moves)
    stages = [
        replace(stage, epochs=epochs, iterations=None) if tuning or stage.iterations is None else stage
        for stage in tuning or call("stages", method.stages, local, clock)
    ]
    work = trees.clone(call("start", method.start, call.client_view("start", view)))
    trainer.descend(client, work, view, stages, "unseen")
    model = call("model", method.model, work, call.client_view("model", view))
    return call("predict", trainer.count, client, model, score)
