"""Clients that train as rows of one program, and every mini-batch of theirs, padded to a rectangle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedbench.core.transfer import sent
from fedbench.core.trees import Tree
from fedbench.data.federation import Federation
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Drawn


@dataclass(frozen=True)
class Chunk:
    """Clients trained together, first axis C, and what vmap needs to know of their trees."""

    ids: list[int]
    message: Tree  # shared leaves are stored once, without the axis
    memory: Tree
    heard: Tree  # see Client
    dims: dict[str, int | None]  # axis of each message leaf: 0, or None where shared
    sizes: Tensor
    steps: Tensor
    clock: Clock

    def first(self, count: int) -> Chunk:
        """The first `count` clients: views."""
        message = {k: v if self.dims[k] is None else v[:count] for k, v in self.message.items()}
        memory = {k: v[:count] for k, v in self.memory.items()}
        return replace(
            self,
            ids=self.ids[:count],
            message=message,
            memory=memory,
            sizes=self.sizes[:count],
            steps=self.steps[:count],
        )


@dataclass(frozen=True)
class BatchPlan:
    """Every mini-batch of a chunk's stage; S: steps of the client with most, if not more."""

    active: list[int]  # clients that still train at each step that one takes: always the first rows
    full: list[bool]  # whether no active client's batch is short at that step
    indices: Tensor  # int64 [C, S, B] into the data set
    mask: Tensor  # bool [C, S, B]
    noise: Tree  # leaves [C, S, ...]

    @classmethod
    def of(
        cls,
        federation: Federation,
        ids: Sequence[int],
        drawn: Sequence[Drawn],
        steps: int = 0,
        width: int = 0,
    ) -> BatchPlan:
        """What clients `ids` have drawn, in the same order, those with most steps first.

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
        noise = {
            key: sent(_stacked([leaves[key] for _, leaves in drawn], steps), device) for key in drawn[0][1]
        }
        return cls(active, full, indices, sent(mask, device), noise)


def _stacked(leaves: Sequence[Tensor], steps: int) -> Tensor:
    """Leaves [S_k, ...] of clients as one [C, steps, ...], zeros at the end of each."""
    whole = leaves[0].new_zeros(len(leaves), steps, *leaves[0].shape[1:])
    for row, leaf in zip(whole, leaves, strict=True):
        row[: len(leaf)] = leaf
    return whole


def padded(lists: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Ragged index lists as (indices [C, n] padded with the first sample, mask [C, n])."""
    mask = pad_sequence([torch.ones_like(i, dtype=torch.bool) for i in lists], batch_first=True)
    return pad_sequence(list(lists), batch_first=True), mask
