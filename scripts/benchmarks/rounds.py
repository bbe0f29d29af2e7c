"""Timing a workload's rounds: every contestant in turn, several times over, in one process."""

from __future__ import annotations

import dataclasses
import gc
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks import plain
from benchmarks.workloads import Workload
from fedbench.config.schema import HardwareConfig
from fedbench.engine.contract import Clock
from fedbench.engine.pick.arithmetic import StepWork, found_peaks
from fedbench.engine.pick.calibrate import Contender, seconds_a_step
from fedbench.engine.pick.footprint import Growth, fitting_chunk, gpu_peak
from fedbench.engine.pick.hardware import pick_trainer, set_precision
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.stacked import StackedTrainer
from fedbench.engine.train.trainer import Trainer
from fedbench.engine.train.workers import WorkersTrainer, available_workers

TOLERANCE = (
    1e-9  # largest difference of a parameter after a client's round in float64, engine against plain loop
)
STACKED = ("stacked", "captured")
PROFILED = {*STACKED, "tf32", "merged"}  # the others ask for too many kernels
TF32 = "tf32"  # the stacked engine, multiplying in TensorFloat-32


@dataclass(frozen=True)
class Timing:
    """A round: seconds until the device was done, until the host had asked for all of it, and its client-steps."""

    seconds: float
    host: float
    count: int


Contestant = Callable[[int], Callable[[], int]]
"""Makes round number so many ready, its batches on the device, which is not timed: the round."""


def run(workload: Workload, device: torch.device, repeats: int, *, quick: bool) -> dict[str, Any]:
    """Client-steps a second of the engines, the plain loop and the merged batch, and their ratios."""
    difference = _differences(workload.setup(device, quick=quick, dtype=torch.float64))
    wrong = {name: gap for name, gap in difference.items() if not gap <= TOLERANCE}
    if wrong:
        raise AssertionError(f"{workload.name}: engines differ from the plain loop: {wrong}")
    if device.type == "cuda":  # what follows has the memory to itself, and is all that is measured
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    setup = workload.setup(device, quick=quick)
    trainers = _trainers(setup)
    contestants: dict[str, Contestant] = {
        name: _engine(setup, trainer, tf32=name == TF32) for name, trainer in trainers.items()
    }
    contestants |= {"plain": _plain(setup), "merged": _merged(setup)}
    taken: dict[str, list[Timing]] = {name: [] for name in contestants}
    try:
        for repeat in range(repeats + 1):  # the first is a warm-up
            for name, contestant in contestants.items():
                timing = timed(contestant(repeat), device)
                taken[name] += [timing] if repeat else []
        busy = {
            name: kernel_seconds(contestants[name](repeats + 1)) for name in PROFILED & contestants.keys()
        }
        memory = _memory(setup, contestants["stacked"](repeats + 1))
    finally:
        _close(trainers)
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
    best = max((name for name in trainers if name != TF32), key=lambda name: rate[name])
    return {
        "workload": workload.name,
        "what": workload.what,
        "client_steps": steps,
        "rate": {name: round(value, 1) for name, value in rate.items()},
        "spread": {name: [round(min(v), 1), round(max(v), 1)] for name, v in rates.items()},
        "best": best,
        "vs_plain": {name: round(rate[name] / rate["plain"], 2) for name in trainers},
        "stacking_efficiency": round(max(rate[name] for name in STACKED if name in rate) / rate["merged"], 2),
        "milliseconds": {name: _milliseconds(taken[name], busy.get(name)) for name in contestants},
        "memory": memory,
        "arithmetic": _arithmetic(setup, rate[best]),
        "largest_difference": difference,
        "calibrated": {name: seconds_a_step(setup, each) for name, each in contenders.items()},
        "peak_mib": _peak(device),
        "repeats": repeats,
        "quick": quick and workload.small_cohort is not None,
    }


