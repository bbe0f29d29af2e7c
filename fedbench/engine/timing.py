"""Timing on this machine: a step by each engine, and a convolution by each of its forms."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedbench.core.cache import cached_arrays
from fedbench.engine import schedule
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.setup import Drawn, Setup, drawn, first_round_inputs
from fedbench.engine.trainer import Trainer
from fedbench.models.layers import LOWERINGS, NATIVE, Conv2d
from fedbench.models.task import Task

# How fast an engine trains on this machine: a few steps of a run's own local work are timed, once, and remembered.

FEW, MORE = 2, 10  # steps of each client and stage that are taken: two lengths tell what a step adds
TIMING_FORMAT = 7  # raised when what is timed changes


@dataclass(frozen=True)
class EngineCandidate:
    """An engine, and how many clients it trains at once."""

    build: Callable[[Setup], Trainer]
    clients: int = 1


class TruncatedBatches:
    """A source of the first few mini-batches of each stage, which counts those given and those of a whole stage."""

    def begin(self, steps: int) -> None:
        """Give `steps` mini-batches of each stage from now on, and count anew."""
        self.steps = steps
        self.planned = self.taken = 0

    def __call__(self, setup: Setup, client: int, stage: Stage, view: Client, purpose: str) -> Drawn:
        order, noise = drawn(setup, client, stage, view, purpose)
        self.planned += len(order)
        self.taken += min(self.steps, len(order))
        return order.cut(0, self.steps), {name: leaf[: self.steps] for name, leaf in noise.items()}


def time_engines(setup: Setup, contenders: Mapping[str, EngineCandidate]) -> dict[str, float]:
    """Seconds of a plain local step of a client with each contender, including all other work of the method.

    The largest clients train. The first call measures; later calls read the cache.

    Raises:
        Diverged: the first steps diverge.
    """

    def measure() -> dict[str, NDArray[np.float64]]:
        return {name: np.array(seconds_a_step(setup, each)) for name, each in contenders.items()}

    return {name: float(value) for name, value in cached_arrays(_key(setup, contenders), measure).items()}


def run_steps(setup: Setup) -> float:
    """The expected number of plain local steps of the whole run, of all clients together, from the cohorts' sizes."""
    steps = schedule.all_steps(setup.population.sizes, setup.protocol.local)
    return float(steps.mean()) * setup.at_once * setup.protocol.rounds


def seconds_a_step(setup: Setup, contender: EngineCandidate) -> float:
    """Seconds that a contender takes for a plain local step: its round of a client, over the plain steps in it.

    Work of once a round (start, finish, passes over all data) is timed directly, a step by the time that it adds.
    """
    clients = setup.population.sizes.topk(contender.clients).indices
    # What others do on this core meanwhile must not count: a thread has a clock of its own.
    alone = setup.federation.device.type == "cpu" and torch.get_num_threads() == 1
    now = time.thread_time if alone else time.perf_counter
    clock = Clock(0, setup.protocol.rounds)
    message, memory = first_round_inputs(setup, clients, clock)

    cut = TruncatedBatches()
    trainer = contender.build(replace(setup, source=cut))

    def timed(steps: int) -> float:
        cut.begin(steps)
        _wait(setup.federation.device)
        begin = now()
        trainer.train(clients, message, memory, clock)
        _wait(setup.federation.device)
        return now() - begin

    timed(FEW if setup.federation.device.type == "cpu" else MORE)  # to warm up; a GPU captures steps meanwhile
    little, few = timed(FEW), cut.taken
    seconds = timed(MORE)
    if cut.taken > few:
        seconds += max(0.0, seconds - little) / (cut.taken - few) * (cut.planned - cut.taken)
    if setup.federation.device.type == "cuda":
        torch.cuda.empty_cache()  # what is free decides how many clients are trained at once
    return seconds / max(1, sum(setup.steps(client) for client in clients.tolist()))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _key(setup: Setup, contenders: Mapping[str, EngineCandidate]) -> str:
    """Return a key of the machine and all that a step's cost depends on."""
    federation, protocol = setup.federation, setup.protocol
    gpu = federation.device.type == "cuda"
    machine = (platform.node(), torch.cuda.get_device_name(federation.device) if gpu else "")
    net = setup.task.fresh()
    what = (
        TIMING_FORMAT,
        (machine, torch.__version__, torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32),
        sorted((name, each.clients) for name, each in contenders.items()),
        *(["bf16"] if setup.task.bf16 else []),
        (setup.method, str(net), [leaf.shape for leaf in net.state_dict().values()], setup.task.shape),
        (protocol.local, replace(protocol.optimizer, lr=1.0), protocol.augment),  # whatever the rate
        (federation.clients, federation.dtype, setup.at_once, float(setup.population.sizes.max())),
    )
    return f"pace-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}"


