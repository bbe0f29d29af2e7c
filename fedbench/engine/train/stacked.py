"""The stacked engine: the clients of a chunk train as one batched program (vmap over the client axis).

Clients are ragged: short batches are padded and masked, and clients are ordered by size so that those with steps left
are always the first rows. Equal to the looped engine up to rounding (tested).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.errors import FedbenchError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.setup import Setup
from fedbench.engine.train.chunk import BatchPlan, Chunk, padded
from fedbench.engine.train.looped import moved
from fedbench.engine.train.optim import Optimizer
from fedbench.engine.train.trainer import Counted, Counts, Outcome, Trainer, check_finite

EVALUATION_SAMPLES = 8192  # samples a forward pass in scoring, over all clients of the chunk


class StackedTrainer(Trainer):
    """Trains chunks of clients as rows of one program."""

    def __init__(self, setup: Setup, chunk: int) -> None:
        """`chunk`: clients trained at once."""
        super().__init__(setup)
        self.chunk = chunk

    def train(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """See Trainer.train."""
        return self._in_chunks(ids, message, memory, clock, lambda chunk: self._train(chunk, score))

    def evaluate(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]
    ) -> Counts:
        """See Trainer.evaluate."""

        def scored(chunk: Chunk) -> Outcome:
            return Outcome({}, {}, torch.zeros(len(chunk.ids)), self._evaluate(chunk, score))

        return self._in_chunks(ids, message, memory, clock, scored).counts

    # ---- chunks

    def _in_chunks(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, run: Callable[[Chunk], Outcome]
    ) -> Outcome:
        sizes = self.setup.population.sizes[ids]
        order = torch.sort(sizes, descending=True, stable=True).indices

        def run_rows(rows: Tensor) -> Outcome:
            return run(self._chunk(ids[rows], trees.take(message, rows), trees.take(memory, rows), clock))

        outcomes = self._fitting(order, run_rows)
        back = torch.argsort(order)

        def merged(parts: Sequence[Tree]) -> Tree:
            return {k: torch.cat([p[k] for p in parts])[back.to(parts[0][k].device)] for k in parts[0]}

        counts = {
            name: (
                torch.cat([o.counts[name][0] for o in outcomes])[back],
                torch.cat([o.counts[name][1] for o in outcomes])[back],
            )
            for name in outcomes[0].counts
        }
        loss = torch.cat([o.loss for o in outcomes])[back]
        return Outcome(
            merged([o.uploads for o in outcomes]), merged([o.memory for o in outcomes]), loss, counts
        )

    def _fitting(self, order: Tensor, run: Callable[[Tensor], Outcome]) -> list[Outcome]:
        """`run` on the rows in `order`, chunk by chunk; one that memory does not hold is halved, and so are all later.

        A chunk's inputs are never written to, so it can be trained again from the start.

        Raises:
            FedbenchError: a single client does not fit.
        """
        outcomes: list[Outcome] = []
        begin = 0
        while begin < len(order):
            try:
                outcomes.append(run(order[begin : begin + self.chunk]))
            except torch.OutOfMemoryError:
                if self.chunk == 1:
                    raise FedbenchError(
                        "memory does not hold the training of one client; use a smaller model or "
                        "protocol.local.batch_size, or hardware.device=cpu"
                    ) from None
                self.chunk = min(self.chunk, len(order) - begin) // 2 or 1
            else:
                begin += self.chunk
                continue
            # Outside the handler: the exception held the failed chunk's tensors.
            if self.setup.federation.device.type == "cuda":
                torch.cuda.empty_cache()
        return outcomes

    def _chunk(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock) -> Chunk:
        device = self.setup.federation.device
        dims: dict[str, int | None] = {k: None if trees.is_shared(v) else 0 for k, v in message.items()}
        return Chunk(
            ids.tolist(),
            {k: (v[0] if dims[k] is None else v).to(device) for k, v in message.items()},
            {k: v.to(device) for k, v in memory.items()},
            dims,
            self.setup.population.sizes[ids].to(device, torch.float32),
            torch.tensor([float(self.setup.steps(int(i))) for i in ids], device=device),
            clock,
        )

    def _map(self, hook: str, function: Callable[..., Any], chunk: Chunk, *batched: Any) -> Any:
        """Vmap `function(client, *batched)` over the clients; `hook` tells whether client.data is needed."""
        setup, federation = self.setup, self.setup.federation
        train = partial(federation.indices, "train")
        data = self._samples(chunk, train) if hook in setup.method.reads_data else None
        read = hook in setup.method.reads_validation
        held = self._samples(chunk, federation.validation_indices) if read else None

        def one(
            message: Tree, memory: Tree, size: Tensor, steps: Tensor, data: Any, held: Any, *rest: Any
        ) -> Any:
            fetches = [None if each is None else partial(Batch, *each) for each in (data, held)]
            client = Client(
                setup.task, chunk.clock, message, memory, size, steps, setup.protocol.optimizer, *fetches
            )
            return function(client, *rest)

        dims = (chunk.dims, 0, 0, 0, *[None if each is None else 0 for each in (data, held, *batched)])
        inputs = (chunk.message, chunk.memory, chunk.sizes, chunk.steps, data, held)
        return vmap(one, in_dims=dims)(*inputs, *batched)

    def _view(self, chunk: Chunk, row: int) -> Client:
        """One client of the chunk as its hooks see it."""
        message = {k: v if chunk.dims[k] is None else v[row] for k, v in chunk.message.items()}
        return self.setup.client(chunk.ids[row], message, trees.row(chunk.memory, row), chunk.clock)

    def _samples(self, chunk: Chunk, owned: Callable[[int], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The samples `owned` by each of the chunk's clients, padded: x [C, n, ...], y [C, n], mask [C, n]."""
        indices, mask = padded([owned(i) for i in chunk.ids])
        x, y = self.setup.federation.gather(indices)
        return x, y, mask

    # ---- training

    def _train(self, chunk: Chunk, score: Sequence[str]) -> Outcome:
        method = self.setup.method
        work = trees.clone(self._map("start", method.start, chunk))
        loss = self._descend(chunk, work, method.stages(self.setup.protocol.local, chunk.clock), "batches")

        def finish(client: Client, work: Tree) -> tuple[Tree, Tree, Tree]:
            upload, kept = method.finish(work, client)
            return upload, kept, method.model(work, client) if score else {}

        with torch.no_grad():
            uploads, kept, models = self._map("finish", finish, chunk, work)
        for row, client in enumerate(chunk.ids if not self._finite(uploads, loss) else ()):
            one = float(loss[row])
            check_finite(chunk.clock, client, 0.0 if self._lossless(chunk) else one, trees.row(uploads, row))
        return Outcome(uploads, kept, loss.cpu(), self._count(chunk, models, score))

    def _lossless(self, chunk: Chunk) -> bool:
        return all(
            stage.loss is None for stage in self.setup.method.stages(self.setup.protocol.local, chunk.clock)
        )

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
            drawn = [
                setup.batches(client, stage, self._view(chunk, row), purpose)
                for row, client in enumerate(chunk.ids)
            ]
            plan = BatchPlan.of(setup.federation, chunk.ids, drawn)
            moves = moved(stage, work, _names_only(setup, chunk))
            config = stage.optimizer_or(setup.protocol.optimizer)
            optimizer = Optimizer(config, [work[n] for n in moves], axes=1)
            for step in range(plan.steps):
                active = plan.active[step]
                losses = self._step(
                    stage, chunk.first(active), work, moves, plan.batch(step), optimizer, active
                )
                if losses is not None:
                    total[:active] += losses
                    count[:active] += 1
        return total / count

    def _step(
        self,
        stage: Stage,
        chunk: Chunk,
        work: Tree,
        moves: Sequence[str],
        batch: tuple[Tensor, Tensor | None, Tree],
        optimizer: Optimizer,
        active: int,
    ) -> Tensor | None:
        """One step of the first `active` clients, in place; their losses [active], where the stage has one."""
        rows = {name: leaf[:active] for name, leaf in work.items()}
        params, rest = trees.split(rows, moves)
        indices, mask, noise = batch
        x, y = self.setup.federation.gather(indices)
        x, noise = self.setup.augmented(x, noise)
        with torch.no_grad():
            grads, moved_rest, losses = self._map(
                "loss", _gradient(self.setup, stage, moves), chunk, params, rest, x, y, mask, noise
            )
        for name, leaf in moved_rest.items():
            rows[name].copy_(leaf)
        optimizer.step([grads[name] for name in moves], active)
        return losses if stage.direction is None else None

    # ---- scoring

    def _evaluate(self, chunk: Chunk, score: Sequence[str]) -> Counts:
        method = self.setup.method
        stages = method.adapt(self.setup.protocol.local, chunk.clock)
        if not stages:
            with torch.no_grad():
                return self._count(chunk, self._map("personal", method.personal, chunk), score)
        work = trees.clone(self._map("start", method.start, chunk))
        self._descend(chunk, work, stages, "adapt")
        with torch.no_grad():
            models = self._map("model", lambda client, work: method.model(work, client), chunk, work)
        return self._count(chunk, models, score)

    @torch.no_grad()
    def _count(self, chunk: Chunk, models: Tree, score: Sequence[str]) -> Counts:
        """(correct, total) per class of every client's model on each set, float64 [C, K]."""
        counts: Counts = {}
        for name in score:
            if name == "global" and all(trees.is_shared(leaf) for leaf in models.values()):
                model = {k: leaf[:1] for k, leaf in models.items()}
                correct, total = self._count_on([torch.cat(self.setup.scored.parts)], model)
                classes = torch.stack([self.setup.scored.classes(client) for client in chunk.ids])
                counts[name] = (correct * classes, total * classes)
            else:
                counts[name] = self._count_on([self.setup.scored.indices(name, i) for i in chunk.ids], models)
        return counts

    def _count_on(self, samples: Sequence[Tensor], models: Tree) -> Counted:
        """Counts of `models` [C, ...], each on the samples of its own list of indices."""
        task, federation, method = self.setup.task, self.setup.federation, self.setup.method
        indices, mask = padded(samples)
        shape = (len(samples), task.classes)
        correct, total = (torch.zeros(shape, dtype=torch.float64, device=federation.device) for _ in range(2))
        if not indices.numel():
            return correct.cpu(), total.cpu()
        width = max(1, EVALUATION_SAMPLES // len(samples))
        for block, real in zip(indices.split(width, 1), mask.split(width, 1), strict=True):
            x, y = federation.gather(block)
            scores = vmap(lambda model, x: method.predict(model, x, task))(models, x)
            hits = (scores.argmax(-1) == y) & real
            onehot = torch.nn.functional.one_hot(y, task.classes).to(torch.float64)
            correct += (onehot * hits.unsqueeze(-1)).sum(1)
            total += (onehot * real.unsqueeze(-1)).sum(1)
        return correct.cpu(), total.cpu()


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
        if loss_of is None:
            raise ValueError("a stage needs a loss or a direction")

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
