"""Schedules: which clients train in a round, and which samples a client sees at each local step.

They are keyed, so they are the same for every engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.config.schema import LocalConfig, WorkConfig
from fedbench.core.errors import ConfigError
from fedbench.core.rng import torch_rng
from fedbench.engine.contract import Clock, Stage

SHUFFLED = 10_000  # clients among whom a cohort is drawn by shuffling all; among more, its cost must not grow with them


def cohort(seed: int, clock: Clock, clients: int, size: int) -> Tensor:
    """Ids of `size` of a run's clients, sorted, drawn without replacement; a function of (seed, round) alone."""
    if size == clients:
        return torch.arange(clients)
    generator = torch_rng(seed, "cohort", clock.round)
    if clients > SHUFFLED and size <= clients // 2:
        return _distinct(clients, size, generator)
    return torch.randperm(clients, generator=generator)[:size].sort().values


def _distinct(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Return `size` sorted numbers below `count`: the first distinct random draws, so all sets are equally likely."""
    chosen: dict[int, None] = {}
    while len(chosen) < size:
        chosen.update(dict.fromkeys(torch.randint(count, (size,), generator=generator).tolist()))
    return torch.tensor(sorted(list(chosen)[:size]))


def local_work(stage: Stage | None, local: LocalConfig) -> tuple[int | None, int | None]:
    """Return (epochs, iterations) of a stage: its own if it has one, else the protocol's; one of them is None."""
    if stage is not None and stage.iterations is not None:
        return None, stage.iterations
    if stage is not None and stage.epochs is not None:
        return stage.epochs, None
    return (None, local.iterations) if local.iterations is not None else (local.epochs, None)


def fallen_short(work: WorkConfig, seed: int, number: int, client: int) -> tuple[float, bool]:
    """Return (share of its steps that a client does in round `number`, whether its upload arrives)."""
    if work.partial == work.dropout == 0:
        return 1.0, True
    stops, lost = torch.rand(2, generator=torch_rng(seed, "work", number, client), dtype=torch.float64).tolist()
    return work.fraction if stops < work.partial else 1.0, lost >= work.dropout


def part_of(count: int, share: float) -> int:
    """Return `share` of `count` steps, rounded up."""
    return math.ceil(share * count - 1e-9)


def batches_an_epoch(size: int, local: LocalConfig) -> int:
    """Number of mini-batches of a client with `size` samples in an epoch.

    Raises:
        ConfigError: short batches are left out, and the client has no other batch.
    """
    if local.drop_last:
        if size < local.batch_size:
            raise ConfigError(
                f"protocol.local.drop_last=true leaves no batch to a client with {size} training samples in batches of "
                f"{local.batch_size}; lower protocol.local.batch_size, or use drop_last=false"
            )
        return size // local.batch_size
    return -(-size // local.batch_size)


def steps(size: int, local: LocalConfig, stage: Stage | None = None) -> int:
    """Number of local steps of a client with `size` samples."""
    epochs, iterations = local_work(stage, local)
    return iterations if iterations is not None else (epochs or 0) * batches_an_epoch(size, local)


def all_steps(sizes: Tensor, local: LocalConfig) -> Tensor:
    """Return `steps` of the protocol's plain local work for clients with `sizes` samples [N]."""
    epochs, iterations = local_work(None, local)
    if iterations is not None:
        return torch.full_like(sizes, iterations)
    batches = (sizes / local.batch_size).floor() if local.drop_last else (sizes / local.batch_size).ceil()
    return (epochs or 0) * batches


@dataclass(frozen=True)
class Order:
    """The mini-batches of S local steps; iteration gives positions (int64 [<= batch]) among a client's samples.

    It is one tensor: the host draws it for every step of every client, and it is cut where it is used.
    """

    positions: Tensor  # int64 [sum of sizes], step after step
    sizes: list[int]  # of each step's mini-batch

    def __len__(self) -> int:
        """S."""
        return len(self.sizes)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.positions.split(self.sizes))

    def cut(self, begin: int, end: int) -> Order:
        """Return the steps from `begin` to before `end`, as far as they exist."""
        first = sum(self.sizes[:begin])
        sizes = self.sizes[begin:end]
        return Order(self.positions[first : first + sum(sizes)], sizes)


def batches(size: int, local: LocalConfig, stage: Stage, generator: torch.Generator, share: float = 1.0) -> Order:
    """Return the mini-batches of `size` samples, reshuffled in each epoch, whose last batch is short or left out.

    K iterations walk through epochs of the same kind until K steps are done; or `share` of all, the first ones.
    """
    wanted = part_of(steps(size, local, stage), share)
    epoch = [min(local.batch_size, size - k * local.batch_size) for k in range(batches_an_epoch(size, local))]
    shuffled, sizes = [torch.empty(0, dtype=torch.int64)], list[int]()
    while len(sizes) < wanted:
        shuffled.append(torch.randperm(size, generator=generator)[: sum(epoch)])
        sizes += epoch
    return Order(torch.cat(shuffled), sizes).cut(0, wanted)
