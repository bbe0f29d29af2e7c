"""Which way each convolution of a stack of clients is computed: all are timed on the device, once, and remembered."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedbench.core.cache import cached_arrays
from fedbench.engine.setup import Setup
from fedbench.models.layers import LOWERINGS, NATIVE, Conv2d
from fedbench.models.task import Task

FORMAT = 1  # raised when what is timed changes
REPEATS = 10  # passes forward and backward that are timed together
CLEARLY = 0.95  # of torch's own time: a choice that noise does not turn around


def choose(setup: Setup, clients: int) -> None:
    """Set the way of each convolution of `setup`'s network for `clients` at once.

    On a CPU torch's own is kept: of the benchmark's layers it is the fastest or near it (patches take 1.4 to 18 times
    as long).
    """
    device = setup.federation.device
    if device.type != "cuda":
        return
    for name, layer, shape in layers(setup.task, setup.protocol.local.batch_size):
        seconds = timed(layer, (clients, *shape), device)
        best = min(seconds, key=lambda each: seconds[each])
        chosen = best if seconds[best] < CLEARLY * seconds[NATIVE] else NATIVE
        setup.task.set_lowering(name, chosen)


def layers(task: Task, batch: int) -> list[tuple[str, Conv2d, tuple[int, ...]]]:
    """(name, layer, shape of its input [B, I, H, W]) of each convolution, found by running the network on no data."""
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
    """Seconds of a pass forward and backward with inputs [C, B, I, H, W], by each way; remembered."""
    clients = shape[0]
    what = (
        (FORMAT, torch.__version__, torch.cuda.get_device_name(device), torch.backends.cudnn.allow_tf32),
        (str(layer), shape),
    )

    def measure() -> dict[str, NDArray[np.float64]]:
        model = {
            name: torch.randn(clients, *leaf.shape, device=device) for name, leaf in layer.named_parameters()
        }
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
    """Of a call, the device kept busy so that what the host adds does not count."""
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
