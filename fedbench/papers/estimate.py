"""Estimate time, memory and disk of the missing runs of a plan on this machine.

If another seed of a run is finished, the estimate is the time of that seed. Otherwise it is the number of client steps
times the seconds of a step of FedAvg with the same data, model and local work. It counts the method's stages and the
scoring of each client's model. It leaves out work inside a step (proximal loops, a second gradient), on the server and
before the first round, so it is a lower bound for such methods. If clients share one model, which is scored once on the
global test set, it is an upper bound.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedbench.core import trees
from fedbench.core.errors import FedbenchError
from fedbench.engine.hardware import client_bytes, free_bytes
from fedbench.engine.setup import Setup
from fedbench.methods.fedavg import FedAvg
from fedbench.models.task import Task
from fedbench.papers.plan import Job, Plan
from fedbench.runs.config import RunConfig
from fedbench.runs.estimate import (
    FORWARD_SHARE,
    RunTimes,
    client_steps,
    contention,
    scored_batches,
    without_method,
)
from fedbench.runs.fingerprint import machine
from fedbench.runs.progress import amount, human_bytes, rough_seconds

PROCESS = 450e6  # bytes of Python with PyTorch
START = 4.0  # seconds in which a process is ready to make runs: Python, torch, fedbench
STARTED = 0.5  # seconds of a run before its first round and after its last
ROUND = 150  # bytes of a scored round on disk, and of a client
LOGS = 20e3  # bytes of the other files of a finished run


@dataclass
class ResourceEstimate(RunTimes):
    """Time, memory and disk of those runs of a plan that can be built."""

    plan: Plan  # whose finished runs give times of others
    seconds: float = 0.0  # seconds of all runs, one after another
    finished: int = 0  # runs estimated by a finished one
    timed: int = 0  # runs estimated by a timed step
    by_step: float = 0.0  # the part of `seconds` of these runs
    unknown: dict[str, list[str]] = field(default_factory=dict)  # why a run cannot be built -> identities
    memory: float = 0.0  # bytes, of the largest run
    kept: float = 0.0  # bytes on disk, of all runs when they are finished
    checkpoint: float = 0.0  # bytes on disk, of the largest run while it runs
    _sizes: dict[Task, tuple[float, float]] = field(default_factory=dict)  # see `_size`

    def add(self, job: Job) -> None:
        """Count one more run, or note why it cannot be built: it will fail and say so."""
        try:
            setup = self.setup(job.config)
            seconds = _seconds_of_another_seed(job, self.plan)
            taken = self._timed(job.config, setup) if seconds is None else seconds
        except FedbenchError as error:
            self.unknown.setdefault(str(error), []).append(job.identity)
            return
        self.seconds += taken
        self.finished += seconds is not None
        self.timed += seconds is None
        self.by_step += taken * (seconds is None)
        protocol, clients = job.config.protocol, len(setup.population.sizes)
        model, trained = self._size(setup)
        state = (clients + 1) * model  # of a method that keeps a model on every client
        data = setup.federation.x.numel() * setup.federation.x.element_size()
        cohort = 2 * protocol.cohort_size(clients) * model
        self.memory = max(self.memory, PROCESS + data + state + cohort + trained)
        self.checkpoint = max(self.checkpoint, state)
        evaluations = -(-protocol.rounds // protocol.eval_every)
        self.kept += LOGS + ROUND * (evaluations + clients) + 8 * clients**2
        self.kept += state if job.config.settings.save_models else 0

    def of_a_call(self, at_once: int) -> float:
        """Return the seconds of a call that makes them, `at_once` at a time, including the start of its processes.

        The timed steps had a core without other load; now it may have some.
        """
        own = self.by_step + STARTED * (self.finished + self.timed)
        return (self.seconds - self.by_step + contention() * own) / at_once + contention() * START

    def _size(self, setup: Setup) -> tuple[float, float]:
        """Return the bytes of the largest network, and of a client that trains it; runs of one setup share its task."""
        if setup.task not in self._sizes:
            states = (trees.expand(each.task.fresh().state_dict(), 1) for each in setup.modalities)
            self._sizes[setup.task] = (max(map(trees.row_bytes, states)), max(map(client_bytes, setup.modalities)))
        return self._sizes[setup.task]

    def _timed(self, config: RunConfig, setup: Setup) -> float:
        """Return the seconds of a run, from those of a step."""
        batches = client_steps(setup, config) + scored_batches(setup, config) * FORWARD_SHARE
        return batches * self._pace(config, setup, FedAvg())


def estimate(plan: Plan, missing: Sequence[Job], paces: dict[str, float] | None = None) -> ResourceEstimate:
    """Return the cost of the runs `missing` of `plan`, one after another; studies are left out.

    `paces`: seconds of a step that earlier estimates timed, to which this one adds its own.
    """
    total = ResourceEstimate(plan, _steps={} if paces is None else paces)
    for job in sorted((each for each in missing if not each.study), key=lambda each: without_method(each.config)):
        total.add(job)
    return total


def estimate_lines(plan: Plan, missing: Sequence[Job], at_once: int) -> Iterator[str]:
    """Yield lines for the user, for `at_once` runs at a time: which runs cannot be built, and what the others take."""
    total = estimate(plan, missing)
    for reason, identities in total.unknown.items():
        yield f"cannot be built: {plan.of_runs(identities)}: {reason}"
    ways = {"finished ones": total.finished, "a step timed here, without servers": total.timed}
    how = ", ".join(f"{amount(count, 'run')} by {way}" for way, count in ways.items() if count)
    if not how:
        if any(job.study for job in missing):
            yield "time: no estimate of rows with `study:`"
        return
    yield f"time: about {rough_seconds(total.of_a_call(at_once))} on this machine, {at_once} at once ({how})"
    free, memory = free_bytes(torch.device("cpu")), at_once * total.memory
    short = " (too little: jobs=1 takes least)" if memory > free else ""
    yield f"memory: about {human_bytes(memory)}, {human_bytes(free)} are free{short}"
    where = missing[0].folder.path
    room = shutil.disk_usage(next(each for each in (where, *where.parents) if each.exists())).free
    disk = total.kept + at_once * total.checkpoint
    short = " (too little: runs_dir=DIR goes elsewhere)" if disk > room else ""
    kept = f"{human_bytes(total.kept)} in {missing[0].config.settings.runs_dir}"
    most = f"{human_bytes(disk)} with the checkpoints of unfinished runs"
    yield f"disk: about {kept}, {most}; {human_bytes(room)} are free{short}"


def _seconds_of_another_seed(job: Job, plan: Plan) -> float | None:
    """Return the mean seconds that seeds of the same row and column took on this machine; None without any."""
    lists = (jobs for cell in plan.cells for jobs in (cell.jobs, cell.baselines))
    seeds = next((jobs for jobs in lists if any(each.key == job.key for each in jobs)), ())
    times = [seconds for each in seeds if (seconds := _seconds_taken(each, plan)) is not None]
    return sum(times) / len(times) if times else None


def _seconds_taken(job: Job, plan: Plan) -> float | None:
    """Return the seconds of a finished run, or of one that was recorded here."""
    row: Mapping[str, Any] = job.folder.result() if job.finished else {}
    if not row and (stored := plan.stored.table) and stored.provenance.machine == machine():
        row = plan.stored.rows.get(job.key, {})
    return float(row["seconds_total"]) if row.get("seconds_total") else None
