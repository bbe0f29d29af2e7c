"""Timing a workload's rounds: every contestant in turn, several times over, in one process."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from fedbench.engine.pick.arithmetic import StepWork, found_peaks

from benchmarks import agreement, contestants
from benchmarks.workloads import Workload
from fedbench.engine.hardware import Contender, Growth, fitting_chunk, gpu_peak, seconds_a_step
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer

STACKED = ("stacked", "captured")
PROFILED = {*STACKED, contestants.TF32, "merged"}  # the others ask for too many kernels


@dataclass(frozen=True)
class Timing:
    """A round: seconds until the device was done, until the host had asked for all of it, and its client-steps."""

    seconds: float
    host: float
    count: int


def run(workload: Workload, device: torch.device, repeats: int, *, quick: bool) -> dict[str, Any]:
    """Client-steps a second of the engines, the plain loop and the merged batch, and their ratios."""
    difference = agreement.differences(workload.setup(device, quick=quick, dtype=torch.float64))
    wrong = {name: gap for name, gap in difference.items() if not gap <= agreement.TOLERANCE}
    if wrong:
        raise AssertionError(f"{workload.name}: engines differ from the plain loop: {wrong}")
    if device.type == "cuda":  # what follows has the memory to itself, and is all that is measured
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    setup = workload.setup(device, quick=quick)
    trainers = contestants.trainers(setup)
    ready = contestants.of(setup, trainers)
    taken: dict[str, list[Timing]] = {name: [] for name in ready}
    try:
        for repeat in range(repeats + 1):  # the first is a warm-up
            for name, contestant in ready.items():
                timing = timed(contestant(repeat), device)
                taken[name] += [timing] if repeat else []
        busy = {name: kernel_seconds(ready[name](repeats + 1)) for name in PROFILED & ready.keys()}
        memory = _memory(setup, ready["stacked"](repeats + 1))
    finally:
        contestants.close(trainers)
    done = {name: timings[0].count for name, timings in taken.items()}
    if len(set(done.values())) != 1:
        raise AssertionError(f"{workload.name}: unequal work: {done}")
    steps = done["plain"]
    rates = {name: [each.count / each.seconds for each in timings] for name, timings in taken.items()}
    rate = {name: statistics.median(values) for name, values in rates.items()}
    chunk = min(fitting_chunk(setup), setup.at_once)
    contenders = {"looped": Contender(LoopedTrainer)}
    if device.type == "cuda":
        contenders["stacked"] = Contender(partial(StackedTrainer, chunk=chunk), chunk)
    best = max((name for name in trainers if name != contestants.TF32), key=lambda name: rate[name])
    return {
        "workload": workload.name,
        "what": workload.what,
        "client_steps": steps,
        "rate": {name: round(value, 1) for name, value in rate.items()},
        "spread": {name: [round(min(v), 1), round(max(v), 1)] for name, v in rates.items()},
        "best": best,
        "vs_plain": {name: round(rate[name] / rate["plain"], 2) for name in trainers},
        "stacking_efficiency": round(max(rate[name] for name in STACKED if name in rate) / rate["merged"], 2),
        "milliseconds": {name: _milliseconds(taken[name], busy.get(name)) for name in ready},
        "memory": memory,
        "arithmetic": _arithmetic(setup, rate[best]),
        "largest_difference": difference,
        "calibrated": {name: seconds_a_step(setup, each) for name, each in contenders.items()},
        "peak_mib": _peak(device),
        "repeats": repeats,
        "quick": quick and workload.small_cohort is not None,
    }


def _milliseconds(timings: Sequence[Timing], busy: float | None) -> dict[str, float]:
    """A round's: all of it, what the host took to ask for it, and on a GPU what kernels ran for."""
    found = {name: statistics.median(getattr(each, name) for each in timings) for name in ("seconds", "host")}
    if busy is not None:
        found["kernels"] = busy
    return {name: round(1000 * value, 3) for name, value in found.items()}


def _memory(setup: Setup, stacked_round: Callable[[], int]) -> dict[str, float] | None:
    """MiB that a round of the stacked engine was predicted to take on the GPU, and took; None on a CPU (see SCALE)."""
    device = setup.federation.device
    if device.type != "cuda":
        return None
    peak = partial(gpu_peak, device)
    chunk = min(fitting_chunk(setup), setup.at_once)
    predicted = Growth.of(setup, peak).bytes(setup.at_once, chunk)
    return {
        "predicted_mib": round(predicted / 2**20, 1),
        "measured_mib": round(peak(stacked_round) / 2**20, 1),
    }


def _arithmetic(setup: Setup, rate: float) -> dict[str, float | None]:
    """Of a client-step, and how much of the device's peak `rate` client-steps a second are."""
    work = StepWork.of(setup)
    peaks = found_peaks(setup.federation.device)
    return {
        "gigaflop": round(work.flops / 1e9, 4),
        "megabytes": round(work.bytes / 1e6, 2),
        "share_of_flops": None if peaks is None else round(rate * work.flops / peaks.float32, 4),
        "share_of_bandwidth": None if peaks is None else round(rate * work.bytes / peaks.bandwidth, 4),
    }


def timed(round_: Callable[[], int], device: torch.device) -> Timing:
    """One call of `round_`, which returns what it did."""
    gc.collect()
    _wait(device)
    begin = time.perf_counter()
    count = round_()
    host = time.perf_counter() - begin
    _wait(device)
    return Timing(time.perf_counter() - begin, host, count)


def kernel_seconds(round_: Callable[[], int]) -> float | None:
    """What the kernels of a round ran for on the GPU, as its profiler adds them up; None where there is none."""
    if not torch.cuda.is_available():
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        round_()
        torch.cuda.synchronize()
    return sum(each.self_device_time_total for each in found.key_averages()) / 1e6


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _peak(device: torch.device) -> int:
    """Largest memory of this process and its largest child, or of the GPU, in MiB."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated() / 2**20)
    kib = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return kib // 1024