# Which way each convolution of a stack of clients is computed: all are timed on the device, once, and remembered.

LOWERING_FORMAT = 2  # raised when what is timed changes


REPEATS = 10  # passes forward and backward that are timed together


FASTER = 0.95  # of torch's own time: a choice that noise does not turn around


def choose(setup: Setup, clients: int) -> None:
    """Set how each convolution of `setup`'s network computes for `clients` at once.

    On a CPU it stays torch's own, which is the fastest or close to it on the benchmark's layers (patches take 1.4 to 18
    times as long).
    """
    device = setup.federation.device
    if device.type != "cuda":
        return
    for name, layer, shape in layers(setup.task, setup.protocol.local.batch_size):
        seconds = timed(layer, (clients, *shape), device)
        best = min(seconds, key=lambda each: seconds[each])
        chosen = best if seconds[best] < FASTER * seconds[NATIVE] else NATIVE
        setup.task.set_lowering(name, chosen)


def layers(task: Task, batch: int) -> list[tuple[str, Conv2d, tuple[int, ...]]]:
    """Return (name, layer, shape of its input [B, I, H, W]) of each convolution, found without computing anything."""
    found: list[tuple[str, Conv2d, tuple[int, ...]]] = []
    net = task.fresh().to("meta")

    def note(name: str) -> Callable[..., None]:
        return lambda layer, inputs: found.append((name, layer, tuple(inputs[0].shape)))

    for name, layer in net.named_modules():
        if isinstance(layer, Conv2d):
            layer.register_forward_pre_hook(note(name))
    net(torch.zeros(batch, *task.shape, device="meta"))
    return found


def timed(layer: Conv2d, shape: tuple[int, ...], device: torch.device) -> dict[str, float]:
    """Return the seconds of a forward and backward pass with inputs [C, B, I, H, W] by each way, cached."""
    clients = shape[0]
    what = (
        (
            LOWERING_FORMAT,
            torch.__version__,
            torch.cuda.get_device_name(device),
            torch.backends.cudnn.allow_tf32,
        ),
        (str(layer), shape),
    )

    def measure() -> dict[str, NDArray[np.float64]]:
        model = {name: torch.randn(clients, *leaf.shape, device=device) for name, leaf in layer.named_parameters()}
        x = torch.randn(shape, device=device)
        return {name: np.array(_seconds(_pass(layer, name), model, x)) for name in LOWERINGS}

    key = f"convolution-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}"
    return {name: float(value) for name, value in cached_arrays(key, measure).items()}


def _pass(layer: Conv2d, lowering: str) -> Callable[..., Any]:
    def loss(model: dict[str, Tensor], x: Tensor) -> Tensor:
        layer.lowering = lowering
        out: Tensor = functional_call(layer, model, (x,))
        return out.sum()

    return vmap(grad(loss, argnums=(0, 1)))


def _seconds(work: Callable[..., object], *arguments: object) -> float:
    """Return the seconds of a call, with the device kept busy so that the host's time does not count."""
    for _ in range(2):
        work(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            work(*arguments)
    graph.replay()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / REPEATS