def _trainers(setup: Setup) -> dict[str, Trainer]:
    """The engines; on a GPU the stacked one step by step, captured where it can be, and in TensorFloat-32."""
    found: dict[str, Trainer] = {"looped": LoopedTrainer(setup)}
    device = setup.federation.device.type
    if device == "cpu" and available_workers() > 1:
        found["workers"] = WorkersTrainer(setup, available_workers())
    capture = "graph" in {field.name for field in dataclasses.fields(HardwareConfig)}
    eager: dict[str, Any] = {"graph": "off"} if capture else {}
    found["stacked"] = pick_trainer(setup, HardwareConfig(engine="stacked", **eager))
    if device == "cuda":
        found |= {"captured": pick_trainer(setup, HardwareConfig(engine="stacked"))} if capture else {}
        found[TF32] = pick_trainer(setup, HardwareConfig(engine="stacked"))
    return found


def _engine(setup: Setup, trainer: Trainer, *, tf32: bool = False) -> Contestant:
    simulation = Simulation(setup, trainer)
    state = simulation.begin()

    def ready(repeat: int) -> Callable[[], int]:
        state.round = repeat
        ids = setup.draw_cohort(_clock(setup, repeat))

        def rounds() -> int:
            set_precision(tf32=tf32)
            simulation.step(state)
            set_precision(tf32=False)
            return sum(setup.steps(client) for client in ids.tolist())

        return rounds

    return ready


def _plain(setup: Setup) -> Contestant:
    model = plain.fresh_model(setup)

    def ready(repeat: int) -> Callable[[], int]:
        ids = setup.draw_cohort(_clock(setup, repeat))
        return partial(plain.plain_round, setup, model, ids, plain.schedule_of(setup, ids, repeat))

    return ready


def _merged(setup: Setup) -> Contestant:
    model = plain.fresh_model(setup)

    def ready(repeat: int) -> Callable[[], int]:
        ids = setup.draw_cohort(_clock(setup, repeat))
        return partial(plain.merged_round, setup, model, plain.schedule_of(setup, ids, repeat))

    return ready


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


def _close(trainers: dict[str, Trainer]) -> None:
    for trainer in trainers.values():
        trainer.close()


def _differences(setup: Setup) -> dict[str, float]:
    """What `_difference` finds for each engine.

    In float64, as rounding grows along the steps: after ResNet-18's sixteen in float32 two right programs differ by
    more than a wrong one need to.
    """
    trainers = _trainers(setup)
    try:
        return {name: _difference(setup, trainer) for name, trainer in trainers.items()}
    finally:
        _close(trainers)


def _difference(setup: Setup, trainer: Trainer) -> float:
    """Largest difference of a parameter after one client's local work, engine against a loop by hand."""
    clock = _clock(setup, 0)
    ids = setup.draw_cohort(clock)[:2]
    with torch.no_grad():
        server, _ = setup.method.init(setup.task, setup.population, torch.Generator().manual_seed(0))
        server = setup.federation.placed(server)
        cohort = setup.cohort(ids, clock)
        message = setup.method.send(server, cohort)
    outcome = trainer.train(ids, message, {}, clock)
    gaps = []
    for row, client in enumerate(ids.tolist()):
        model = setup.task.fresh().to(setup.federation.device, setup.federation.dtype)
        model = model.train().requires_grad_(True)
        model.load_state_dict({name: message[name][row] for name in model.state_dict()})
        optimizer = torch.optim.SGD(
            model.parameters(), lr=setup.protocol.optimizer.lr, momentum=setup.protocol.optimizer.momentum
        )
        (stage,) = setup.method.stages(setup.protocol.local, clock)
        order, _ = setup.batches(client, stage, setup.client(client, {}, {}, clock), "batches")
        owned = setup.federation.indices("train", client)
        for positions in order:
            x, y = setup.federation.gather(owned[positions.to(owned.device)])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        for name, leaf in model.state_dict().items():
            gaps.append(float((outcome.uploads[name][row] - leaf).abs().max()))
    return max(gaps)


def _clock(setup: Setup, round_: int) -> Clock:
    return Clock(round_, setup.protocol.rounds)


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
