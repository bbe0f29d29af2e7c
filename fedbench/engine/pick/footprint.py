"""How much memory a cohort needs, known before the run, and the chunk of clients that fits."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fedbench.core import trees
from fedbench.engine.contract import Clock
from fedbench.engine.pick.trial import opening
from fedbench.engine.setup import Setup
from fedbench.engine.train.replay import Capture
from fedbench.engine.train.stacked import StackedTrainer

SHARE = 0.6  # of the free memory that a chunk may take
COPIES = 5  # of a client's model while it trains: weights, gradient, momentum, and two temporaries
ACTIVATION_COPIES = 3  # of every layer's output: itself, its gradient, workspace
CERTAIN = 4  # times the rough estimate: no method needs so much
TRIED = 4  # clients that are trained to tell what more would take

log = logging.getLogger("fedbench")

Peak = Callable[[Callable[[], object]], int]  # most bytes that work, which is called, has allocated at once


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
    def of(cls, setup: Setup, peak: Peak, capture: Capture | None = None) -> Growth:
        """From the peaks of a round of a large client alone, and of a few together and one after the other."""
        sizes = setup.population.sizes
        short = sizes % setup.protocol.local.batch_size != 0  # the padding of a short batch takes memory too
        large = (sizes + sizes.max() * short).topk(min(TRIED, setup.at_once)).indices
        clock = Clock(0, setup.protocol.rounds)

        def taken(ids: Tensor, chunk: int) -> int:
            trainer = StackedTrainer(setup, chunk, capture)
            message, memory = opening(setup, ids, clock)
            given = [
                leaf for tree in (message, memory) for leaf in tree.values() if not trees.is_shared(leaf)
            ]
            return sum(map(trees.leaf_bytes, given)) + peak(
                lambda: trainer.train(ids, message, memory, clock)
            )

        alone, more = taken(large[:1], 1), len(large) - 1
        training, trained = ((taken(large, chunk) - alone) // more for chunk in (len(large), 1))
        return cls(max(0, alone - training), max(1, training), max(0, trained))

    def bytes(self, cohort: int, chunk: int) -> int:
        """Of a round of `cohort` clients, `chunk` of them at once."""
        return self.fixed + self.training * chunk + self.trained * (cohort - chunk)

    def chunk(self, cohort: int, budget: float) -> int:
        """The most clients at once, of `cohort`, that `budget` bytes hold."""
        left = budget - self.fixed - self.trained * cohort
        return max(1, min(cohort, int(left / max(1, self.training - self.trained))))


def fitting_chunk(setup: Setup, capture: Capture | None = None) -> int:
    """Clients that fit in memory at once: at least one, at most the cohort; `capture` as the engine is to have it.

    Where the rough estimate is not sure that all do, a GPU is asked: a few clients train there for a round, and what
    they do is thrown away. On a CPU larger chunks gain nothing.
    """
    cohort, device = setup.at_once, setup.federation.device
    budget = SHARE * free_bytes(device)
    sure = max(1, min(cohort, int(budget / (CERTAIN * client_bytes(setup)))))
    if sure == cohort or device.type != "cuda":
        return sure
    try:
        return Growth.of(setup, partial(gpu_peak, device), capture).chunk(cohort, budget)
    except Exception as error:  # noqa: BLE001 - a trial must not end a run, as it may of a method that needs its preparation first
        log.warning("no trial told how many clients fit in memory, %d train at once: %s", sure, error)
        return sure


def gpu_peak(device: torch.device, work: Callable[[], object]) -> int:
    """Most bytes that `work` has allocated on a GPU at once."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before


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
