"""How long a plan will take: client-steps of every run times the measured seconds of a step on this machine.

A run of which another seed is finished takes what that one took. Otherwise a step of FedAvg with the same data, model
and local work is timed, as where an engine is picked; the method's stages and the scoring of each client's model count.
What happens inside a step (proximal loops, a second gradient), on the server and before the first round does not, so a
first estimate is a lower bound for such methods. Where clients share one model, which is scored but once on the test
set of all, it is an upper one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fedbench.core.errors import FedbenchError
from fedbench.engine import schedule
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.pick.calibrate import Contender, pace
from fedbench.engine.scores import scored_sets
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
    """Expected client-steps of the whole run: every stage on an average cohort, and what clients adapt when scored."""
    local, clock = config.protocol.local, Clock(0, config.protocol.rounds)
    sizes = [int(size) for size in setup.population.sizes]

    def steps(stages: Sequence[Stage]) -> int:
        return sum(schedule.steps(size, local, stage) for size in sizes for stage in stages)

    trained = config.protocol.rounds * _share(config, len(sizes)) * steps(config.method.stages(local, clock))
    return trained + _scorings(config)[0] * steps(config.method.adapt(local, clock))


def scored_batches(setup: Setup, config: RunConfig) -> float:
    """Batches of training size that all evaluations pass forward, each client's model on its own."""
    received, trained = _scorings(config)
    clients, sets = range(setup.population.clients), scored_sets(setup)
    samples = sum(len(setup.scored.indices(name, client)) for name in sets for client in clients)
    return (received + trained * _share(config, len(clients))) * samples / config.protocol.local.batch_size


def _scorings(config: RunConfig) -> tuple[int, int]:
    """How often all clients are scored as received, which includes round 0, and a cohort after its training."""
    protocol = config.protocol
    evaluations = -(-protocol.rounds // protocol.eval_every)
    received = 0 if protocol.score == "trained" else evaluations + 1
    return received, 0 if protocol.score == "received" else evaluations


def _share(config: RunConfig, clients: int) -> float:
    """Of the clients, in a round."""
    return config.protocol.cohort_size(clients) / clients


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
