"""How much memory a cohort needs, predicted before the run, and the chunk of clients that fits."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn

from fedbench.engine.setup import Setup

SHARE = 0.6  # of the free memory that a chunk may take
COPIES = 5  # of a client's model while it trains: weights, gradient, momentum, and two temporaries
ACTIVATION_COPIES = 3  # of every layer's output: itself, its gradient, workspace


def activation_bytes(net: nn.Module, shape: tuple[int, ...], batch: int) -> int:
    """Bytes of all layer outputs of one forward pass on `batch` inputs, found by running it on no data."""
    total = 0

    def count(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        nonlocal total
        total += output.numel() * output.element_size()

    hooks = [m.register_forward_hook(count) for m in net.modules() if not list(m.children())]
    net.to("meta")(torch.zeros(batch, *shape, device="meta"))
    for hook in hooks:
        hook.remove()
    return total


def client_bytes(setup: Setup) -> int:
    """Predicted peak bytes of one client's training within a chunk."""
    task = setup.task
    model = sum(leaf.numel() * leaf.element_size() for leaf in task.init(torch.Generator()).values())
    pixels = 4 * torch.Size(task.shape).numel() * setup.protocol.local.batch_size
    activations = activation_bytes(task.fresh(), task.shape, setup.protocol.local.batch_size)
    return COPIES * model + ACTIVATION_COPIES * (activations + pixels)


def free_bytes(device: torch.device) -> int:
    """Memory that is free on `device` now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # no Linux: what is free without giving up any cached file
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return min([1024 * available, *_container_bytes()])


def _container_bytes() -> list[int]:
    """What this process's container may still take, where it is in one (control groups, version 2)."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = (
            (folder / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current")
        )
        return [max(0, int(limit) - int(used))]
    except (OSError, ValueError):  # no container, or "max": no limit
        return []


def fitting_chunk(setup: Setup) -> int:
    """Clients that fit in memory at once: at least one, at most the cohort."""
    cohort = setup.protocol.cohort_size(setup.federation.clients)
    budget = SHARE * free_bytes(setup.federation.device)
    return max(1, min(cohort, int(budget / client_bytes(setup))))
