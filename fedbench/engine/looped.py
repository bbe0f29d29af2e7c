"""The looped engine: one client after another, in this process. The plain loop that every fast path must equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedbench.engine import trees
from fedbench.engine.contract import Batch, Client, Clock, Stage
from fedbench.engine.optim import Optimizer
from fedbench.engine.trainer import Counts, Outcome, Trainer, check_finite, count_correct
from fedbench.engine.trees import Tree

EVALUATION_BATCH = 1024  # samples a forward pass in scoring
CONVOLVED_BATCH = 128  # the same for convolutions on a CPU, whose outputs must stay in its cache


class LoopedTrainer(Trainer):
    """Trains clients one by one with minimal overhead."""

    def train(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """See Trainer.train."""
        each = [
            self.train_one(int(i), trees.row(message, k), trees.row(memory, k), clock, score)
            for k, i in enumerate(ids)
        ]
        return gather(each)

    def evaluate(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]
    ) -> Counts:
        """See Trainer.evaluate."""
        known = Known()
        each = [
            self.evaluate_one(int(i), trees.row(message, k), trees.row(memory, k), clock, score, known)
            for k, i in enumerate(ids)
        ]
        return stack_counts(each)

    def train_one(
        self, client: int, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]
    ) -> Outcome:
        """Local work of one client; trees and results without a client axis."""
        setup, method = self.setup, self.setup.method
        view = setup.client(client, message, memory, clock)
        with torch.no_grad():
            work = trees.clone(method.start(view))
        losses = self.descend(client, work, view, method.stages(setup.protocol.local, clock), "batches")
        with torch.no_grad():
            upload, kept = method.finish(work, view)
            counts = self.count(client, method.model(work, view), score)
        loss = float(torch.stack(losses).mean()) if losses else float("nan")
        check_finite(clock, client, loss if losses else 0.0, upload)
        return Outcome(upload, kept, torch.tensor(loss), counts)

    def evaluate_one(
        self, client: int, message: Tree, memory: Tree, clock: Clock, score: Sequence[str], known: Known
    ) -> Counts:
        """Scores of one client's personal model as received; `known` lives as long as message and memory."""
        setup, method = self.setup, self.setup.method
        view = setup.client(client, message, memory, clock)
        stages = method.adapt(setup.protocol.local, clock)
        with torch.no_grad():
            model = method.personal(view) if not stages else {}
            work = trees.clone(method.start(view)) if stages else {}
        if stages:
            self.descend(client, work, view, stages, "adapt")
            with torch.no_grad():
                model = method.model(work, view)
        return self.count(client, model, score, known)

    def descend(
        self, client: int, work: Tree, view: Client, stages: Sequence[Stage], purpose: str
    ) -> list[Tensor]:
        """Train `work` in place through `stages`; returns the loss of every step that had one."""
        losses: list[Tensor] = []
        lay_out(work, self.filters)
        owned = self.setup.federation.indices("train", client)
        for stage in stages:
            order, noise = self.setup.batches(client, stage, view, purpose)
            moves = moved(stage, work, view)
            config = stage.optimizer_or(self.setup.protocol.optimizer)
            optimizer = Optimizer(config, [work[name] for name in moves])
            for step, positions in enumerate(order):
                drawn = {k: v[step].to(owned.device) for k, v in noise.items()}
                x, y, drawn = self.setup.training(owned[positions.to(owned.device)], drawn)
                batch = Batch(x, y, None, drawn)
                loss = step_once(stage, work, moves, view, batch, optimizer)
                losses.extend(() if loss is None else (loss,))
        lay_out(work, torch.contiguous_format)
        return losses

    @property
    def filters(self) -> torch.memory_format:
        """The layout of convolution weights while they are at work.

        On a CPU convolutions and pooling run up to 1.5 times as fast with channels last; networks with batch
        normalisation do not gain, and ResNet-18 loses.
        """
        fast = self.setup.federation.device.type == "cpu" and not self.setup.task.buffers
        return torch.channels_last if fast else torch.contiguous_format

    @torch.no_grad()
    def count(self, client: int, model: Tree, score: Sequence[str], known: Known | None = None) -> Counts:
        """(correct, total) per class of `model` on each set in `score`, float64 [K]."""
        known = Known() if known is None else known
        counts = known.of(model)
        if lacking := [name for name in score if name not in counts]:
            counts |= self._count(client, model, lacking)
        known.remember(model, counts)
        return {name: counts[name] for name in score}

    def _count(self, client: int, model: Tree, score: Sequence[str]) -> Counts:
        federation, task, method = self.setup.federation, self.setup.task, self.setup.method
        counts: Counts = {}
        model = dict(model)
        lay_out(model, self.filters)
        convolves = any(leaf.dim() == 4 for leaf in model.values())
        at_once = CONVOLVED_BATCH if convolves and federation.device.type == "cpu" else EVALUATION_BATCH
        for name in score:
            correct = torch.zeros(task.classes, dtype=torch.float64)
            total = torch.zeros(task.classes, dtype=torch.float64)
            for indices in federation.indices(name, client).split(at_once):
                x, y = federation.gather(indices)
                hits, seen = count_correct(method.predict(model, x, task), y, task.classes)
                correct += hits.cpu()
                total += seen.cpu()
            counts[name] = (correct, total)
        return counts


