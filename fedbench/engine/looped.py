"""The looped engine: one client after another, in this process. The plain loop that every fast path must equal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree, sent
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.hooks import HookCaller
from fedbench.engine.optim import KEPT, Optimizer
from fedbench.engine.schedule import Order
from fedbench.engine.trainer import Counted, Counts, Engine, Outcome, as_outputs, count_correct, outputs_of
from fedbench.models.task import Task

EVALUATION_BATCH = 1024  # samples a forward pass
CONVOLVED_BATCH = 256  # the same for convolutions on a CPU, whose outputs must stay in its cache

KeyT = TypeVar("KeyT")
ScoredPart = tuple[Counted, list[Tensor]]  # counts on some samples; the scores [B, K] of each batch where they are kept


def total(each: Sequence[Counted], entries: int, device: torch.device) -> Counted:
    """Return the sum of several counts; zeros if there are none."""
    correct, tested = (torch.zeros(entries, dtype=torch.float64, device=device) for _ in range(2))
    for hits, seen in each:
        correct += hits
        tested += seen
    return correct, tested


def lay_out(work: Tree, layout: torch.memory_format) -> None:
    """Replace the four-dimensional leaves of `work` by copies in `layout`."""
    for name, leaf in work.items():
        if leaf.dim() == 4:  # contiguous() would leave weights of a single input channel as they are
            work[name] = torch.empty_like(leaf, memory_format=layout).copy_(leaf)


class SharedScores:
    """The last model's scores on the parts of the test set that all clients share, so that they are computed once.

    A part is always scored in the same mini-batches, so results do not depend on the order of clients.
    """

    def __init__(self) -> None:
        self.model: Tree = {}  # kept, so that no other model takes its place in memory
        self.counts: dict[int, ScoredPart] = {}

    def of(self, model: Tree) -> dict[int, ScoredPart]:
        """Return the counts of `model` for the caller to extend: known ones if it is the object of the last call."""
        same = model.keys() == self.model.keys() and all(
            (leaf.data_ptr(), leaf.shape, leaf.stride())
            == (self.model[name].data_ptr(), self.model[name].shape, self.model[name].stride())
            for name, leaf in model.items()
        )
        if not same:
            self.model, self.counts = model, {}
        return self.counts


def stack_counts(each: Sequence[Counts]) -> Counts:
    """Counts of single clients [K] as [C, K]."""
    return {
        name: (torch.stack([one[name][0] for one in each]), torch.stack([one[name][1] for one in each]))
        for name in (each[0] if each else {})
    }


# Bytes of training samples gathered at once: fewer calls, and still in the cache when they are used.
GATHERED_BYTES = 2**22


class LoopedTrainer(Engine):
    """Trains clients one by one with minimal overhead."""

    def dispatch(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()) -> Outcome:
        each = list[Outcome]()
        for client, view in zip(ids.tolist(), self._views(ids, message, memory, clock), strict=True):
            each.append(self.train_one(client, view, score))
            self.tell(len(each) / len(ids))
        return gather(each)

    def dispatch_scoring(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]) -> Counts:
        known, views = SharedScores(), self._views(ids, message, memory, clock)
        each = [self.evaluate_one(client, view, score, known) for client, view in zip(ids.tolist(), views, strict=True)]
        return stack_counts(each)

    def _views(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock) -> Iterator[Client]:
        """Each of the clients `ids` [C] as its hooks see it."""
        on_host = trees.OnHost(message)
        for k, client in enumerate(ids.tolist()):
            rows = trees.row(message, k), trees.row(memory, k), clock, on_host.row(k)
            yield self.setup.client(client, *rows)

    def train_one(self, client: int, view: Client, score: Sequence[str]) -> Outcome:
        """Local work of one client; trees and results without a client axis, not checked yet (see `synchronize`)."""
        method, call = self.setup.method, HookCaller(self.setup.method, view.clock, [client])
        work, view, losses = self._worked(client, view)
        with torch.no_grad():
            upload, kept = call("finish", method.finish, work, call.client_view("finish", view))
        kept = {**kept, **trees.join(**{KEPT: view.optimizers})}
        loss = torch.stack(losses).mean().double() if losses else torch.full_like(view.size, torch.nan).double()
        if not score:
            return Outcome(upload, kept, loss)
        with torch.no_grad():
            model = call("model", method.model, work, call.client_view("model", view))
        return Outcome(upload, kept, loss, call("predict", self.count, client, model, score))

    def _worked(self, client: int, view: Client) -> tuple[Tree, Client, list[Tensor]]:
        """Return (the client's trained work, the client with its optimisers after training, losses of its steps)."""
        setup, method = self.setup, self.setup.method
        call = HookCaller(method, view.clock, [client])
        with torch.no_grad():
            work = trees.clone(call("start", method.start, call.client_view("start", view)))
        stages = call("stages", method.stages, setup.protocol.local, view.clock)
        view = replace(view, optimizers=trees.clone(view.optimizers))  # which move in place
        return work, view, self.descend(client, work, view, stages, "batches")

    def evaluate_one(self, client: int, view: Client, score: Sequence[str], known: SharedScores) -> Counts:
        """Scores of one client's personal model as received; `known` is valid as long as message and memory."""
        call = HookCaller(self.setup.method, view.clock, [client])
        return call("predict", self.count, client, self.received(client, view), score, known)

    @torch.no_grad()
    def received(self, client: int, view: Client) -> Tree:
        """One client's personal model as received."""
        setup, method = self.setup, self.setup.method
        call = HookCaller(method, view.clock, [client])
        stages = call("adapt", method.adapt, setup.protocol.local, view.clock)
        if not stages:
            return call("personal", method.personal, call.client_view("personal", view))
        work = trees.clone(call("start", method.start, call.client_view("start", view)))
        self.descend(client, work, view, stages, "adapt")
        return call("model", method.model, work, call.client_view("model", view))

    @torch.no_grad()
    def trained(self, client: int, view: Client) -> Tree:
        """One client's model after its local training."""
        method, call = self.setup.method, HookCaller(self.setup.method, view.clock, [client])
        work, view, _ = self._worked(client, view)
        return call("model", method.model, work, call.client_view("model", view))

    @torch.enable_grad()
    def descend(self, client: int, work: Tree, view: Client, stages: Sequence[Stage], purpose: str) -> list[Tensor]:
        """Train `work` and `view.optimizers` in place through `stages`; return the loss of every step that has one."""
        losses: list[Tensor] = []
        lay_out(work, self.filters)
        owned = self.setup.federation.indices("train", client)
        call = HookCaller(self.setup.method, view.clock, [client])
        seen = call.client_view("loss", view)
        for place, stage in enumerate(stages):
            hook = stage.hook
            order, noise = self.setup.source(self.setup, client, stage, view, purpose)
            moves = moved(stage, work, view.task)
            config = stage.optimizer_or(self.setup.protocol.optimizer)
            kept = trees.under(view.optimizers, str(place))
            optimizer = Optimizer(config, {name: work[name] for name in moves}, kept=kept)
            rates, now = self.setup.scheduled_rates(client, stage, view.clock, purpose), seen
            for step, batch in enumerate(self._batches(owned, order, noise)):
                if rates:
                    optimizer.lr, now = float(rates["own"][step]), replace(seen, lr=float(rates["plain"][step]))
                loss = call(hook, step_once, stage, work, moves, now, batch, optimizer)
                losses.extend(() if loss is None else (loss,))
        lay_out(work, torch.contiguous_format)
        return losses

    def _batches(self, owned: Tensor, order: Order, noise: Tree) -> Iterator[Batch]:
        """Yield the batch of each local step of a client with samples `owned`, some of them gathered at once."""
        federation = self.setup.federation
        noise = {name: sent(leaf, federation.device) for name, leaf in noise.items()}
        for begin in range(0, len(order), self.gathered_batches):
            block = order.cut(begin, begin + self.gathered_batches)
            x, y = federation.gather(owned[sent(block.positions, owned.device)])
            for step, (inputs, labels) in enumerate(
                zip(x.split(block.sizes), y.split(block.sizes), strict=True), start=begin
            ):
                drawn = trees.row(noise, step)
                inputs, drawn = self.setup.augmented(inputs, drawn)
                yield Batch(inputs, labels, None, drawn)

    @cached_property
    def gathered_batches(self) -> int:
        """Mini-batches whose samples are gathered at once."""
        federation = self.setup.federation
        sample = math.prod(federation.shape) * federation.dtype.itemsize
        return max(1, GATHERED_BYTES // (sample * self.setup.protocol.local.batch_size))

    # ---- scoring

    @property
    def filters(self) -> torch.memory_format:
        """The layout of convolution weights during training.

        On a CPU convolutions and pooling run up to 1.5 times as fast with channels last; networks with batch
        normalisation do not gain, and ResNet-18 loses.
        """
        fast = self.setup.federation.device.type == "cpu" and not self.setup.task.buffers
        return torch.channels_last if fast else torch.contiguous_format

    @torch.no_grad()
    def count(self, client: int, model: Tree, score: Sequence[str], known: SharedScores | None = None) -> Counts:
        """Return (correct, total) per class of `model` on each set in `score`, float64 [K], and the scores to keep."""
        setup = self.setup
        counts: dict[int, ScoredPart] = {} if known is None else known.of(model)
        parts = self.setup.scored.parts_of(client) if "global" in score else []
        wanted: dict[str | int, Tensor] = {
            name: self.setup.scored.indices(name, client) for name in score if name != "global"
        }
        wanted |= {part: self.setup.scored.parts[part] for part in parts if part not in counts}
        found = self._count(model, wanted) if wanted else {}
        counts |= {part: found[part] for part in parts if part in found}
        result: Counts = {}
        for name in score:
            each = [counts[part] for part in parts] if name == "global" else [found[name]]
            result[name] = total([one for one, _ in each], setup.task.classes, setup.federation.device)
            if setup.keeps_scores:
                shape, data = (0, setup.task.classes), setup.federation
                nothing = torch.zeros(shape, dtype=data.dtype, device=data.device)
                scores = torch.cat([nothing, *(batch for _, batches in each for batch in batches)])
                result[outputs_of(name)] = as_outputs(scores, setup.scored.most(name))
        return result

    def _count(self, model: Tree, sets: Mapping[KeyT, Tensor]) -> dict[KeyT, ScoredPart]:
        """Counts of `model` on each of several sets of samples, given by their indices."""
        federation, task, method = self.setup.federation, self.setup.task, self.setup.method
        model, at_once = self._laid_out(model)
        counts: dict[KeyT, ScoredPart] = {}
        for name, samples in sets.items():
            each: list[Counted] = []
            kept: list[Tensor] = []
            for indices in samples.split(at_once) if len(samples) else ():
                x, y = federation.gather(indices)
                scores = method.predict(model, x, task)
                each.append(count_correct(scores, y, task.classes))
                kept += [scores] if self.setup.keeps_scores else []
            counts[name] = total(each, task.classes, federation.device), kept
        return counts

    @torch.no_grad()
    def predict(self, model: Tree, x: Tensor) -> Tensor:
        """Return the method's scores [n, K] with `model` for normalised samples x [n, ...]."""
        model, at_once = self._laid_out(model)
        method, task = self.setup.method, self.setup.task
        if not len(x):
            return x.new_zeros(0, task.classes)
        return torch.cat([method.predict(model, part, task) for part in x.split(at_once)])

    def _laid_out(self, model: Tree) -> tuple[Tree, int]:
        """Return (`model` with its leaves in the layout for scoring, number of samples of a forward pass)."""
        model = dict(model)
        lay_out(model, self.filters)
        convolves = any(leaf.dim() == 4 for leaf in model.values())
        on_cpu = self.setup.federation.device.type == "cpu"
        return model, CONVOLVED_BATCH if convolves and on_cpu else EVALUATION_BATCH


def moved(stage: Stage, work: Tree, task: Task) -> list[str]:
    """Names of the leaves that the optimiser moves in `stage`: selected, floating point, no statistics."""
    fixed = set(task.select(work, stage.fixed))
    return [
        name
        for name in task.select(work, stage.moves)
        if name not in fixed and work[name].is_floating_point() and not task.is_buffer(name)
    ]


def step_once(
    stage: Stage, work: Tree, moves: Sequence[str], view: Client, batch: Batch, optimizer: Optimizer
) -> Tensor | None:
    """Make one optimiser step on `work` in place; return the loss, if the stage has one."""
    if stage.direction is not None:
        directions = stage.direction(work, view, batch)
        for name in directions.keys() - set(moves):
            work[name].copy_(directions[name].detach())
        optimizer.step([directions[name].detach() for name in moves])
        return None
    assert stage.loss is not None
    params = [work[name].requires_grad_(True) for name in moves]
    loss = stage.loss(work, view, batch)
    grads = torch.autograd.grad(loss, params, allow_unused=True) if params else ()
    for leaf in params:
        leaf.requires_grad_(False)
    optimizer.step([torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)])
    return loss.detach()


def gather(each: Sequence[Outcome]) -> Outcome:
    """Join outcomes of single clients into one with a client axis."""
    return Outcome(
        trees.stack([one.uploads for one in each]),
        trees.stack([one.memory for one in each]),
        torch.stack([one.loss for one in each]),
        stack_counts([one.counts for one in each]),
    )
