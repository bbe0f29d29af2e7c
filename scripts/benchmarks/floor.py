"""FLOOR and KERNELS: how near a step of local training comes to what the machine can do.

A step's floor is the larger of two times: its operations at the measured rate of a large product of matrices, and its
bytes at the measured bandwidth of a large copy. The operations are those of convolutions and products, forward and
backward, by the loop by hand; a multiplication and an addition are two. The bytes are the least that go through memory
if none stay in a cache: a number of the parameters, the gradient, the optimiser's moments, and the activations that
torch keeps for the backward pass is written once and read once, one of the images read once. A library that multiplies
less (Winograd) or a cache that holds all of it can be above the floor.
"""

from __future__ import annotations

import os
import re
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.rounds import TF32, Round, Workload, contestants, of_steps, timed, wait
from fedbench.config.schema import HardwareConfig
from fedbench.engine.hardware import pick_trainer, set_precision
from fedbench.engine.setup import Setup

os.environ.setdefault("TEARDOWN_CUPTI", "0")  # else a second profile of CUDA graphs can end the process
TOP = 10  # kernels that are told of
LAUNCH = re.compile(r"cu(da)?(Launch\w*Kernel|GraphLaunch|Memcpy|Memset)")
WAIT = re.compile(r"cu(da)?(Stream|Device|Event|Ctx)Synchronize")
Row = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """Who trains: a short and a long round tell what a step adds, and what a round takes besides."""

    steps: tuple[int, int]
    hardware: HardwareConfig | None = None  # None: the loop by hand
    cohort: str = "all"  # clients; those that train one after the other are as fast in any number
    gpu: bool = False  # whether there is none on a CPU
    profiled: bool = False


WAYS = {
    "plain": Way((5, 25), cohort="2"),
    "looped": Way((5, 25), HardwareConfig(engine="looped"), cohort="2"),
    "stacked": Way((5, 25), HardwareConfig(engine="stacked", graph="off"), profiled=True),
    "captured": Way((20, 120), HardwareConfig(engine="stacked"), gpu=True, profiled=True),
    TF32: Way((20, 120), HardwareConfig(engine="stacked", precision="tf32"), gpu=True, profiled=True),
}
QUICK = (1, 3)  # steps of a short and a long round


def counted(setup: Setup) -> tuple[int, int]:
    """(operations, bytes) of a client's step on a whole batch, as the module says."""
    optimizer = setup.protocol.optimizer
    moments = 2 if optimizer.name != "sgd" else int(optimizer.momentum > 0)
    model = setup.task.fresh().train().requires_grad_(True)
    batch = setup.protocol.local.batch_size
    x, y = torch.zeros(batch, *setup.task.shape), torch.zeros(batch, dtype=torch.int64)
    kept: dict[int, Tensor] = {}  # by storage: what is a view of another, or kept twice, counts once

    def keep(leaf: Tensor) -> Tensor:
        if leaf.is_floating_point() and leaf.dim():
            kept[leaf.untyped_storage()._cdata] = leaf
        return leaf

    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda leaf: leaf):
        nn.functional.cross_entropy(model(x), y).backward()
    given = {leaf.untyped_storage()._cdata for leaf in (x, *model.parameters(), *model.buffers())}
    activations = sum(leaf.untyped_storage().nbytes() for place, leaf in kept.items() if place not in given)
    parameters = sum(leaf.nbytes for leaf in model.parameters())
    return counter.get_total_flops(), 2 * ((2 + moments) * parameters + activations) + x.nbytes


def rates(device: torch.device, *, quick: bool) -> dict[str, float]:
    """Operations a second of a product in float32, and on a GPU in TF32; bytes a second of a copy, read and written."""
    cuda = device.type == "cuda"
    size, numbers = (8192, 2**28) if cuda else (256 if quick else 1024, 2**20 if quick else 2**26)
    found = {}
    left, right = (torch.randn(size, size, device=device) for _ in range(2))
    for name in ("float32", *[TF32] * cuda):
        set_precision(tf32=name == TF32)
        found[name] = 2 * size**3 / _fastest(lambda: left @ right, device)
    set_precision(tf32=False)
    source, target = (torch.zeros(numbers, device=device) for _ in range(2))
    return {**found, "bytes": 2 * source.nbytes / _fastest(lambda: target.copy_(source), device)}


def _fastest(work: Callable[[], Any], device: torch.device) -> float:
    return min(timed(work, device)[0] for _ in range(6))


def floors(operations: float, size: float, measured: dict[str, float]) -> dict[str, float]:
    """Seconds that `operations` and `size` bytes take at least, by the precision of the products."""
    moving = size / measured["bytes"]
    return {name: max(operations / measured[name], moving) for name in measured if name != "bytes"}


