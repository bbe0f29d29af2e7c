"""Copies between the host and the device: to it without waiting, from it all at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

CPU = torch.device("cpu")


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`. From the CPU it goes by pinned memory: the host need not wait until it is there."""
    if tensor.device.type == "cpu" and device.type != "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """`tensors` on the CPU, those of one device in a single copy, for which the host waits once."""
    away = [tensor for tensor in tensors if tensor.device.type != "cpu"]
    if len(away) < 2:
        return [tensor.to(CPU) for tensor in tensors]
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in away]
    pieces = iter(torch.cat(flat).to(CPU).split([len(piece) for piece in flat]))
    return [
        tensor if tensor.device.type == "cpu" else next(pieces).clone().view(tensor.dtype).view(tensor.shape)
        for tensor in tensors
    ]
