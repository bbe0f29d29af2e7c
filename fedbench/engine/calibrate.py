"""How fast an engine trains on this machine: a few steps of a run's own local work are timed, once, and remembered."""

from __future__ import annotations

import copy
import hashlib
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fedbench.data.cache import cached_arrays
from fedbench.engine import schedule
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.setup import Setup
from fedbench.engine.trainer import Trainer
from fedbench.engine.trees import Tree

STEPS = 3  # of each client and stage that are timed
FORMAT = 1  # raised when what is timed changes


@dataclass(frozen=True)
class Contender:
    """An engine, and how many clients it trains at once."""

    build: Callable[[Setup], Trainer]
    clients: int = 1


class Timed:
    """`Setup.batches` cut to its first steps, and how many there were and are."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.planned = self.taken = 0

    def __call__(
        self, client: int, stage: Stage, view: Client, purpose: str
    ) -> tuple[list[torch.Tensor], Tree]:
        """See Setup.batches."""
        order, noise = self.setup.batches(client, stage, view, purpose)
        self.planned += len(order)
        self.taken += min(STEPS, len(order))
        return order[:STEPS], {name: leaf[:STEPS] for name, leaf in noise.items()}


def pace(setup: Setup, contenders: Mapping[str, Contender]) -> dict[str, float]:
    """Seconds of a plain local step of a client, all that a method does about it included, with each contender.

    The largest clients are trained. Measured on the first call, read from the cache after.

    Raises:
        Diverged: already the first steps do.
    """

    def measure() -> dict[str, NDArray[np.float64]]:
        return {name: np.array(seconds_a_step(setup, each)) for name, each in contenders.items()}

    return {name: float(value) for name, value in cached_arrays(_key(setup, contenders), measure).items()}


def run_steps(setup: Setup) -> float:
    """Plain local steps of the whole run, all clients together, as the cohorts' sizes let expect."""
    steps = schedule.all_steps(setup.population.sizes, setup.protocol.local)
    return float(steps.mean()) * setup.at_once * setup.protocol.rounds


def seconds_a_step(setup: Setup, contender: Contender) -> float:
    """Seconds that a contender takes for a plain local step, after a call to warm up."""
    timed = Timed(setup)
    brief = copy.copy(setup)
    object.__setattr__(brief, "batches", timed)
    clients, clock = (
        setup.population.sizes.topk(contender.clients).indices,
        Clock(0, setup.protocol.rounds),
    )
    train = partial(contender.build(brief).train, clients, *setup.opening(clients, clock), clock)
    train()
    timed.planned = timed.taken = 0
    _wait(setup.federation.device)
    begin = time.perf_counter()
    train()
    _wait(setup.federation.device)
    seconds = time.perf_counter() - begin
    plain = sum(setup.steps(client) for client in clients.tolist())
    return seconds * (timed.planned or 1) / (timed.taken or 1) / max(1, plain)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _key(setup: Setup, contenders: Mapping[str, Contender]) -> str:
    """Of the machine and of all that a step's cost depends on."""
    device = setup.federation.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.node()
    protocol = setup.protocol
    what = (
        FORMAT,
        (name, torch.__version__, torch.get_num_threads()),
        sorted((name, each.clients) for name, each in contenders.items()),
        (setup.method, str(setup.task.fresh()), setup.task.shape),
        (protocol.local, protocol.optimizer, protocol.augment),
        (setup.federation.clients, setup.at_once, float(setup.population.sizes.max())),
    )
    return f"pace-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}"
