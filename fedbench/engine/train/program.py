"""A stage of a chunk's local training as a static program: one function, called once a step, of tensors that stay put.

What differs from step to step is read from tensors: the step's number selects the mini-batches, and counts for Adam.
So the same sequence of kernels serves every step with as many rows, and can be captured once (see `replay`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import grad

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Stage
from fedbench.engine.train.chunk import BatchPlan, Chunk
from fedbench.engine.train.looped import moved
from fedbench.engine.train.optim import Optimizer
from fedbench.engine.train.stacking import Stacking

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(eq=False)
class Program:
    """One stage of a chunk. `begin` once, then `step` for every step."""

    stacking: Stacking
    stage: Stage
    chunk: Chunk
    work: Tree  # leaves [C, ...], trained in place
    plan: BatchPlan

    def __post_init__(self) -> None:
        setup, chunk = self.stacking.setup, self.chunk
        self.hook = self.stage.hook
        names_only = Client(
            setup.task, chunk.clock, {}, {}, chunk.sizes[0], chunk.steps[0], setup.protocol.optimizer
        )
        self.moves = moved(self.stage, self.work, names_only)
        self.total = torch.zeros_like(chunk.sizes, dtype=torch.float64)  # [C], losses of all steps so far

    def begin(self) -> Self:
        """At the first step, with an optimiser of its own."""
        self.at = torch.zeros(1, dtype=torch.int64, device=self.total.device)  # the step that comes next
        config = self.stage.optimizer_or(self.stacking.setup.protocol.optimizer)
        self.optimizer = Optimizer(config, [self.work[name] for name in self.moves], axes=1)
        return self

    def run(self) -> None:
        """All steps, each of the clients that are active."""
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
        x, noise = setup.augmented(x, trees.map_leaves(now, self.plan.noise))
        params, rest = trees.split(trees.map_leaves(lambda leaf: leaf[:rows], self.work), self.moves)
        batch = {"x": x, "y": y, "mask": None if full else now(self.plan.mask), "noise": noise}
        grads, others, losses = self.stacking.map(
            "loss", self.hook, self._gradient, self.chunk.first(rows), params=params, rest=rest, **batch
        )
        copy_all({name: rest[name] for name in others}, others)
        self.optimizer.step([grads[name] for name in self.moves], rows)
        self.total[:rows] += losses
        self.at += 1

    def _gradient(
        self, client: Client, params: Tree, rest: Tree, x: Tensor, y: Tensor, mask: Tensor | None, noise: Tree
    ) -> tuple[Tree, Tree, Tensor]:
        """(gradient of the leaves that move, new values of others that changed, loss) of one client's batch."""
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
        return trees.join(
            work=self.work,
            message=chunk.message,
            memory=chunk.memory,
            noise=plan.noise,
            own={"sizes": chunk.sizes, "steps": chunk.steps, "indices": plan.indices, "mask": plan.mask},
        )

    def state(self) -> Tree:
        """What the steps go on from beside the work tree, by name."""
        optimizer = self.optimizer
        leaves = {f"{k}/{n}": leaf for k, each in enumerate(optimizer.moments) for n, leaf in enumerate(each)}
        counts = {} if isinstance(optimizer.count, int) else {"count": optimizer.count}
        return {"at": self.at, "total": self.total, **counts, **trees.join(moments=leaves)}

    def over(self, inputs: Tree, state: Tree | None = None) -> Program:
        """The same program on other tensors; without `state` at its beginning."""
        own = trees.part(inputs, "own")
        message, memory = trees.part(inputs, "message"), trees.part(inputs, "memory")
        chunk = replace(self.chunk, message=message, memory=memory, sizes=own["sizes"], steps=own["steps"])
        plan = replace(self.plan, indices=own["indices"], mask=own["mask"], noise=trees.part(inputs, "noise"))
        other = Program(self.stacking, self.stage, chunk, trees.part(inputs, "work"), plan).begin()
        if state is not None:
            other.at, other.total = state["at"], state["total"]
            other.optimizer.count = state.get("count", 0)
            for k, each in enumerate(other.optimizer.moments):
                each[:] = [state[f"moments/{k}/{n}"] for n in range(len(each))]
        return other


def copy_all(targets: Tree, sources: Tree) -> None:
    """Write `sources` into the leaves of `targets` of the same names; those of one type at once."""
    for dtype in {leaf.dtype for leaf in targets.values()}:
        names = [name for name, leaf in targets.items() if leaf.dtype == dtype]
        torch._foreach_copy_([targets[name] for name in names], [sources[name] for name in names])
