"""Clients that train as rows of one program, and every mini-batch of theirs, padded to a rectangle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedbench.core.trees import Tree
from fedbench.data.federation import Federation
from fedbench.engine.contract import Clock

Drawn = tuple[
    Sequence[Tensor], Tree
]  # a client's mini-batches, positions among its samples, and noise [S, ...]


@dataclass(frozen=True)
class Chunk:
    """Clients trained together, first axis C, and what vmap needs to know of their trees."""

    ids: list[int]
    message: Tree  # shared leaves are stored once, without the axis
    memory: Tree
    dims: dict[str, int | None]  # axis of each message leaf: 0, or None where shared
    sizes: Tensor
    steps: Tensor
    clock: Clock

    def first(self, count: int) -> Chunk:
        """The first `count` clients: views."""
        message = {k: v if self.dims[k] is None else v[:count] for k, v in self.message.items()}
        memory = {k: v[:count] for k, v in self.memory.items()}
        ids = self.ids[:count]
        return Chunk(ids, message, memory, self.dims, self.sizes[:count], self.steps[:count], self.clock)


@dataclass(frozen=True)
class BatchPlan:
    """Every mini-batch of a chunk's stage."""

    steps: int  # S, of the client with most
    active: list[int]  # [S] clients that still train at a step: always the first rows
    full: list[bool]  # [S] whether no active client's batch is short
    indices: Tensor  # int64 [C, S, B] into the data set
    mask: Tensor  # bool [C, S, B]
    noise: Tree  # leaves [C, S, ...]

    @classmethod
    def of(cls, federation: Federation, ids: Sequence[int], drawn: Sequence[Drawn]) -> BatchPlan:
        """What clients `ids` have drawn, in the same order, those with most steps first."""
        steps = max(len(order) for order, _ in drawn)
        width = max((len(chosen) for order, _ in drawn for chosen in order), default=0)
        positions = torch.zeros(len(drawn), steps, width, dtype=torch.int64)
        mask = torch.zeros(len(drawn), steps, width, dtype=torch.bool)
        for row, (order, _) in enumerate(drawn):
            for step, chosen in enumerate(order):
                positions[row, step, : len(chosen)] = chosen
                mask[row, step, : len(chosen)] = True
        owned = federation.sets["train"]
        indices = owned.values[(positions + owned.offsets[list(ids)].view(-1, 1, 1)).to(federation.device)]
        active = [sum(len(order) > step for order, _ in drawn) for step in range(steps)]
        full = [bool(mask[: active[step], step].all()) for step in range(steps)]
        noise = {
            key: pad_sequence([n[key] for _, n in drawn], batch_first=True).to(federation.device)
            for key in drawn[0][1]
        }
        return cls(steps, active, full, indices, mask.to(federation.device), noise)

    def batch(self, step: int) -> tuple[Tensor, Tensor | None, Tree]:
        """(indices [A, B], mask [A, B] or None, noise [A, ...]) of the clients active at `step`."""
        active = self.active[step]
        mask = None if self.full[step] else self.mask[:active, step]
        noise = {k: v[:active, step] for k, v in self.noise.items()}
        return self.indices[:active, step], mask, noise


def padded(lists: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Ragged index lists as (indices [C, n] padded with the first sample, mask [C, n])."""
    mask = pad_sequence([torch.ones_like(i, dtype=torch.bool) for i in lists], batch_first=True)
    return pad_sequence(list(lists), batch_first=True), mask
