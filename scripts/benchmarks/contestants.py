"""Who takes part in a workload: each engine, a plain loop, and one model on the merged batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks import plain
from fedbench.config.schema import HardwareConfig
from fedbench.engine.contract import Clock
from fedbench.engine.hardware import pick_trainer, set_precision
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.trainer import Trainer
from fedbench.engine.workers import WorkersTrainer, available_workers

TF32 = "tf32"  # the stacked engine, multiplying in TensorFloat-32

Contestant = Callable[[int], Callable[[], int]]
"""Makes round number so many ready, its batches on the device, which is not timed: the round."""


def trainers(setup: Setup) -> dict[str, Trainer]:
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


def of(setup: Setup, trainers: Mapping[str, Trainer]) -> dict[str, Contestant]:
    """All of them, by name."""
    engines = {name: _engine(setup, trainer, tf32=name == TF32) for name, trainer in trainers.items()}
    return {**engines, "plain": _plain(setup), "merged": _merged(setup)}


def _engine(setup: Setup, trainer: Trainer, *, tf32: bool = False) -> Contestant:
    simulation = Simulation(setup, trainer)
    state = simulation.begin()

    def ready(repeat: int) -> Callable[[], int]:
        state.round = repeat
        ids = setup.draw_cohort(Clock(repeat, setup.protocol.rounds))

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
        ids = setup.draw_cohort(Clock(repeat, setup.protocol.rounds))
        return partial(plain.plain_round, setup, model, ids, plain.schedule_of(setup, ids, repeat))

    return ready


def _merged(setup: Setup) -> Contestant:
    model = plain.fresh_model(setup)

    def ready(repeat: int) -> Callable[[], int]:
        ids = setup.draw_cohort(Clock(repeat, setup.protocol.rounds))
        return partial(plain.merged_round, setup, model, plain.schedule_of(setup, ids, repeat))

    return ready


def close(trainers: Mapping[str, Trainer]) -> None:
    """End the processes that engines started."""
    for trainer in trainers.values():
        trainer.close()
