"""W6: five seeds of one table cell as rows of one program, against one seed, one after the other, a process each."""

from __future__ import annotations

import dataclasses
import multiprocessing
import statistics
from functools import partial
from multiprocessing.synchronize import Barrier
from typing import Any

import torch

from benchmarks.rounds import WORKLOADS, timed
from fedbench.config.schema import HardwareConfig
from fedbench.engine.hardware import pick_trainer, stacked_engine
from fedbench.engine.seeds import JointSetup, Seating, together
from fedbench.engine.simulation import Simulation

SEEDS = 5
PATIENCE = 600.0  # seconds, after which another process is taken to have failed
TOLERANCE = 1e-3  # of a parameter after a round of eighty steps, along which rounding differences grow


class Runs:
    """The same cell with each seed: simulations, and where they stand. No worker processes: a program is compared."""

    def __init__(self, name: str, device: torch.device, quick: bool, seeds: range = range(SEEDS)) -> None:
        setup = WORKLOADS[name].setup(device, quick=quick)
        self.setups = [dataclasses.replace(setup, seed=seed) for seed in seeds]
        hardware = HardwareConfig(engine="stacked" if device.type == "cuda" else "looped")
        self.simulations = [Simulation(each, pick_trainer(each, hardware)) for each in self.setups]
        self.states = [each.begin() for each in self.simulations]

    def apart(self) -> None:
        """Perform a round of every seed, one after the other."""
        for simulation, state in zip(self.simulations, self.states, strict=True):
            simulation.step(state)


class Together(Runs):
    """The seeds as rows of one program."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.joint = stacked_engine(JointSetup.of(self.setups), HardwareConfig())
        self.trainers = [each.trainer for each in self.simulations]

    def together(self) -> None:
        """Perform a round of every seed."""
        works = [partial(self._step, index) for index in range(len(self.simulations))]
        for result in together(works, lambda _: self.joint):
            if isinstance(result, Exception):
                raise result

    def _step(self, index: int, seating: Seating) -> None:
        self.simulations[index].trainer = seating(self.trainers[index])
        self.simulations[index].step(self.states[index])


def run(name: str, device: torch.device, repeats: int, *, quick: bool) -> dict[str, Any]:
    """Seconds a round of one seed, and of five in three ways; and their ratios.

    Raises:
        AssertionError: the five together do not give what they give apart.
    """
    given = (name, device, quick)
    one, apart, joint = Runs(*given, range(1)), Runs(*given), Together(*given)
    ways = {"one": one.apart, "apart": apart.apart, "together": joint.together}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    gap = float("nan")
    for repeat in range(repeats + 1):  # the first is a warm-up, and compared
        for way, round_ in ways.items():
            seconds[way].append(timed(round_, device)[0])
        if not repeat:
            pairs = zip(apart.states, joint.states, strict=True)
            gap = max(float((a.server[k] - b.server[k]).abs().max()) for a, b in pairs for k in a.server)
    if not gap <= TOLERANCE:
        raise AssertionError(f"{name}: five seeds together differ from five apart by {gap}")
    median = {way: statistics.median(values[1:]) for way, values in seconds.items()}
    del one, apart, joint, ways  # their memory is the processes'
    median["processes"] = _processes(given, repeats)
    return {
        "seeds": SEEDS,
        "what": f"{SEEDS} seeds of {name} ({WORKLOADS[name].what})",
        "seconds": {way: round(value, 3) for way, value in median.items()},
        "together_over_one": round(median["together"] / median["one"], 2),
        "apart_over_together": round(median["apart"] / median["together"], 2),
        "processes_over_together": round(median["processes"] / median["together"], 2),
        "largest_difference": gap,
        "repeats": repeats,
    }


def _processes(given: tuple[str, torch.device, bool], repeats: int) -> float:
    """Median seconds of a round until the last of five processes, begun at once, has done its seed's."""
    context = multiprocessing.get_context("spawn")
    barrier, found = context.Barrier(SEEDS), context.Queue()
    arguments = [(given, seed, repeats, barrier, found) for seed in range(SEEDS)]
    started = [context.Process(target=_process, args=each) for each in arguments]
    for process in started:
        process.start()
    seconds = [found.get(timeout=PATIENCE) for _ in started]
    for process in started:
        process.join()
    return statistics.median(max(each) for each in zip(*seconds, strict=True))


def _process(
    given: tuple[str, torch.device, bool], seed: int, repeats: int, barrier: Barrier, found: Any
) -> None:
    torch.set_num_threads(1)
    runs = Runs(*given, range(seed, seed + 1))
    seconds = []
    for _ in range(repeats + 1):
        barrier.wait(PATIENCE)
        seconds.append(timed(runs.apart, given[1])[0])
    found.put(seconds[1:])
