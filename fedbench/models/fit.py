"""Whether a network fits its inputs, found out before anything is trained."""

from __future__ import annotations

import torch

from fedbench.core.errors import ConfigError
from fedbench.models.task import Task


def check_input(task: Task, smallest_batch: int) -> None:
    """Run the forward pass of one training step of `task` on zeros, to refuse early what cannot work.

    Raises:
        ConfigError: the network does not fit the input's shape, or batch normalisation meets a single value.
    """
    model = task.init(torch.Generator().manual_seed(0))
    x = torch.zeros(max(1, smallest_batch), *task.shape)
    try:
        logits = task.apply(model, x, train=True)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            f"batch normalisation cannot train on a batch of {smallest_batch} sample; use a model without it, "
            "another batch size, or a partition with larger clients"
        ) from error
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the model does not fit inputs of shape {tuple(task.shape)}: {reason}") from error
    if logits.shape != (len(x), task.classes):
        raise ConfigError(f"the model yields {tuple(logits.shape)}, expected {(len(x), task.classes)}")
