"""Timing a workload's rounds: every contestant in turn, several times over, in one process."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import plain
from benchmarks.workloads import Workload
from fedbench.engine.contract import Clock
from fedbench.engine.pick.calibrate import Contender, seconds_a_step
from fedbench.engine.pick.footprint import fitting_chunk
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.stacked import StackedTrainer
from fedbench.engine.train.trainer import Trainer
from fedbench.engine.train.workers import WorkersTrainer, available_workers

TOLERANCE = (
    1e-9  # largest difference of a parameter after a client's round in float64, engine against plain loop
)


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
    contestants: dict[str, Callable[[int], int]] = {
        name: _engine(setup, trainer) for name, trainer in trainers.items()
    }
    contestants |= {"plain": _plain(setup), "merged": _merged(setup)}
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    done: dict[str, int] = {}
    try:
        for repeat in range(repeats + 1):  # the first is a warm-up
            for name, contestant in contestants.items():
                seconds, done[name] = timed(contestant, repeat, device)
                if repeat:
                    rates[name].append(done[name] / seconds)
    finally:
        _close(trainers)
    if len(set(done.values())) != 1:
        raise AssertionError(f"{workload.name}: unequal work: {done}")
    rate = {name: statistics.median(values) for name, values in rates.items()}
    chunk = min(fitting_chunk(setup), setup.at_once)
    contenders = {"looped": Contender(LoopedTrainer)}
    if device.type == "cuda":
        contenders["stacked"] = Contender(partial(StackedTrainer, chunk=chunk), chunk)
    best = max(trainers, key=lambda name: rate[name])
    return {
        "workload": workload.name,
        "what": workload.what,
        "client_steps": done["plain"],
        "rate": {name: round(value, 1) for name, value in rate.items()},
        "spread": {name: [round(min(v), 1), round(max(v), 1)] for name, v in rates.items()},
        "best": best,
        "vs_plain": {name: round(rate[name] / rate["plain"], 2) for name in trainers},
        "stacking_efficiency": round(rate["stacked"] / rate["merged"], 2) if "stacked" in rate else None,
        "largest_difference": difference,
        "calibrated": {name: seconds_a_step(setup, each) for name, each in contenders.items()},
        "peak_mib": _peak(device),
        "repeats": repeats,
        "quick": quick and workload.small_cohort is not None,
    }


def _trainers(setup: Setup) -> dict[str, Trainer]:
    found: dict[str, Trainer] = {"looped": LoopedTrainer(setup)}
    if setup.federation.device.type == "cpu" and available_workers() > 1:
        found["workers"] = WorkersTrainer(setup, available_workers())
    found["stacked"] = StackedTrainer(setup, fitting_chunk(setup))
    return found


def _engine(setup: Setup, trainer: Trainer) -> Callable[[int], int]:
    simulation = Simulation(setup, trainer)
    state = simulation.begin()

    def rounds(repeat: int) -> int:
        state.round = repeat
        ids = setup.draw_cohort(_clock(setup, repeat))
        simulation.step(state)
        return sum(setup.steps(client) for client in ids.tolist())

    return rounds


def _plain(setup: Setup) -> Callable[[int], int]:
    model = plain.fresh_model(setup)

    def rounds(repeat: int) -> int:
        ids = setup.draw_cohort(_clock(setup, repeat))
        return plain.plain_round(setup, model, ids, plain.schedule_of(setup, ids, repeat))

    return rounds


def _merged(setup: Setup) -> Callable[[int], int]:
    model = plain.fresh_model(setup)

    def rounds(repeat: int) -> int:
        ids = setup.draw_cohort(_clock(setup, repeat))
        return plain.merged_round(setup, model, plain.schedule_of(setup, ids, repeat))

    return rounds


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


def timed(contestant: Callable[[int], int], repeat: int, device: torch.device) -> tuple[float, int]:
    """(seconds, what it returns) of one call of `contestant`."""
    gc.collect()
    _wait(device)
    begin = time.perf_counter()
    count = contestant(repeat)
    _wait(device)
    return time.perf_counter() - begin, count


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _peak(device: torch.device) -> int:
    """Largest memory of this process and its largest child, or of the GPU, in MiB."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated() / 2**20)
    kib = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return kib // 1024
