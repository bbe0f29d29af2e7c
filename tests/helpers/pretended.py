"""A run on the pretend accelerator beside the same on the CPU: what fails, how far they differ, what is waited for."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from fedbench.core.trees import Tree
from fedbench.engine import checkpoint, looped, stacked
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation, State, pack, unpack
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Engine, Trainer
from fedbench.testing.toys import Subject, gap, simulate
from tests.helpers.accelerator import DEVICE, Accelerator
from tests.helpers.pair import pair

ENGINES: dict[str, Callable[[Setup], Engine]] = {
    "looped": LoopedTrainer,
    "stacked": partial(StackedTrainer, chunk=99),
}
SIZES = (9, 1, 13, 8, 5) * 4  # samples of twenty clients


@dataclass(frozen=True)
class Trial:
    """What a run on the accelerator came to."""

    apart: float  # largest difference from the CPU, of any leaf or score
    step: int  # waits within local steps, all of them together
    round: int  # waits of the round with most, scoring included
    kinds: Counter[str]  # waits of all rounds
    operations: float  # a local step: of a client, or of a chunk
    views: float  # the same, of operations that launch nothing


class Rounds(Simulation):
    """Does not count what a preparation waits for: it comes once, whichever round it follows."""

    gpu: Accelerator

    def prepare(self, state: State) -> None:
        """As any simulation."""
        counted = {where: Counter(waits) for where, waits in self.gpu.waits.items()}
        super().prepare(state)
        self.gpu.waits.clear()
        self.gpu.waits.update(counted)


def trial(toy: Callable[[torch.device], Setup], build: Callable[[Setup], Trainer]) -> Trial:
    """The run that `toy` sets up on a device by the engine that `build` makes, with a checkpoint before the last round.

    Raises:
        Misplaced: CUDA would refuse what the run does. (Or whatever else ends the run.)
    """
    there = toy(torch.device("cpu"))
    expected = simulate(there, build(there))
    with Accelerator() as gpu, counting(gpu) as taken:
        setup = toy(DEVICE)
        simulation = Rounds(setup, build(setup))
        simulation.gpu = gpu
        state = simulation.begin()
        most, kinds, steps = 0, Counter[str](), 0
        gpu.waits.clear()
        while not simulation.done(state):
            if state.round == setup.protocol.rounds - 1:
                state = through_a_file(state)
            gpu.waits.clear()
            simulation.step(state)
            most = max(most, sum(counts.total() for counts in gpu.waits.values()))
            kinds += sum(gpu.waits.values(), Counter[str]())
            steps += gpu.waits.get("step", Counter[str]()).total()
        found = comparable(state)
    operations, views = (counts["step"] / len(taken) for counts in (gpu.operations, gpu.views))
    return Trial(gap(found, comparable(expected)), steps, most, kinds, operations, views)


def federated(subject: Subject, kind: str, cohort: int) -> Callable[[torch.device], Setup]:
    """The toy `kind` with twenty clients, of which `cohort` take part in a round."""
    sizes = tuple(max(subject.declared.smallest, size) for size in SIZES)
    return lambda device: subject.toy(kind, clients=sizes, cohort=cohort, device=device)


def of_kinds(method: Method, cohort: int) -> Callable[[torch.device], Setup]:
    """Twenty clients, eight of one kind and twelve of another, of which `cohort` take part in a round."""
    sizes = tuple(2 + max(3, size) for size in SIZES)
    kind = (0,) * 8 + (1,) * 12
    return lambda device: pair(
        method, sizes, kind, device=device, rounds=2, cohort=str(cohort), eval_every=1, score="received"
    )


def comparable(state: State) -> Tree:
    """All of a state but its timings, on the CPU."""
    return {name: leaf.cpu() for name, leaf in pack(state)[0].items() if "seconds" not in name}


def through_a_file(state: State) -> State:
    """The state that a checkpoint of `state` restores."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state"
        checkpoint.write_checkpoint(file, *pack(state))
        return unpack(*checkpoint.read_checkpoint(file), DEVICE)


@contextmanager
def counting(gpu: Accelerator) -> Iterator[list[None]]:
    """Count what local steps do under `step`; the list grows by one a step."""
    taken: list[None] = []

    def within(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            taken.append(None)
            with gpu.scope("step"):
                return function(*args, **kwargs)

        return step

    with (
        patch.object(looped, "step_once", within(looped.step_once)),
        patch.object(stacked.Program, "step", within(stacked.Program.step)),
    ):
        yield taken
