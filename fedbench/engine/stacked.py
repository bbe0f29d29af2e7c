"""The stacked engine: the clients of a chunk train as one batched program (vmap over the client axis).

Clients are ragged: short batches are padded and masked, and clients are ordered by size so that those with steps left
are always the first rows. Equal to the looped engine up to rounding (tested).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.utils.rnn import pad_sequence

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.errors import FedbenchError
from fedbench.core.trees import Tree, sent
from fedbench.data.federation import Federation
from fedbench.engine import graphs, schedule, trainer
from fedbench.engine.contract import Client, ClientHook, Clock, Stage
from fedbench.engine.graphs import Replays, Step
from fedbench.engine.hooks import HookCaller
from fedbench.engine.looped import moved
from fedbench.engine.optim import KEPT, Optimizer
from fedbench.engine.setup import Drawn, Setup
from fedbench.engine.trainer import Counted, Counts, Engine, Outcome, explained

if TYPE_CHECKING:
    from typing_extensions import Self


# Clients that train as rows of one program, and every mini-batch of theirs, padded to a rectangle.

RATES = "rates"  # namespace, in a plan's noise, of the learning rates of each step


@dataclass(frozen=True)
class Chunk:
    """Clients trained together, first axis C, and what vmap needs to know of their trees."""

    ids: list[int]
    message: Tree  # shared leaves are stored once, without the axis
    memory: Tree
    optimizers: Tree  # see Client
    on_host: list[trees.OnHost]  # see Client
    dims: dict[str, int | None]  # axis of each message leaf: 0, or None for a shared leaf
    sizes: Tensor
    steps: Tensor
    rates: Tensor | None  # float64, learning rates by the protocol's schedule; None: it has none
    clock: Clock

    def first(self, count: int) -> Chunk:
        """The first `count` clients: views."""
        message = {k: v if self.dims[k] is None else v[:count] for k, v in self.message.items()}
        memory = {k: v[:count] for k, v in self.memory.items()}
        rates = None if self.rates is None else self.rates[:count]
        rows = {name: getattr(self, name)[:count] for name in ("ids", "sizes", "steps")}
        return replace(self, message=message, memory=memory, rates=rates, **rows)


@dataclass(frozen=True)
class BatchPlan:
    """Every mini-batch of a chunk's stage; S is at least the number of steps of the client with most steps."""

    active: list[int]  # number of clients that still train at each step: always the first rows
    full: list[bool]  # whether no active client's batch is short at that step
    indices: Tensor  # int64 [C, S, B] into the data set
    mask: Tensor  # bool [C, S, B]
    noise: Tree  # leaves [C, S, ...]; under RATES those of Setup.scheduled_rates

    @classmethod
    def of(
        cls,
        federation: Federation,
        ids: Sequence[int],
        drawn: Sequence[Drawn],
        steps: int = 0,
        width: int = 0,
    ) -> BatchPlan:
        """Return the draws of clients `ids`, in that order, with those with most steps first.

        Its tensors have room for `steps` steps of `width` samples at least.
        """
        lengths = [order.sizes for order, _ in drawn]
        steps = max(steps, *map(len, lengths))
        width = max(width, *(length for each in lengths for length in each), 0)
        sizes = torch.tensor([[*each, *[0] * (steps - len(each))] for each in lengths])  # [C, S]
        mask = torch.arange(width) < sizes.unsqueeze(2)
        positions = torch.zeros(mask.shape, dtype=torch.int64)
        positions.masked_scatter_(mask, torch.cat([order.positions for order, _ in drawn]))
        owned, device = federation.sets["train"], federation.device
        indices = owned.values[sent(positions + owned.offsets[list(ids)].view(-1, 1, 1), device)]
        active = [count for count in (sizes > 0).sum(0).tolist() if count]
        full = ((sizes == width) | (sizes == 0)).all(0).tolist()[: len(active)]
        noise = {key: sent(_stacked([leaves[key] for _, leaves in drawn], steps), device) for key in drawn[0][1]}
        return cls(active, full, indices, sent(mask, device), noise)


