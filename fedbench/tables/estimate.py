"""How long a plan will take: client-steps of every run times the measured seconds of a step on this machine.

A run of which another seed is finished takes what that one took. Otherwise a step of FedAvg with the same data, model
and local work is timed, as where an engine is picked; the method's stages count in full, what happens inside a step
(proximal loops, a second gradient) and on the server does not, so a first estimate is a lower bound for such methods.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fedbench.core.errors import FedbenchError
from fedbench.engine import schedule
from fedbench.engine.contract import Clock
from fedbench.engine.pick.calibrate import Contender, pace
from fedbench.engine.setup import Setup
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.runs.config import RunConfig
from fedbench.runs.execution import build
from fedbench.tables.job import Job
from fedbench.tables.plan import Plan

FORWARD_SHARE = 1 / 3  # of a training step's time


class Estimator:
    """Estimates with what it has measured so far kept."""

    def __init__(self) -> None:
        self._setups: dict[str, Setup] = {}  # by everything but method and seed
        self._step: dict[str, float] = {}  # seconds of a client-step

    def seconds(self, plan: Plan) -> tuple[float, int]:
        """(seconds of all missing runs of `plan` one after another, how many could not be estimated).

        A run whose data, partition or network cannot be built has no estimate; it will fail and say why.
        """
        total, unknown = 0.0, 0
        for job in plan.missing():
            if job.study:
                continue
            try:
                total += self.of(job, plan)
            except FedbenchError:
                unknown += 1
        return total, unknown

    def of(self, job: Job, plan: Plan) -> float:
        """Seconds of one run."""
        known = _finished_twin(job, plan)
        if known is not None:
            return known
        where = _without_method(job.config)
        if where not in self._setups:
            setup = build(job.config)[0]
            paces = [
                pace(dataclasses.replace(kind, method=FedAvg()), {"looped": Contender(LoopedTrainer)})[
                    "looped"
                ]
                for kind in setup.kinds
            ]
            self._step[where] = sum(paces) / len(paces)
            self._setups[where] = setup  # last: a pace that cannot be taken is tried again, and told again
        setup = self._setups[where]
        return client_steps(setup, job.config) * self._step[where] + (
            scored_batches(setup, job.config) * self._step[where] * FORWARD_SHARE
        )


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


def told(plan: Plan, at_once: int) -> str:
    """The estimate as words, for a plan that runs `at_once` runs at a time."""
    seconds, unknown = Estimator().seconds(plan)
    without = f", without {unknown} runs that cannot be built" if unknown else ""
    return f"about {spell(seconds / at_once)}{without}"


def spell(seconds: float) -> str:
    """Seconds as people say them."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _finished_twin(job: Job, plan: Plan) -> float | None:
    """Seconds that another seed of the same row and column took."""
    for entry in plan.entries:
        for jobs in (entry.jobs, entry.baselines):
            if any(each.key == job.key for each in jobs):
                return _mean([float(j.folder.result()["seconds_total"]) for j in jobs if j.finished])
    return None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _without_method(config: RunConfig) -> str:
    parts = [config.dataset, config.partition, config.model, config.protocol.local, config.protocol.test]
    return repr(parts)
