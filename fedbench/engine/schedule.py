"""Mini-batch schedules: which samples a client sees at each local step. Keyed, so the same for every engine."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbench.config.schema import LocalConfig
from fedbench.core.errors import ConfigError
from fedbench.engine.contract import Stage


def local_work(stage: Stage | None, local: LocalConfig) -> tuple[int | None, int | None]:
    """(epochs, iterations) of a stage: its own if it names one, else the protocol's; one of them is None."""
    if stage is not None and stage.iterations is not None:
        return None, stage.iterations
    if stage is not None and stage.epochs is not None:
        return stage.epochs, None
    return (None, local.iterations) if local.iterations is not None else (local.epochs, None)


def batches_an_epoch(size: int, local: LocalConfig) -> int:
    """Number of mini-batches of a client with `size` samples in an epoch.

    Raises:
        ConfigError: short batches are left out, and there is no other.
    """
    if local.drop_last:
        if size < local.batch_size:
            raise ConfigError(
                f"protocol.local.drop_last=true leaves nothing of a client with {size} training samples in batches of "
                f"{local.batch_size}; lower protocol.local.batch_size, or use drop_last=false"
            )
        return size // local.batch_size
    return -(-size // local.batch_size)


def steps(size: int, local: LocalConfig, stage: Stage | None = None) -> int:
    """Number of local steps of a client with `size` samples."""
    epochs, iterations = local_work(stage, local)
    return iterations if iterations is not None else (epochs or 0) * batches_an_epoch(size, local)


def all_steps(sizes: Tensor, local: LocalConfig) -> Tensor:
    """`steps` of clients with `sizes` samples [N], of the protocol's plain local work."""
    epochs, iterations = local_work(None, local)
    if iterations is not None:
        return torch.full_like(sizes, iterations)
    batches = (sizes / local.batch_size).floor() if local.drop_last else (sizes / local.batch_size).ceil()
    return (epochs or 0) * batches


def batches(size: int, local: LocalConfig, stage: Stage, generator: torch.Generator) -> list[Tensor]:
    """Positions (int64, each [<= batch]) of every step: reshuffled each epoch, its last batch short or left out.

    K iterations walk through epochs of the same kind until K steps are done.
    """
    order: list[Tensor] = []
    wanted = steps(size, local, stage)
    while len(order) < wanted:
        epoch = torch.randperm(size, generator=generator).split(local.batch_size)
        order.extend(epoch[: batches_an_epoch(size, local)])
    return order[:wanted]
