"""Mini-batch schedules: which samples a client sees at each local step. Keyed, so the same for every engine."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbench.config.schema import LocalConfig
from fedbench.engine.contract import Stage


def local_work(stage: Stage | None, local: LocalConfig) -> tuple[int | None, int | None]:
    """(epochs, iterations) of a stage: its own if it names one, else the protocol's; one of them is None."""
    if stage is not None and stage.iterations is not None:
        return None, stage.iterations
    if stage is not None and stage.epochs is not None:
        return stage.epochs, None
    return (None, local.iterations) if local.iterations is not None else (local.epochs, None)


def steps(size: int, local: LocalConfig, stage: Stage | None = None) -> int:
    """Number of local steps of a client with `size` samples."""
    epochs, iterations = local_work(stage, local)
    return iterations if iterations is not None else (epochs or 0) * -(-size // local.batch_size)


def all_steps(sizes: Tensor, local: LocalConfig) -> Tensor:
    """`steps` of clients with `sizes` samples [N], of the protocol's plain local work."""
    epochs, iterations = local_work(None, local)
    if iterations is not None:
        return torch.full_like(sizes, iterations)
    return (epochs or 0) * (sizes / local.batch_size).ceil()


def batches(size: int, local: LocalConfig, stage: Stage, generator: torch.Generator) -> list[Tensor]:
    """Positions (int64, each [<= batch]) of every step: reshuffled each epoch, the last batch of an epoch short.

    K iterations walk through epochs of the same kind until K steps are done.
    """
    order: list[Tensor] = []
    wanted = steps(size, local, stage)
    while len(order) < wanted:
        order.extend(torch.randperm(size, generator=generator).split(local.batch_size))
    return order[:wanted]
