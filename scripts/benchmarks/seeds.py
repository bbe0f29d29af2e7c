"""W6: five seeds of a paper's setting as rows of one program, one after the other, and in as many processes."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import torch

from benchmarks.rounds import STEPS, Round, Workload, at_once, of_steps, timed
from fedbench.config.schema import HardwareConfig
from fedbench.engine.hardware import pick_trainer, stacked_engine
from fedbench.engine.seeds import MakeProxy, joint_setup, together
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.trainer import Trainer

SEEDS = 5
SETTINGS = ("FedSaC", "FedReMa-CNN")  # of STEPS
STEPS_OF = {"cuda": 40}  # local steps of a round, by device; else `FEW`
FEW = 4
TOLERANCE = 1e-3  # of a parameter after a round of forty steps, along which rounding differences grow


class Runs:
    """The same cell with each seed: simulations, and where they stand. No worker processes: a program is compared."""

    def __init__(self, setup: Setup, seeds: Sequence[int] = range(SEEDS)) -> None:
        setups = [dataclasses.replace(setup, seed=seed) for seed in seeds]
        cuda = setup.federation.device.type == "cuda"
        hardware = HardwareConfig(engine="stacked" if cuda else "looped")
        self.trainers = [pick_trainer(each, hardware) for each in setups]
        self.simulations = [Simulation(each, trainer) for each, trainer in zip(setups, self.trainers, strict=True)]
        self.states = [each.begin() for each in self.simulations]

    @cached_property
    def joint(self) -> Trainer:
        """The engine that trains all seeds."""
        return stacked_engine(joint_setup([each.setup for each in self.simulations]), HardwareConfig())

    def apart(self) -> int:
        """Perform a round of every seed, one after the other; returns how many that were."""
        for simulation, state in zip(self.simulations, self.states, strict=True):
            simulation.step(state)
        return len(self.states)

    def together(self) -> None:
        """Perform a round of every seed, as rows of one program."""
        works = [partial(self._step, index) for index in range(len(self.simulations))]
        for result in together(works, lambda _: self.joint):
            if isinstance(result, Exception):
                raise result

    def _step(self, index: int, make_proxy: MakeProxy) -> None:
        self.simulations[index].trainer = make_proxy(self.trainers[index])
        self.simulations[index].step(self.states[index])


def setting(workload: Workload, device: torch.device) -> Setup:
    """Rounds of as many steps in every setting."""
    return of_steps(workload.setup(device), STEPS_OF.get(device.type, FEW))


def one_of_several(seed: int, name: str, device: str) -> tuple[Callable[[int], Round], torch.device]:
    """Rounds of one seed, in a process of its own."""
    runs = Runs(setting(STEPS[name], torch.device(device)), [seed])
    return lambda _: runs.apart, torch.device(device)


def run(workload: Workload, device: torch.device, repeats: int) -> dict[str, Any]:
    """Return seconds a round of one seed, of five one after the other, together, and in five processes at once.

    Raises:
        AssertionError: the five together do not give what they give apart.
    """
    setup = setting(workload, device)
    one, apart, joint = Runs(setup, [0]), Runs(setup), Runs(setup)
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
        raise AssertionError(f"{workload.name}: five seeds together differ from five apart by {gap}")
    median = {way: statistics.median(values[1:]) for way, values in seconds.items()}
    each = at_once(one_of_several, SEEDS, repeats, workload.name, device.type)
    median["processes"] = statistics.median(map(max, zip(*each, strict=True)))  # until the last is done
    return {
        "workload": workload.name,
        "seeds": SEEDS,
        "what": f"{SEEDS} seeds of {workload.name} ({workload.what}, {setup.protocol.local.iterations} steps)",
        "seconds": {way: round(value, 4) for way, value in median.items()},
        "together_over_one": round(median["together"] / median["one"], 2),
        "apart_over_together": round(median["apart"] / median["together"], 2),
        "processes_over_together": round(median["processes"] / median["together"], 2),
        "largest_difference": gap,
        "repeats": repeats,
    }
