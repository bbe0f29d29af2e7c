"""Runs of clients with batch normalisation."""

from __future__ import annotations

from typing import Any

from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.state import State
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.models.lenet5 import LeNet5
from tests.methods.toys import FOUR, federation, setup


def normalised(method: Method, **options: Any) -> Setup:
    """A toy with batch normalisation."""
    return setup(method, federation(FOUR, (1, 16, 16)), LeNet5(batch_norm=True), **{"epochs": 1, **options})


def steps(chosen: Setup, rounds: int) -> tuple[Simulation, State]:
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    for _ in range(rounds):
        simulation.step(state)
    return simulation, state
