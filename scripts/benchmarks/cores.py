"""How much two plain loops at once do against one: what worker processes can reach on this machine at most.

Virtual cores may be two threads of one physical core; then it is far from 2.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.synchronize import Barrier
from typing import Any

import torch

from benchmarks import plain
from benchmarks.rounds import timed
from benchmarks.workloads import WORKLOADS
from fedbench.engine.contract import Clock
from fedbench.engine.setup import opening
from fedbench.engine.workers import WorkersTrainer, available_workers

CLIENTS = 2  # of a cohort, trained in each process


def scaling(name: str, processes: int, repeats: int) -> float:
    """The rate of `processes` plain loops of a workload together, over the rate of one alone."""
    alone = statistics.median(_seconds(name, 1, repeats))
    together = statistics.median(_seconds(name, processes, repeats))
    return round(processes * alone / together, 2)


def start_seconds(name: str) -> float:
    """Seconds until worker processes, one a core, have answered for the first time, in a process that had none."""
    context = multiprocessing.get_context("spawn")
    found: Any = context.Queue()
    process = context.Process(target=_start, args=(name, found))
    process.start()
    seconds = float(found.get())
    process.join()
    return round(seconds, 2)


def _start(name: str, found: Any) -> None:
    setup = WORKLOADS[name].setup(torch.device("cpu"))
    clock = Clock(0, setup.protocol.rounds)
    ids = setup.draw_cohort(clock)
    message, memory = opening(setup, ids, clock)
    begin = time.perf_counter()
    trainer = WorkersTrainer(setup, available_workers())
    trainer.evaluate(ids, message, memory, clock, ())
    found.put(time.perf_counter() - begin)
    trainer.close()


def _seconds(name: str, processes: int, repeats: int) -> list[float]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    found: Any = context.Queue()
    started = [context.Process(target=_loop, args=(name, repeats, barrier, found)) for _ in range(processes)]
    for process in started:
        process.start()
    seconds = [value for _ in started for value in found.get()]
    for process in started:
        process.join()
    return seconds


def _loop(name: str, repeats: int, barrier: Barrier, found: Any) -> None:
    torch.set_num_threads(1)
    setup = WORKLOADS[name].setup(torch.device("cpu"))
    model = plain.fresh_model(setup)
    ids = setup.draw_cohort(Clock(0, setup.protocol.rounds))[:CLIENTS]

    def ready(repeat: int) -> Callable[[], int]:
        return partial(plain.plain_round, setup, model, ids, plain.schedule_of(setup, ids, repeat))

    ready(0)()
    seconds = []
    for repeat in range(repeats):
        round_ = ready(repeat)
        barrier.wait()
        seconds.append(timed(round_, torch.device("cpu")).seconds)
    found.put(seconds)