def lay_out(work: Tree, layout: torch.memory_format) -> None:
    """Put copies of the four-dimensional leaves of `work` into the dictionary, in `layout`."""
    for name, leaf in work.items():
        if (
            leaf.dim() == 4
        ):  # empty_like, as contiguous() leaves weights of a single input channel as they are
            work[name] = torch.empty_like(leaf, memory_format=layout).copy_(leaf)


class Known:
    """What the model scored last got on the set that all clients share; the same model need not be scored again."""

    def __init__(self) -> None:
        self.model: Tree = {}  # kept, so that no other model takes its place in memory
        self.counts: Counts = {}

    def of(self, model: Tree) -> Counts:
        """The counts of `model`, if it is the very one scored last, not a copy."""
        same = model.keys() == self.model.keys() and all(
            (leaf.data_ptr(), leaf.shape, leaf.stride())
            == (self.model[name].data_ptr(), self.model[name].shape, self.model[name].stride())
            for name, leaf in model.items()
        )
        return dict(self.counts) if same else {}

    def remember(self, model: Tree, counts: Counts) -> None:
        """`counts` of `model`, of which those on the global set are kept."""
        self.model, self.counts = model, {k: v for k, v in counts.items() if k == "global"}


def moved(stage: Stage, work: Tree, view: Client) -> list[str]:
    """Names of the leaves the optimiser moves in `stage`: selected, floating point, no statistics."""
    fixed = set(view.task.select(work, stage.fixed))
    return [
        name
        for name in view.task.select(work, stage.moves)
        if name not in fixed and work[name].is_floating_point() and not view.task.is_buffer(name)
    ]


def step_once(
    stage: Stage, work: Tree, moves: Sequence[str], view: Client, batch: Batch, optimizer: Optimizer
) -> Tensor | None:
    """One optimiser step on `work` in place; the loss, where the stage has one."""
    if stage.direction is not None:
        directions = stage.direction(work, view, batch)
        for name in directions.keys() - set(moves):
            work[name].copy_(directions[name].detach())
        optimizer.step([directions[name].detach() for name in moves])
        return None
    if stage.loss is None:
        raise ValueError("a stage needs a loss or a direction")
    params = [work[name].requires_grad_(True) for name in moves]
    loss = stage.loss(work, view, batch)
    grads = torch.autograd.grad(loss, params, allow_unused=True) if params else ()
    for leaf in params:
        leaf.requires_grad_(False)
    optimizer.step([torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)])
    return loss.detach()


def gather(each: Sequence[Outcome]) -> Outcome:
    """Outcomes of single clients as one with a client axis."""
    return Outcome(
        trees.stack([one.uploads for one in each]),
        trees.stack([one.memory for one in each]),
        torch.stack([one.loss for one in each]),
        stack_counts([one.counts for one in each]),
    )


def stack_counts(each: Sequence[Counts]) -> Counts:
    """Counts of single clients [K] as [C, K]."""
    return {
        name: (torch.stack([one[name][0] for one in each]), torch.stack([one[name][1] for one in each]))
        for name in (each[0] if each else {})
    }
