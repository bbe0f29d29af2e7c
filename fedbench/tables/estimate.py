"""How long a plan will take: client-steps of every run times the measured seconds of a step on this machine.

A run of which another seed is finished takes what that one took. Otherwise a step of FedAvg with the same data, model
and local work is timed, as where an engine is picked; the method's stages count in full, what happens inside a step
(proximal loops, a second gradient) and on the server does not, so a first estimate is a lower bound for such methods.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fedbench.core.errors import FedbenchError
from fedbench.engine import schedule
from fedbench.engine.contract import Clock
from fedbench.engine.pick.calibrate import Contender, pace
from fedbench.engine.setup import Setup
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.results.environment import machine
from fedbench.runs.config import RunConfig
from fedbench.runs.execution import build
from fedbench.tables.job import Job
from fedbench.tables.plan import Plan

FORWARD_SHARE = 1 / 3  # of a training step's time


class Estimator:
    """Estimates with what it has measured so far kept."""

    def __init__(self) -> None:
        # By everything but method and seed; where there can be none, the error that says why.
        self._setups: dict[str, Setup | FedbenchError] = {}
        self._step: dict[str, float] = {}  # seconds of a client-step

    def of(self, job: Job, plan: Plan) -> tuple[float, bool]:
        """(seconds of one run, whether a finished one told them).

        Raises:
            FedbenchError: its data, partition or network cannot be built; the run will fail and say why.
        """
        known = _finished_twin(job, plan)
        if known is not None:
            return known, True
        where, setup = _without_method(job.config), self.setup(job.config)
        if where not in self._step:
            one = {"looped": Contender(LoopedTrainer)}
            paces = [pace(dataclasses.replace(kind, method=FedAvg()), one)["looped"] for kind in setup.kinds]
            self._step[where] = sum(paces) / len(paces)
        batches = client_steps(setup, job.config) + scored_batches(setup, job.config) * FORWARD_SHARE
        return batches * self._step[where], False

    def setup(self, config: RunConfig) -> Setup:
        """The setup of a run; those with the same data, partition and network share all else. Raises as `of`."""
        where = _without_method(config)
        if where not in self._setups:
            try:
                self._setups[where] = build(config.local or config)[0]  # Local fits every network
            except FedbenchError as error:
                self._setups[where] = error
        found = self._setups[where]
        if isinstance(found, FedbenchError):
            raise found
        return dataclasses.replace(found, method=config.method)  # refuses one that does not fit the network


def client_steps(setup: Setup, config: RunConfig) -> float:
    """Expected client-steps of the whole run: every stage of the method, on an average cohort."""
    protocol = config.protocol
    sizes = [int(size) for size in setup.population.sizes]
    stages = config.method.stages(protocol.local, Clock(0, protocol.rounds))
    each = sum(schedule.steps(size, protocol.local, stage) for size in sizes for stage in stages) / len(sizes)
    return protocol.rounds * protocol.cohort_size(len(sizes)) * each


def scored_batches(setup: Setup, config: RunConfig) -> float:
    """Batches of training size that all evaluations pass forward."""
    protocol = config.protocol
    samples = sum(int(each.sizes.sum()) for name, each in setup.federation.sets.items() if name != "train")
    return -(-protocol.rounds // protocol.eval_every) * samples / protocol.local.batch_size


def spell(seconds: float) -> str:
    """Seconds as people say them."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _finished_twin(job: Job, plan: Plan) -> float | None:
    """Seconds that another seed of the same row and column took on this machine."""
    for entry in plan.entries:
        for jobs in (entry.jobs, entry.baselines):
            if any(each.key == job.key for each in jobs):
                return _mean([seconds for each in jobs if (seconds := _spent(each, plan)) is not None])
    return None


def _spent(job: Job, plan: Plan) -> float | None:
    """Seconds of a finished run, or of one that was recorded here."""
    row: Mapping[str, Any] = job.folder.result() if job.finished else {}
    if not row and plan.recorded.made and plan.recorded.made.machine == machine():
        row = plan.recorded.rows.get(job.key, {})
    return float(row["seconds_total"]) if row.get("seconds_total") else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _without_method(config: RunConfig) -> str:
    parts = [config.dataset, config.partition, config.model, config.protocol.local, config.protocol.test]
    return repr(parts)
