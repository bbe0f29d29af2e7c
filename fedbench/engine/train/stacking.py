"""Clients as rows: a cohort in chunks that memory holds, and hooks of one client applied to all rows of a chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.errors import FedbenchError
from fedbench.core.transfer import sent
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, ClientHook, Clock
from fedbench.engine.hooks import Calls
from fedbench.engine.setup import Setup
from fedbench.engine.train.chunk import Chunk, padded
from fedbench.engine.train.trainer import Engine, Outcome


class Stacking(Engine):
    """The part of a trainer that puts clients into chunks."""

    def __init__(self, setup: Setup, chunk: int) -> None:
        """`chunk`: clients trained at once."""
        super().__init__(setup)
        self.chunk = chunk

    def forget(self) -> None:
        """Give up what is kept from round to round to be faster."""
        return

    def in_chunks(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, run: Callable[[Chunk], Outcome]
    ) -> Outcome:
        """`run` on clients `ids` [C], the largest first, a chunk at a time; the outcome in the order of `ids`."""
        sizes = self.setup.population.sizes[ids]
        order = torch.sort(sizes, descending=True, stable=True).indices
        heard = self.setup.heard(message)

        def run_rows(rows: Tensor) -> Outcome:
            own, kept, known = (trees.take(tree, rows) for tree in (message, memory, heard))
            return run(self._chunk(ids[rows], own, kept, known, clock))

        outcomes = self._fitting(order, run_rows)
        back = torch.argsort(order)

        def merged(parts: Sequence[Tree]) -> Tree:
            return trees.take({k: torch.cat([p[k] for p in parts]) for k in parts[0]}, back)

        def joined(name: str) -> tuple[Tensor, Tensor]:
            pair = merged([dict(zip(("correct", "total"), o.counts[name], strict=True)) for o in outcomes])
            return pair["correct"], pair["total"]

        counts = {name: joined(name) for name in outcomes[0].counts}
        loss = merged([{"loss": o.loss} for o in outcomes])["loss"]
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
            self.forget()
            if self.setup.federation.device.type == "cuda":
                torch.cuda.empty_cache()
        return outcomes

    def _chunk(self, ids: Tensor, message: Tree, memory: Tree, heard: Tree, clock: Clock) -> Chunk:
        device = self.setup.federation.device
        dims: dict[str, int | None] = {k: None if trees.is_shared(v) else 0 for k, v in message.items()}
        return Chunk(
            ids.tolist(),
            {k: sent(v[0] if dims[k] is None else v, device) for k, v in message.items()},
            {k: sent(v, device) for k, v in memory.items()},
            heard,
            dims,
            sent(self.setup.population.sizes[ids].to(torch.float32), device),
            sent(torch.tensor([float(self.setup.steps(i)) for i in ids.tolist()]), device),
            clock,
        )

    def map(
        self, hook: ClientHook, name: str, function: Callable[..., Any], chunk: Chunk, **batched: Any
    ) -> Any:
        """Vmap `function(client, **batched)`, which runs `hook`, known as `name`, over the clients of a chunk."""
        setup, federation, call = self.setup, self.setup.federation, self.calls(chunk)
        train = partial(federation.indices, "train")
        data = self._samples(chunk, train) if hook in setup.method.reads_data else None
        read = hook in setup.method.reads_validation
        held = self._samples(chunk, federation.validation_indices) if read else None

        def one(
            message: Tree,
            memory: Tree,
            size: Tensor,
            steps: Tensor,
            data: Any,
            held: Any,
            batched: dict[str, Any],
        ) -> Any:
            fetches = [None if each is None else partial(Batch, *each) for each in (data, held)]
            client = Client(
                setup.task, chunk.clock, message, memory, size, steps, setup.protocol.optimizer, {}, *fetches
            )
            return function(client, **batched)

        own = {key: None if each is None else 0 for key, each in batched.items()}
        dims = (chunk.dims, 0, 0, 0, *[None if each is None else 0 for each in (data, held)], own)
        inputs = (chunk.message, chunk.memory, chunk.sizes, chunk.steps, data, held)
        return call(name, vmap(one, in_dims=dims), *inputs, batched)

    def calls(self, chunk: Chunk) -> Calls:
        """Calls for all clients of a chunk."""
        return Calls(self.setup.method, chunk.clock, chunk.ids)

    def view(self, chunk: Chunk, row: int) -> Client:
        """One client of the chunk as its hooks see it."""
        message = {k: v if chunk.dims[k] is None else v[row] for k, v in chunk.message.items()}
        rows = message, trees.row(chunk.memory, row), chunk.clock, trees.row(chunk.heard, row)
        return self.setup.client(chunk.ids[row], *rows)

    def _samples(self, chunk: Chunk, owned: Callable[[int], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The samples `owned` by each of the chunk's clients, padded: x [C, n, ...], y [C, n], mask [C, n]."""
        indices, mask = padded([owned(i) for i in chunk.ids])
        x, y = self.setup.federation.gather(indices)
        return x, y, mask
