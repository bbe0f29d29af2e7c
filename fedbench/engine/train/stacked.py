"""The stacked engine: the clients of a chunk train as one batched program (vmap over the client axis).

Clients are ragged: short batches are padded and masked, and clients are ordered by size so that those with steps left
are always the first rows. Equal to the looped engine up to rounding (tested).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.transfer import sent
from fedbench.core.trees import Tree
from fedbench.engine import schedule
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.setup import Setup
from fedbench.engine.train.chunk import BatchPlan, Chunk
from fedbench.engine.train.program import Program
from fedbench.engine.train.replay import Capture, Replayed
from fedbench.engine.train.stacked_scorer import StackedScorer
from fedbench.engine.train.trainer import Counts, Outcome


class StackedTrainer(StackedScorer):
    """Trains chunks of clients as rows of one program."""

    def __init__(self, setup: Setup, chunk: int, capture: Capture | None = None) -> None:
        """`chunk`: clients trained at once; `capture`: of steps that are to be replayed, None: none are."""
        super().__init__(setup, chunk)
        gathers = (
            "loss" in setup.method.reads_data | setup.method.reads_validation
        )  # all samples, each round others
        self.capture = None if gathers else capture
        self._replayed: dict[tuple[str, int, int], Replayed] = {}

    def forget(self) -> None:
        """See Stacking.forget: captured programs."""
        self._replayed.clear()

    def launch(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """See Engine.launch."""
        return self.in_chunks(ids, message, memory, clock, lambda chunk: self._train(chunk, score))

    def launch_scoring(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]
    ) -> Counts:
        """See Engine.launch_scoring."""

        def scored(chunk: Chunk) -> Outcome:
            return Outcome({}, {}, torch.zeros(len(chunk.ids)), self._evaluate(chunk, score))

        return self.in_chunks(ids, message, memory, clock, scored).counts

    # ---- training

    def _train(self, chunk: Chunk, score: Sequence[str]) -> Outcome:
        method, call = self.setup.method, self.calls(chunk)
        work = trees.clone(self.map("start", "start", method.start, chunk))
        stages = call("stages", method.stages, self.setup.protocol.local, chunk.clock)
        loss = self._descend(chunk, work, stages, "batches")
        with torch.no_grad():
            uploads, kept = self.map("finish", "finish", _client_last(method.finish), chunk, work=work)
        counts = self._scored(chunk, work, score) if score else {}
        return Outcome(uploads, kept, loss, counts)

    @torch.no_grad()
    def _scored(self, chunk: Chunk, work: Tree, score: Sequence[str]) -> Counts:
        """Scores of the clients' models within `work`."""
        models = self.map("model", "model", _client_last(self.setup.method.model), chunk, work=work)
        return self.calls(chunk)("predict", self.count, chunk, models, score)

    def _descend(self, chunk: Chunk, work: Tree, stages: Sequence[Stage], purpose: str) -> Tensor:
        """Train `work` in place through `stages`; mean loss of each client's steps [C], nan without any."""
        total = torch.zeros_like(chunk.sizes, dtype=torch.float64)
        count = torch.zeros(len(chunk.ids))
        for place, stage in enumerate(stages):
            program = Program(self, stage, chunk, work, self._plan(chunk, stage, purpose))
            if self.capture is None:
                program.run()
            else:
                kind = purpose, place, len(chunk.ids)
                self._replayed.setdefault(kind, Replayed(self.capture)).run(program)
            if stage.direction is None:
                total += program.total
                for active in program.plan.active:
                    count[:active] += 1
        return total / sent(count, total.device)

    def _plan(self, chunk: Chunk, stage: Stage, purpose: str) -> BatchPlan:
        """The mini-batches that the clients of `chunk` draw; to be replayed, with room for any round's."""
        setup = self.setup
        drawn = [
            setup.batches(client, stage, self.view(chunk, row), purpose)
            for row, client in enumerate(chunk.ids)
        ]
        room = (0, 0)
        if self.capture is not None:
            largest = int(setup.population.sizes.max())
            local = setup.protocol.local
            room = schedule.steps(largest, local, stage), min(largest, local.batch_size)
        return BatchPlan.of(setup.federation, chunk.ids, drawn, *room)

    # ---- scoring

    def _evaluate(self, chunk: Chunk, score: Sequence[str]) -> Counts:
        method, call = self.setup.method, self.calls(chunk)
        stages = call("adapt", method.adapt, self.setup.protocol.local, chunk.clock)
        if stages:
            work = trees.clone(self.map("start", "start", method.start, chunk))
            self._descend(chunk, work, stages, "adapt")
            return self._scored(chunk, work, score)
        with torch.no_grad():
            models = self.map("personal", "personal", method.personal, chunk)
        return call("predict", self.count, chunk, models, score)


def _client_last(hook: Callable[[Tree, Client], Any]) -> Callable[[Client, Tree], Any]:
    """A hook on (work, client) as Stacking.map calls it."""
    return lambda client, work: hook(work, client)