def run(workload: Workload, device: torch.device, measured: dict[str, float], repeats: int, *, quick: bool) -> Row:
    """What a step of all clients needs at least, and what each way makes of it; what fails is told in its place."""
    setup, clients = workload.setup(device), len(workload.sizes)
    operations, size = (clients * each for each in counted(setup))
    floor = floors(operations, size, measured)
    found: Row = {"workload": workload.name, "what": workload.what, "operations": operations, "bytes": size}
    found |= {"floor": floor, "quick": quick, "ways": {}}
    for name, way in WAYS.items():
        if way.gpu and device.type != "cuda":
            continue
        try:
            row = _timed(name, way, setup, repeats, QUICK if quick else way.steps)
            row["share"] = row["rate"] * floor["tf32" if name == TF32 else "float32"] / clients
        except Exception as error:  # noqa: BLE001 - the other ways are worth knowing
            row = {"failed": f"{type(error).__name__}: {error}"[:300]}
        set_precision(tf32=False)
        found["ways"][name] = row
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return found


def _readied(name: str, way: Way, base: Setup, steps: int) -> Callable[[int], Round]:
    """What makes a round of `steps` steps ready, given its number."""
    setup = of_steps(base, steps, way.cohort)
    engines = {} if way.hardware is None else {name: pick_trainer(setup, way.hardware)}
    return contestants(setup, engines)[name]


def _timed(name: str, way: Way, base: Setup, repeats: int, lengths: tuple[int, int]) -> Row:
    """Client-steps a second, and seconds of a round besides.

    Raises:
        ValueError: the longer round took no longer.
    """
    taken = []
    for steps in lengths:
        ready = _readied(name, way, base, steps)
        timings = [timed(ready(repeat), base.federation.device) for repeat in range(repeats + 1)][1:]  # after a warm-up
        taken.append((statistics.median(seconds for seconds, _ in timings), timings[0][1]))
    (short, few), (long, many) = taken
    if not long > short:
        raise ValueError(f"{many} client-steps took {long:.4f} s, {few} took {short:.4f} s: the machine is too busy")
    rate = (many - few) / (long - short)
    return {"rate": rate, "besides": short - few / rate}


def profiles(workload: Workload, device: torch.device) -> dict[str, Row]:
    """By the way, launches and kernels of a step and waits of a round on a GPU; or what failed.

    Apart from `run`, as what has been profiled once may stay slower.
    """
    setup, found = workload.setup(device), dict[str, Row]()
    for name, way in WAYS.items():
        if not way.profiled:
            continue
        try:
            rounds = [_readied(name, way, setup, steps) for steps in way.steps]
            for ready in rounds:
                timed(ready(0), device)  # a warm-up
            used = [profiled(work, device) for work in (*(ready(1) for ready in rounds), lambda: None)]
            found[name] = a_step(*used, way.steps[1] - way.steps[0])
        except Exception as error:  # noqa: BLE001 - as in `run`
            found[name] = {"not_profiled": f"{type(error).__name__}: {error}"[:300]}
        set_precision(tf32=False)
    return found


# What a profile holds: (name, whether it ran on the device, calls, microseconds there).
Event = tuple[str, bool, int, float]


def profiled(work: Callable[[], Any], device: torch.device) -> list[Event]:
    """What a profile of `work` on a GPU holds."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        work()
        wait(device)
    return [
        (each.key, each.device_type == torch.autograd.DeviceType.CUDA, each.count, each.self_device_time_total)
        for each in found.key_averages()
        if not each.is_user_annotation
    ]


def a_step(short: list[Event], long: list[Event], nothing: list[Event], more: int) -> Row:
    """What each of the `more` steps of a long round launches, the kernels that take most, and a short round's waits."""

    def calls(events: list[Event], what: re.Pattern[str]) -> int:
        return sum(count for name, on_device, count, _ in events if not on_device and what.match(name))

    spent, count = Counter[str](), Counter[str]()
    for events, sign in ((long, 1), (short, -1)):
        for name, on_device, number, microseconds in events:
            if on_device:
                spent[name] += sign * microseconds / more
                count[name] += sign * number / more
    return {
        "launches": (calls(long, LAUNCH) - calls(short, LAUNCH)) / more,
        "waits": calls(short, WAIT) - calls(nothing, WAIT),
        "kernels": sum(count.values()),
        "kernels_us": sum(spent.values()),
        "top": [{"kernel": name, "us": value, "calls": count[name]} for name, value in spent.most_common(TOP)],
    }
