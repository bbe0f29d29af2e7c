"""W6: five seeds of one table cell as rows of one program, against one seed, and against one after the other."""

from __future__ import annotations

import dataclasses
import statistics
from functools import partial
from typing import Any

import torch

from benchmarks.rounds import timed
from benchmarks.workloads import Workload
from fedbench.config.schema import HardwareConfig
from fedbench.engine.hardware import pick_trainer, stacked_engine
from fedbench.engine.seeds import Seating, joint_setup, together
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation, State

SEEDS = 5
TOLERANCE = 1e-3  # of a parameter after a round of eighty steps, along which rounding differences grow


class Runs:
    """The same cell with each seed: simulations, and where they stand."""

    def __init__(self, setups: list[Setup]) -> None:
        self.trainers = [pick_trainer(setup, HardwareConfig(engine=_engine(setup))) for setup in setups]
        pairs = zip(setups, self.trainers, strict=True)
        self.simulations = [Simulation(setup, trainer) for setup, trainer in pairs]
        self.states: list[State] = [each.begin() for each in self.simulations]

    def one(self, repeat: int) -> int:
        """A round of the first seed."""
        return self._apart(repeat, 1)

    def apart(self, repeat: int) -> int:
        """A round of every seed, one after the other."""
        return self._apart(repeat, len(self.simulations))

    def _apart(self, _repeat: int, count: int) -> int:
        for simulation, state in zip(self.simulations[:count], self.states, strict=False):
            simulation.step(state)
        return count


class Together(Runs):
    """The seeds as rows of one program."""

    def __init__(self, setups: list[Setup]) -> None:
        super().__init__(setups)
        self.joint = stacked_engine(joint_setup(setups), HardwareConfig())

    def together(self, _repeat: int) -> int:
        """A round of every seed."""
        works = [partial(self._step, index) for index in range(len(self.simulations))]
        for result in together(works, lambda _: self.joint):
            if isinstance(result, Exception):
                raise result
        return len(works)

    def _step(self, index: int, seating: Seating) -> None:
        simulation = self.simulations[index]
        simulation.trainer = seating(self.trainers[index])
        simulation.step(self.states[index])


def run(workload: Workload, device: torch.device, repeats: int, *, quick: bool) -> dict[str, Any]:
    """Seconds a round of one seed, of five one after the other, and of five together; and their ratios.

    Raises:
        AssertionError: the five together do not give what they give apart.
    """
    base = workload.setup(device, quick=quick)
    setups = [dataclasses.replace(base, seed=seed) for seed in range(SEEDS)]
    single, apart, together = Runs(setups[:1]), Runs(setups), Together(setups)
    contestants = {"one": single.one, "apart": apart.apart, "together": together.together}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    gap = float("nan")
    for repeat in range(repeats + 1):  # the first is a warm-up, and compared
        for name, contestant in contestants.items():
            timing = timed(partial(contestant, repeat), device)
            if repeat:
                seconds[name].append(timing.seconds)
        if not repeat:
            gap = _gap(together, apart)
    for each in (single, apart, together):
        for trainer in each.trainers:
            trainer.close()
    if not gap <= TOLERANCE:
        raise AssertionError(f"{workload.name}: five seeds together differ from five apart by {gap}")
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "seeds": SEEDS,
        "what": f"{SEEDS} seeds of {workload.name} ({workload.what})",
        "seconds": {name: round(value, 3) for name, value in median.items()},
        "together_over_one": round(median["together"] / median["one"], 2),
        "apart_over_together": round(median["apart"] / median["together"], 2),
        "largest_difference": gap,
        "repeats": repeats,
    }


def _gap(ours: Runs, theirs: Runs) -> float:
    """The largest difference of a parameter between the same seeds of both."""
    return max(
        float((a.server[name] - b.server[name]).abs().max())
        for a, b in zip(ours.states, theirs.states, strict=True)
        for name in b.server
    )


def _engine(setup: Setup) -> str:
    """The engine that a single seed is run with: what is compared is the program, not worker processes."""
    return "stacked" if setup.federation.device.type == "cuda" else "looped"
