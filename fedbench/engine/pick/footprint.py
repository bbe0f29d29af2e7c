"""How much memory a cohort needs, predicted before the run, and the chunk of clients that fits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fedbench.engine.setup import Setup
from fedbench.engine.train.stacked import StackedTrainer

SHARE = 0.6  # of the free memory that a chunk may take
COPIES = 5  # of a client's model while it trains: weights, gradient, momentum, and two temporaries
ACTIVATION_COPIES = 3  # of every layer's output: itself, its gradient, workspace
CERTAIN = 4  # times the rough estimate: no method needs so much, and predicting takes seconds


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
    """Roughly what training a client within a chunk takes, found in no time: of one model, whatever the method."""
    task = setup.task
    model = sum(leaf.numel() * leaf.element_size() for leaf in task.init(torch.Generator()).values())
    pixels = 4 * torch.Size(task.shape).numel() * setup.protocol.local.batch_size
    activations = activation_bytes(task.fresh(), task.shape, setup.protocol.local.batch_size)
    return COPIES * model + ACTIVATION_COPIES * (activations + pixels)


@dataclass(frozen=True)
class Growth:
    """Bytes of training a cohort with the stacked engine: `fixed`, of a client being trained, of one that was."""

    fixed: int
    training: int
    trained: int

    @classmethod
    def of(cls, setup: Setup) -> Growth:
        """From the predicted peaks of two large clients, alone, together, and one after the other."""
        from fedbench.engine.pick.predict import peak_bytes  # imports half of torch's compiler

        sizes = setup.population.sizes
        short = sizes % setup.protocol.local.batch_size != 0  # the padding of a short batch takes memory too
        first = int((sizes + sizes.max() * short).argmax())
        second = next(int(client) for client in sizes.topk(2).indices if client != first)
        alone = peak_bytes(StackedTrainer(setup, 1), [first])
        together = peak_bytes(StackedTrainer(setup, 2), [first, second])
        apart = peak_bytes(StackedTrainer(setup, 1), [first, second])
        return cls(max(0, 2 * alone - together), max(1, together - alone), max(0, apart - alone))

    def chunk(self, cohort: int, budget: float) -> int:
        """The most clients at once, of `cohort`, that `budget` bytes hold."""
        left = budget - self.fixed - self.trained * cohort
        return max(1, min(cohort, int(left / max(1, self.training - self.trained))))


def fitting_chunk(setup: Setup) -> int:
    """Clients that fit in memory at once: at least one, at most the cohort."""
    cohort = setup.at_once
    budget = SHARE * free_bytes(setup.federation.device)
    rough = client_bytes(setup)
    if cohort == 1 or CERTAIN * cohort * rough <= budget:
        return cohort
    try:
        return Growth.of(setup).chunk(cohort, budget)
    except Exception:  # noqa: BLE001 - hooks that read values end a prediction, which must not end the run
        return max(1, min(cohort, int(budget / rough)))


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


def _container_bytes(folder: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """What this process's container may still take, where it is in one (control groups, version 2).

    Files that the system keeps in memory count as used there, but it gives those up that nobody reads any more.
    """
    try:
        limit, used, stat = (
            (folder / name).read_text(encoding="ascii")
            for name in ("memory.max", "memory.current", "memory.stat")
        )
        cached = next(int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file "))
        return [max(0, int(limit) - int(used) + cached)]
    except (OSError, ValueError, StopIteration):  # no container, or "max": no limit
        return []
