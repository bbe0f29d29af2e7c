"""Seconds: of FedSaC's phases (Yan et al., 2024, Table 6) and of local training a sample (pFedSim, Table 7).

Clients are trained one after another, whatever engine the config asks for: both tables are about one client's work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor

from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.state import State
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.trainer import Outcome
from fedbench.methods.fedsac import FedSaC
from fedbench.methods.parts import simplex, subspace
from fedbench.runs.config import RunConfig
from fedbench.runs.execution import build
from fedbench.tables.studies.base import Study

REPEATS = 5  # of what takes milliseconds; the median counts
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Lap:
    """One client in one round."""

    samples: int
    training: float  # seconds in the optimiser's steps
    seconds: float  # in all local work


class Stopwatch(LoopedTrainer):
    """The plain loop, timed client by client; keeps the latest uploads."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.laps: list[Lap] = []
        self.uploads: Tree = {}
        self._steps = 0.0

    def train(
        self, ids: Tensor, message: Tree, memory: Tree, clock: Clock, score: Sequence[str] = ()
    ) -> Outcome:
        """See Trainer.train."""
        outcome = super().train(ids, message, memory, clock, score)
        self.uploads = outcome.uploads
        return outcome

    def train_one(self, client: int, view: Client, score: Sequence[str]) -> Outcome:
        """See LoopedTrainer.train_one; timed with what the client then makes of its upload."""

        def work() -> Outcome:
            outcome = super(Stopwatch, self).train_one(client, view, score)
            with torch.no_grad():
                self.setup.method.compress(outcome.uploads)
            return outcome

        self._steps = 0.0
        outcome, seconds = self.timed(work)
        self.laps.append(Lap(self.setup.federation.size(client), self._steps, seconds))
        return outcome

    def descend(
        self, client: int, work: Tree, view: Client, stages: Sequence[Stage], purpose: str
    ) -> list[Tensor]:
        """See LoopedTrainer.descend."""
        losses, seconds = self.timed(
            lambda: super(Stopwatch, self).descend(client, work, view, stages, purpose)
        )
        self._steps += seconds
        return losses

    def timed(self, work: Callable[[], ResultT]) -> tuple[ResultT, float]:
        """(result, seconds) of `work`, waiting for a GPU to end it."""
        device = self.setup.federation.device
        begin = time.perf_counter()
        result = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return result, time.perf_counter() - begin

    def median(self, work: Callable[[], object]) -> float:
        """Median seconds of `work` over a few repeats."""
        return median(self.timed(work)[1] for _ in range(REPEATS))


def play(config: RunConfig) -> tuple[Stopwatch, State]:
    """All rounds of a run, timed; clients are scored before the first and after the last only."""
    setup = build(config)[0]
    setup = replace(
        setup, protocol=replace(setup.protocol, score="received", eval_every=setup.protocol.rounds)
    )
    watch = Stopwatch(setup)
    simulation = Simulation(setup, watch)
    state = simulation.begin()
    while not simulation.done(state):
        simulation.step(state)
    return watch, state


@dataclass(frozen=True)
class LocalSeconds(Study):
    """pFedSim's xi_p: seconds of a client's local work over its training samples, mean over rounds and cohorts."""

    def run(self, config: RunConfig) -> dict[str, float]:
        """`seconds_per_sample`."""
        laps = play(config)[0].laps
        return {"seconds_per_sample": sum(lap.seconds / lap.samples for lap in laps) / len(laps)}


@dataclass(frozen=True)
class FedSaCPhases(Study):
    """Seconds a round of one client's local training, and of what FedSaC adds for all of its clients."""

    def run(self, config: RunConfig) -> dict[str, float]:
        """`training`, `similarity`, `complementarity` (subspaces and their angles) and `optimization` (Eq. 8)."""
        method = config.method
        if not isinstance(method, FedSaC):
            raise ConfigError("the study 'fedsac_phases' needs method=fedsac")
        watch, state = play(config)
        ids = torch.arange(watch.setup.federation.clients)
        cohort = watch.setup.cohort(ids, Clock(0, config.protocol.rounds))
        with torch.no_grad():
            S = method.similarities(state.server, watch.uploads, cohort)
            U = watch.uploads["subspace/U"]
            C = subspace.complementarity(U, method.angles == "greedy").to(S)
            rows = cohort.weights.to(S) - (method.alpha * C - method.beta * S) / 2
            similarity = watch.median(lambda: method.similarities(state.server, watch.uploads, cohort))
            angles = watch.median(lambda: subspace.complementarity(U, method.angles == "greedy"))
            optimization = watch.median(lambda: simplex.project(rows))
        subspaces = median(lap.seconds - lap.training for lap in watch.laps)
        return {
            "training": median(lap.training for lap in watch.laps),
            "similarity": similarity,
            "complementarity": len(ids) * subspaces + angles,
            "optimization": optimization,
        }
