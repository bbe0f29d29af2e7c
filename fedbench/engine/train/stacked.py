"""The stacked engine: the clients of a chunk train as one batched program (vmap over the client axis).

Clients are ragged: short batches are padded and masked, and clients are ordered by size so that those with steps left
are always the first rows. Equal to the looped engine up to rounding (tested).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.setup import Setup
from fedbench.engine.train.chunk import BatchPlan, Chunk
from fedbench.engine.train.looped import moved
from fedbench.engine.train.optim import Optimizer
from fedbench.engine.train.stacked_scorer import StackedScorer
from fedbench.engine.train.trainer import Counts, Outcome, check_finite


class StackedTrainer(StackedScorer):
    """Trains chunks of clients as rows of one program."""

    def train(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """See Trainer.train."""
        return self.in_chunks(ids, message, memory, clock, lambda chunk: self._train(chunk, score))

    def evaluate(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]
    ) -> Counts:
        """See Trainer.evaluate."""

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
        lossless = all(stage.loss is None for stage in stages)
        for row, client in enumerate(chunk.ids if not self._finite(uploads, loss) else ()):
            check_finite(chunk.clock, client, 0.0 if lossless else float(loss[row]), trees.row(uploads, row))
        counts = self._scored(chunk, work, score) if score else {}
        return Outcome(uploads, kept, loss.cpu(), counts)

    @torch.no_grad()
    def _scored(self, chunk: Chunk, work: Tree, score: Sequence[str]) -> Counts:
        """Scores of the clients' models within `work`."""
        models = self.map("model", "model", _client_last(self.setup.method.model), chunk, work=work)
        return self.calls(chunk)("predict", self.count, chunk, models, score)

    @staticmethod
    def _finite(uploads: Tree, loss: Tensor) -> bool:
        """One check, one synchronisation, for the whole chunk."""
        checks = [torch.isfinite(v).all() for v in uploads.values() if v.is_floating_point()]
        return bool(torch.stack([*checks, torch.isfinite(loss).all()]).all())

    def _descend(self, chunk: Chunk, work: Tree, stages: Sequence[Stage], purpose: str) -> Tensor:
        """Train `work` in place through `stages`; mean loss of each client's steps [C], nan without any."""
        total = torch.zeros(len(chunk.ids), device=chunk.sizes.device)
        count = torch.zeros_like(total)
        setup = self.setup
        for stage in stages:
            hook = stage.hook
            drawn = [
                setup.batches(client, stage, self.view(chunk, row), purpose)
                for row, client in enumerate(chunk.ids)
            ]
            plan = BatchPlan.of(setup.federation, chunk.ids, drawn)
            moves = moved(stage, work, _names_only(setup, chunk))
            config = stage.optimizer_or(setup.protocol.optimizer)
            optimizer = Optimizer(config, [work[n] for n in moves], axes=1)
            for step in range(plan.steps):
                active = plan.active[step]
                losses = self._step(
                    stage, hook, chunk.first(active), work, moves, plan.batch(step), optimizer
                )
                if losses is not None:
                    total[:active] += losses
                    count[:active] += 1
        return total / count

    def _step(
        self,
        stage: Stage,
        hook: str,
        chunk: Chunk,
        work: Tree,
        moves: Sequence[str],
        batch: tuple[Tensor, Tensor | None, Tree],
        optimizer: Optimizer,
    ) -> Tensor | None:
        """One step of the chunk, the first rows of `work`, in place; their losses [A], where the stage has one."""
        active = len(chunk.ids)
        rows = {name: leaf[:active] for name, leaf in work.items()}
        params, rest = trees.split(rows, moves)
        indices, mask, noise = batch
        x, y = self.setup.federation.gather(indices)
        x, noise = self.setup.augmented(x, noise)
        with torch.no_grad():
            gradient = _gradient(self.setup, stage, moves)
            grads, moved_rest, losses = self.map(
                "loss", hook, gradient, chunk, params=params, rest=rest, x=x, y=y, mask=mask, noise=noise
            )
        for name, leaf in moved_rest.items():
            rows[name].copy_(leaf)
        optimizer.step([grads[name] for name in moves], active)
        return losses if stage.direction is None else None

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


def _gradient(setup: Setup, stage: Stage, moves: Sequence[str]) -> Callable[..., tuple[Tree, Tree, Tensor]]:
    """(gradient over `moves`, new values of the other leaves that changed, loss) of one client's batch."""

    def one(
        client: Client, params: Tree, rest: Tree, x: Tensor, y: Tensor, mask: Tensor | None, noise: Tree
    ) -> tuple[Tree, Tree, Tensor]:
        batch = Batch(x, y, mask, noise)
        if stage.direction is not None:
            found = stage.direction({**params, **rest}, client, batch)
            stepped, others = trees.split(found, moves)
            return stepped, others, torch.zeros((), device=x.device)
        loss_of = stage.loss
        assert loss_of is not None

        def objective(params: Tree) -> tuple[Tensor, tuple[Tree, Tensor]]:
            # Running statistics are moved in place by the forward pass, which vmap(grad) allows on fresh tensors only.
            statistics = {k: v.clone() for k, v in rest.items() if setup.task.is_buffer(k)}
            loss = loss_of({**rest, **statistics, **params}, client, batch)
            return loss, (statistics, loss)

        gradient, (statistics, loss) = grad(objective, has_aux=True)(params)
        return gradient, statistics, loss

    return one


def _names_only(setup: Setup, chunk: Chunk) -> Client:
    """A client view for asking about leaf names, which are the same for all clients."""
    first = chunk.sizes[0], chunk.steps[0]
    return Client(setup.task, chunk.clock, {}, {}, *first, setup.protocol.optimizer)