def _stacked(leaves: Sequence[Tensor], steps: int) -> Tensor:
    """Join clients' leaves [S_k, ...] into [C, steps, ...] with zeros at the end of each."""
    whole = leaves[0].new_zeros(len(leaves), steps, *leaves[0].shape[1:])
    for row, leaf in zip(whole, leaves, strict=True):
        row[: len(leaf)] = leaf
    return whole


def padded(lists: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return ragged index lists as (indices [C, n] padded with the first sample, mask [C, n])."""
    mask = pad_sequence([torch.ones_like(i, dtype=torch.bool) for i in lists], batch_first=True)
    return pad_sequence(list(lists), batch_first=True), mask


# A stage of a chunk's local training as a static program: one function, called once a step, of tensors that stay put.
#
# What differs from step to step is read from tensors: the step's number selects the mini-batches, and counts for
# Adam. So the same sequence of kernels serves every step with as many rows, and can be captured once (see `Replayed`).


@dataclass(eq=False)
class Program:
    """One stage of a chunk. `begin` once, then `step` for every step."""

    stacking: StackedTrainer
    stage: Stage
    chunk: Chunk
    work: Tree  # leaves [C, ...], trained in place
    plan: BatchPlan
    kept: Tree  # the state that its optimiser continues from, leaves [C, ...], changed in place; {}: it begins

    def __post_init__(self) -> None:
        self.hook = self.stage.hook
        self.moves = moved(self.stage, self.work, self.stacking.setup.task)
        self.total = torch.zeros_like(self.chunk.sizes, dtype=torch.float64)  # [C], losses of all steps so far

    def begin(self) -> Self:
        """Set up the first step."""
        self.at = torch.zeros(1, dtype=torch.int64, device=self.total.device)  # the step that comes next
        config = self.stage.optimizer_or(self.stacking.setup.protocol.optimizer)
        self.optimizer = Optimizer(config, {name: self.work[name] for name in self.moves}, axes=1, kept=self.kept)
        return self

    def run(self) -> None:
        """Run all steps, each of the active clients."""
        self.begin()
        for active, full in zip(self.plan.active, self.plan.full, strict=True):
            self.step(active, full=full)

    @torch.no_grad()
    def step(self, rows: int, *, full: bool) -> None:
        """One step of the first `rows` clients, in place; `full`: none of their batches is short."""
        setup = self.stacking.setup

        def now(leaf: Tensor) -> Tensor:
            return leaf[:rows].index_select(1, self.at).squeeze(1)

        x, y = setup.federation.gather(now(self.plan.indices))
        noise, chunk = trees.map_leaves(now, self.plan.noise), self.chunk.first(rows)
        if rates := trees.under(noise, RATES):
            self.optimizer.lr, chunk = rates["own"], replace(chunk, rates=rates["plain"])
        x, noise = setup.augmented(x, trees.without(noise, RATES))
        params, rest = trees.split(trees.map_leaves(lambda leaf: leaf[:rows], self.work), self.moves)
        batch = {"x": x, "y": y, "mask": None if full else now(self.plan.mask), "noise": noise}
        grads, others, losses = self.stacking.map(
            "loss", self.hook, self._gradient, chunk, params=params, rest=rest, **batch
        )
        trees.copy_all({name: rest[name] for name in others}, others)
        self.optimizer.step([grads[name] for name in self.moves], rows)
        self.total[:rows] += losses
        self.at += 1

    def _gradient(
        self, client: Client, params: Tree, rest: Tree, x: Tensor, y: Tensor, mask: Tensor | None, noise: Tree
    ) -> tuple[Tree, Tree, Tensor]:
        """Return (gradient of the moving leaves, new values of other changed leaves, loss) of one client's batch."""
        batch = Batch(x, y, mask, noise)
        if self.stage.direction is not None:
            found = self.stage.direction({**params, **rest}, client, batch)
            return *trees.split(found, self.moves), torch.zeros((), device=x.device)
        loss_of = self.stage.loss
        assert loss_of is not None

        def objective(params: Tree) -> tuple[Tensor, tuple[Tree, Tensor]]:
            # Running statistics are moved in place by the forward pass, which vmap(grad) allows on fresh tensors only.
            statistics = {k: v.clone() for k, v in rest.items() if client.task.is_buffer(k)}
            loss = loss_of({**rest, **statistics, **params}, client, batch)
            return loss, (statistics, loss)

        gradient, (statistics, loss) = grad(objective, has_aux=True)(params)
        return gradient, statistics, loss

    # ---- the tensors

    def inputs(self) -> Tree:
        """All that the steps read or train, by name."""
        chunk, plan = self.chunk, self.plan
        own = {"sizes": chunk.sizes, "steps": chunk.steps, "indices": plan.indices, "mask": plan.mask}
        return trees.join(
            work=self.work,
            kept=self.kept,
            message=chunk.message,
            memory=chunk.memory,
            noise=plan.noise,
            own=own if chunk.rates is None else {**own, "rates": chunk.rates},
        )

    def state(self) -> Tree:
        """All other state that the steps continue from, by name."""
        optimizer = self.optimizer
        if self.kept:
            return {"at": self.at, "total": self.total}
        leaves = {f"{k}/{n}": leaf for k, each in enumerate(optimizer.moments) for n, leaf in enumerate(each)}
        counts = {} if isinstance(optimizer.count, int) else {"count": optimizer.count}
        return {"at": self.at, "total": self.total, **counts, **trees.join(moments=leaves)}

    def over(self, inputs: Tree, state: Tree | None = None) -> Program:
        """Return the same program on other tensors; without `state` it is at its beginning."""
        own = trees.part(inputs, "own")
        message, memory = trees.under(inputs, "message"), trees.under(inputs, "memory")
        sizes, steps, rates = own["sizes"], own["steps"], own.get("rates")
        chunk = replace(self.chunk, message=message, memory=memory, sizes=sizes, steps=steps, rates=rates)
        plan = replace(self.plan, indices=own["indices"], mask=own["mask"], noise=trees.under(inputs, "noise"))
        work, kept = trees.under(inputs, "work"), trees.under(inputs, "kept")
        other = Program(self.stacking, self.stage, chunk, work, plan, kept).begin()
        if state is not None:
            other.at, other.total = state["at"], state["total"]
        if state is not None and not kept:
            other.optimizer.count = state.get("count", 0)
            for k, each in enumerate(other.optimizer.moments):
                each[:] = [state[f"moments/{k}/{n}"] for n in range(len(each))]
        return other


# Programs that are captured once and replayed.
#
# A captured step has fixed addresses and a fixed number of rows. So a program is copied once, tensors and all; every
# round's inputs are copied into it, and what it has trained out of it. Rows come in few sizes: a step of 17 clients
# may run on 20 rows, of which three are of clients that have had all their steps. Their results were taken out after
# the last of these, so that what becomes of the rows no longer matters; rows never mix.

NARROWER = 0.75  # rows of a program, in those of the next larger one

Capture = Callable[[Program, int, bool], Step]
"""(program, rows, full) -> a function that does what `program.step(rows, full=full)` would do."""


class Replayed:
    """A captured stage of chunks of one size, replayed round after round."""

    def __init__(self, capture: Capture, what: str) -> None:
        """`what` names the stage in the warning that it cannot be captured."""
        self._capture = capture
        self._own: Program | None = None
        self._replays = Replays(what)

    def run(self, given: Program) -> None:
        """As `given.run()`, up to rounding."""
        if self._own is None or not _alike(self._own, given):
            self._own = given.over({name: leaf.clone() for name, leaf in given.inputs().items()})
            self._replays.clear()
        own = self._own
        own.chunk = replace(own.chunk, ids=given.chunk.ids, clock=given.chunk.clock)
        trees.copy_all(own.inputs(), given.inputs())
        torch._foreach_zero_(list(own.state().values()))
        active, full = given.plan.active, given.plan.full
        for now, after, whole in zip(active, [*active, 0][1:], full, strict=True):
            self._step(own, rows_for(now, len(given.chunk.ids)), whole)
            if after < now:
                _take_out(own, given, after, now)

    def _step(self, own: Program, rows: int, full: bool) -> None:
        step = partial(own.step, rows, full=full)
        self._replays.run((rows, full), step, lambda: self._captured(own, rows, full))

    def _captured(self, own: Program, rows: int, full: bool) -> Step:
        chunk = own.chunk
        own.chunk = replace(chunk, clock=Unread(0, chunk.clock.rounds))
        try:
            return self._capture(own, rows, full)
        finally:
            own.chunk = chunk


@dataclass(frozen=True)
class Unread(Clock):
    """The clock while a step is captured; a loss must not read it, because later rounds would get the same value."""

    def __getattribute__(self, name: str) -> Any:
        """Return any attribute; `round` raises RuntimeError."""
        if name == "round":
            raise RuntimeError(
                "it reads the round; let `draw` put values that depend on the round into the batch's noise"
            )
        return super().__getattribute__(name)


def rows_for(active: int, clients: int) -> int:
    """Return the program's rows for a step of `active` clients of a chunk, rounded up so that there are few sizes."""
    rows = clients
    while (fewer := int(NARROWER * rows)) >= active:
        rows = fewer
    return rows


def _take_out(own: Program, given: Program, begin: int, end: int) -> None:
    """Copy the trained values of rows `begin` to `end`."""
    totals = {"total": given.total}, {"total": own.total}
    for target, source in (totals, (given.work, own.work), (given.kept, own.kept)):
        trees.copy_all(*({name: leaf[begin:end] for name, leaf in tree.items()} for tree in (target, source)))


def _alike(one: Program, other: Program) -> bool:
    """Whether two programs differ only in the values of their tensors."""
    kinds = [{name: (leaf.shape, leaf.dtype) for name, leaf in each.inputs().items()} for each in (one, other)]
    return kinds[0] == kinds[1] and one.chunk.dims == other.chunk.dims and _same(one.stage, other.stage)


def _same(one: Stage, other: Stage) -> bool:
    """Whether two stages do the same; hooks of equal methods are equal."""

    def bare(stage: Stage) -> Stage:
        return replace(stage, loss=None, direction=None)

    def hooks(stage: Stage) -> list[tuple[object, object]]:
        found = (stage.loss, stage.direction)
        return [(getattr(hook, "__func__", hook), getattr(hook, "__self__", None)) for hook in found]

    return bare(one) == bare(other) and hooks(one) == hooks(other)


def capture_for(device: torch.device) -> Capture | None:
    """Return what captures the steps of programs on `device`; None if steps are not captured there."""
    capture = graphs.capture_for(device)
    return None if capture is None else lambda program, rows, full: capture(partial(program.step, rows, full=full))


EVALUATION_SAMPLES = 8192  # samples a forward pass, over all clients of the chunk


class StackedTrainer(Engine):
    """Trains chunks of clients as rows of one program."""

    def __init__(self, setup: Setup, chunk: int, capture: Capture | None = None) -> None:
        """`chunk`: clients trained at once; `capture` captures steps for replay, None: no capture."""
        super().__init__(setup)
        self.chunk = chunk
        gathers = "loss" in setup.method.reads_data  # all samples, each round others
        self.capture = None if gathers else capture
        self._replayed: dict[tuple[str, int, int], Replayed] = {}

    def forget(self) -> None:
        """Drop the captured programs, which are kept between rounds."""
        self._replayed.clear()

    def dispatch(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()) -> Outcome:
        return self.in_chunks(ids, message, memory, clock, lambda chunk: self._train(chunk, score))

    def dispatch_scoring(self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str]) -> Counts:
        """See Engine.dispatch_scoring."""

        def scored(chunk: Chunk) -> Outcome:
            return Outcome({}, {}, torch.zeros(len(chunk.ids)), self._evaluate(chunk, score))

        return self.in_chunks(ids, message, memory, clock, scored).counts

    # ---- training

    def _train(self, chunk: Chunk, score: Sequence[str]) -> Outcome:
        method, call = self.setup.method, self.calls(chunk)
        work = trees.clone(self.map("start", "start", method.start, chunk))
        stages = call("stages", method.stages, self.setup.protocol.local, chunk.clock)
        chunk = replace(chunk, optimizers=trees.clone(chunk.optimizers))  # which move in place
        loss = self._descend(chunk, work, stages, "batches")
        with torch.no_grad():
            uploads, kept = self.map("finish", "finish", _client_last(method.finish), chunk, work=work)
        counts = self._scored(chunk, work, score) if score else {}
        return Outcome(uploads, {**kept, **trees.join(**{KEPT: chunk.optimizers})}, loss, counts)

    @torch.no_grad()
    def _scored(self, chunk: Chunk, work: Tree, score: Sequence[str]) -> Counts:
        """Scores of the clients' models within `work`."""
        models = self.map("model", "model", _client_last(self.setup.method.model), chunk, work=work)
        return self.calls(chunk)("predict", self.count, chunk, models, score)

    def _descend(self, chunk: Chunk, work: Tree, stages: Sequence[Stage], purpose: str) -> Tensor:
        """Train `work` and `chunk.optimizers` in place; mean loss of each client's steps [C], nan without any."""
        total = torch.zeros_like(chunk.sizes, dtype=torch.float64)
        count = torch.zeros(len(chunk.ids))
        for place, stage in enumerate(stages):
            kept = trees.under(chunk.optimizers, str(place))
            program = Program(self, stage, chunk, work, self._plan(chunk, stage, purpose), kept)
            if self.capture is None:
                program.run()
            else:
                kind = purpose, place, len(chunk.ids)
                what = f"{type(self.setup.method).__name__}.{program.hook}"
                self._replayed.setdefault(kind, Replayed(self.capture, what)).run(program)
            if stage.direction is None:
                total += program.total
                for active in program.plan.active:
                    count[:active] += 1
        return total / sent(count, total.device)

    def _plan(self, chunk: Chunk, stage: Stage, purpose: str) -> BatchPlan:
        """Return the mini-batches that the clients of `chunk` draw; for replay, with room for those of any round."""
        setup = self.setup
        views = ((client, self.view(chunk, row)) for row, client in enumerate(chunk.ids))
        drawn = list[Drawn]()
        for client, view in views:
            order, noise = setup.source(setup, client, stage, view, purpose)
            rates = setup.scheduled_rates(client, stage, chunk.clock, purpose)
            cut = {name: leaf[: len(order)] for name, leaf in rates.items()}
            drawn.append((order, {**noise, **trees.join(**{RATES: cut})}))
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

    # ---- chunks

    def in_chunks(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, run: Callable[[Chunk], Outcome]
    ) -> Outcome:
        """`run` on clients `ids` [C], the largest first, a chunk at a time; the outcome in the order of `ids`.

        Clients that do a part of their steps have separate chunks, so that in each chunk the first have most steps.
        """
        sizes = self.setup.population.sizes[ids]
        order = torch.sort(sizes, descending=True, stable=True).indices
        shares = torch.tensor([self.setup.falls_short(client, clock)[0] for client in ids.tolist()])[order]
        groups = [order[shares == share] for share in shares.unique()]
        on_host = trees.OnHost(message)

        def run_rows(rows: Tensor) -> Outcome:
            own, kept = trees.take(message, rows), trees.take(memory, rows)
            return run(self._chunk(ids[rows], own, kept, [on_host.row(row) for row in rows.tolist()], clock))

        outcomes = [outcome for group in groups for outcome in self._fitting(group, run_rows)]
        back = torch.argsort(torch.cat(groups))

        def merged(parts: Sequence[Tree]) -> Tree:
            return trees.take({k: torch.cat([p[k] for p in parts]) for k in parts[0]}, back)

        def joined(name: str) -> tuple[Tensor, Tensor]:
            pair = merged([dict(zip(("correct", "total"), o.counts[name], strict=True)) for o in outcomes])
            return pair["correct"], pair["total"]

        counts = {name: joined(name) for name in outcomes[0].counts}
        loss = merged([{"loss": o.loss} for o in outcomes])["loss"]
        return Outcome(merged([o.uploads for o in outcomes]), merged([o.memory for o in outcomes]), loss, counts)

    def _fitting(self, order: Tensor, run: Callable[[Tensor], Outcome]) -> list[Outcome]:
        """Call `run` on the rows in `order` by chunks; a chunk too large for memory is halved, and all later ones.

        A chunk's inputs are never written to, so it can be trained again from the start.

        Raises:
            FedbenchError: a single client does not fit.
        """
        outcomes: list[Outcome] = []
        begin = 0
        while begin < len(order):
            try:
                outcomes.append(run(order[begin : begin + self.chunk]))
                self.tell(min(begin + self.chunk, len(order)) / len(order))
            except torch.OutOfMemoryError:
                if self.chunk == 1:
                    raise FedbenchError(
                        "memory is too small to train one client; use a smaller model or "
                        "protocol.local.batch_size, or hardware.device=cpu"
                    ) from None
                self.chunk = min(self.chunk, len(order) - begin) // 2 or 1
            else:
                begin += self.chunk
                continue
            # Outside the handler: the exception held the failed chunk's tensors.
            self.forget()
            if self.setup.federation.device.type == "cuda":
                torch.cuda.empty_cache()
        return outcomes

    def _chunk(self, ids: Tensor, message: Tree, memory: Tree, on_host: list[trees.OnHost], clock: Clock) -> Chunk:
        device = self.setup.federation.device
        dims: dict[str, int | None] = {k: None if trees.is_shared(v) else 0 for k, v in message.items()}
        rates = [self.setup.lr_of(client, clock) for client in ids.tolist()]
        scheduled = self.setup.protocol.optimizer.schedule.moves
        return Chunk(
            ids.tolist(),
            {k: sent(v[0] if dims[k] is None else v, device) for k, v in message.items()},
            {k: sent(v, device) for k, v in trees.without(memory, KEPT).items()},
            {k: sent(v, device) for k, v in trees.under(memory, KEPT).items()},
            on_host,
            dims,
            sent(self.setup.population.sizes[ids].to(torch.float32), device),
            sent(torch.tensor([float(self.setup.steps(i, clock)) for i in ids.tolist()]), device),
            sent(torch.tensor(rates, dtype=torch.float64), device) if scheduled else None,
            clock,
        )

    def map(self, hook: ClientHook, name: str, function: Callable[..., Any], chunk: Chunk, **batched: Any) -> Any:
        """Vmap `function(client, **batched)`, which runs `hook`, known as `name`, over the clients of a chunk."""
        setup, federation, call = self.setup, self.setup.federation, self.calls(chunk)
        train = partial(federation.indices, "train")
        read = hook in setup.method.reads_data
        data = self._samples(chunk, train) if read else None
        validates = read and bool(federation.sets["val"].sizes.any())  # else training samples stand for them
        held = self._samples(chunk, federation.validation_indices) if validates else data

        def one(
            message: Tree,
            memory: Tree,
            size: Tensor,
            steps: Tensor,
            lr: Tensor | None,
            data: Any,
            held: Any,
            batched: dict[str, Any],
        ) -> Any:
            fetch, fetch_held = (None if each is None else partial(Batch, *each) for each in (data, held))
            client = Client(
                setup.task,
                chunk.clock,
                message,
                memory,
                size,
                steps,
                setup.protocol.optimizer,
                setup.protocol.optimizer.lr if lr is None else lr,
                None,
                fetch,
                fetch_held,
            )
            return function(client, **batched)

        own = {key: None if each is None else 0 for key, each in batched.items()}
        dims = (chunk.dims, 0, 0, 0, *[None if each is None else 0 for each in (chunk.rates, data, held)], own)
        inputs = (chunk.message, chunk.memory, chunk.sizes, chunk.steps, chunk.rates, data, held)
        return call(name, vmap(one, in_dims=dims), *inputs, batched)

    def calls(self, chunk: Chunk) -> HookCaller:
        """HookCaller for all clients of a chunk."""
        return HookCaller(self.setup.method, chunk.clock, chunk.ids)

    def view(self, chunk: Chunk, row: int) -> Client:
        """One client of the chunk as its hooks see it."""
        message = {k: v if chunk.dims[k] is None else v[row] for k, v in chunk.message.items()}
        rows = message, trees.row(chunk.memory, row), chunk.clock, chunk.on_host[row]
        return self.setup.client(chunk.ids[row], *rows)

    def _samples(self, chunk: Chunk, owned: Callable[[int], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The samples `owned` by each of the chunk's clients, padded: x [C, n, ...], y [C, n], mask [C, n]."""
        indices, mask = padded([owned(i) for i in chunk.ids])
        x, y = self.setup.federation.gather(indices)
        return x, y, mask

    # ---- counting right answers

    @torch.no_grad()
    def count(self, chunk: Chunk, models: Tree, score: Sequence[str]) -> Counts:
        """(correct, total) per class of every client's model on each set, float64 [C, K]."""
        counts: Counts = {}
        for name in score:
            if name == "global" and all(trees.is_shared(leaf) for leaf in models.values()):
                model = {k: leaf[:1] for k, leaf in models.items()}
                (correct, total), scores = self._count_on([torch.cat(self.setup.scored.parts)], model)
                classes = torch.stack([self.setup.scored.classes(client) for client in chunk.ids])
                classes = sent(classes, correct.device)
                # Not a product: what is left out may be nan.
                counts[name] = (correct.masked_fill(~classes, 0.0), total.masked_fill(~classes, 0.0))
                scores = [each.expand(len(chunk.ids), *each.shape[1:]) for each in scores]
            else:
                samples = [self.setup.scored.indices(name, i) for i in chunk.ids]
                counts[name], scores = self._count_on(samples, models)
            if self.setup.keeps_scores:
                shape, data = (len(chunk.ids), 0, self.setup.task.classes), self.setup.federation
                whole = torch.cat([torch.zeros(shape, dtype=data.dtype, device=data.device), *scores], 1)
                counts[trainer.outputs_of(name)] = trainer.as_outputs(whole, self.setup.scored.most(name))
        return counts

    def _count_on(self, samples: Sequence[Tensor], models: Tree) -> tuple[Counted, list[Tensor]]:
        """Return counts of `models` [C, ...], each on the samples of its own list of indices.

        And, if they are kept, the scores of every block of them [C, w, K], 0 beyond the end of a list.
        """
        task, federation, method = self.setup.task, self.setup.federation, self.setup.method
        indices, mask = padded(samples)
        shape = (len(samples), task.classes)
        correct, total = (torch.zeros(shape, dtype=torch.float64, device=federation.device) for _ in range(2))
        kept: list[Tensor] = []
        if not indices.numel():
            return (correct, total), kept
        width = max(1, EVALUATION_SAMPLES // len(samples))
        for block, real in zip(indices.split(width, 1), mask.split(width, 1), strict=True):
            x, y = federation.gather(block)
            scores = vmap(lambda model, x: method.predict(model, x, task))(models, x)
            if task.regresses:
                points, seen = (each.masked_fill(~real, 0.0).sum(1, keepdim=True) for each in explained(scores, y))
                correct += points
                total += seen
            else:
                hits = scores.argmax(-1) == y
                onehot = torch.nn.functional.one_hot(y, task.classes).bool() & real.unsqueeze(-1)
                right = (onehot & hits.unsqueeze(-1)).sum(1)
                correct += right
                total += trainer.samples(scores).unsqueeze(-1).masked_fill(~onehot, 0.0).sum(1)
            kept += [scores.masked_fill(~real.unsqueeze(-1), 0.0)] if self.setup.keeps_scores else []
        return (correct, total), kept


def _client_last(hook: Callable[[Tree, Client], Any]) -> Callable[[Client, Tree], Any]:
    """A hook on (work, client) as StackedTrainer.map calls it."""
    return lambda client, work: hook(work, client)
