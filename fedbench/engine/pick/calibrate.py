"""How fast an engine trains on this machine: a few steps of a run's own local work are timed, once, and remembered."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedbench.core.cache import cached_arrays
from fedbench.engine import schedule
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.pick.trial import opening
from fedbench.engine.setup import Drawn, Setup, drawn
from fedbench.engine.train.trainer import Trainer

FEW, MORE = 2, 10  # steps of each client and stage that are taken: two lengths tell what a step adds
FORMAT = 4  # raised when what is timed changes


@dataclass(frozen=True)
class Contender:
    """An engine, and how many clients it trains at once."""

    build: Callable[[Setup], Trainer]
    clients: int = 1


class Cut:
    """A source of mini-batches: the first few of each stage, counted as they are and as they would have been."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.planned = self.taken = 0

    def __call__(self, setup: Setup, client: int, stage: Stage, view: Client, purpose: str) -> Drawn:
        """See BatchSource."""
        order, noise = drawn(setup, client, stage, view, purpose)
        self.planned += len(order)
        self.taken += min(self.steps, len(order))
        return order.cut(0, self.steps), {name: leaf[: self.steps] for name, leaf in noise.items()}


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
    """Seconds that a contender takes for a plain local step: its round of a client, over the plain steps in it.

    What happens once a round (start and finish, passes over all data) is timed as it is, a step by what it adds.
    """
    clients = setup.population.sizes.topk(contender.clients).indices
    clock = Clock(0, setup.protocol.rounds)
    message, memory = opening(setup, clients, clock)

    def timed(steps: int) -> tuple[float, Cut]:
        cut = Cut(steps)
        trainer = contender.build(replace(setup, source=cut))
        _wait(setup.federation.device)
        begin = time.perf_counter()
        trainer.train(clients, message, memory, clock)
        _wait(setup.federation.device)
        return time.perf_counter() - begin, cut

    timed(FEW)  # to warm up
    (little, few), (seconds, more) = timed(FEW), timed(MORE)
    if more.taken > few.taken:
        seconds += max(0.0, seconds - little) / (more.taken - few.taken) * (more.planned - more.taken)
    if setup.federation.device.type == "cuda":
        torch.cuda.empty_cache()  # what is free decides how many clients are trained at once
    return seconds / max(1, sum(setup.steps(client) for client in clients.tolist()))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _key(setup: Setup, contenders: Mapping[str, Contender]) -> str:
    """Of the machine and of all that a step's cost depends on."""
    federation, protocol = setup.federation, setup.protocol
    gpu = federation.device.type == "cuda"
    machine = (platform.node(), torch.cuda.get_device_name(federation.device) if gpu else "")
    net = setup.task.fresh()
    what = (
        FORMAT,
        (machine, torch.__version__, torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32),
        sorted((name, each.clients) for name, each in contenders.items()),
        *(["bf16"] if setup.task.bf16 else []),
        (setup.method, str(net), [leaf.shape for leaf in net.state_dict().values()], setup.task.shape),
        (protocol.local, protocol.optimizer, protocol.augment),
        (federation.clients, federation.dtype, setup.at_once, float(setup.population.sizes.max())),
    )
    return f"pace-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}"
