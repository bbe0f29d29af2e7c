"""What the missing runs of a table take on this machine: time, memory, disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from fedbench.core import trees
from fedbench.core.errors import FedbenchError
from fedbench.engine.pick.footprint import client_bytes, free_bytes
from fedbench.engine.setup import Setup
from fedbench.results.units import human_bytes
from fedbench.tables import naming
from fedbench.tables.estimate import Estimator, spell
from fedbench.tables.job import Job
from fedbench.tables.plan import Plan

PROCESS = 450e6  # bytes of Python with PyTorch
ROUND = 150  # bytes of a scored round on disk, and of a client
LOGS = 20e3  # bytes of the other files of a finished run


@dataclass
class Needs:
    """Of the missing runs that can be built."""

    seconds: float = 0.0  # of all, one after another
    finished: int = 0  # runs estimated by a finished one
    timed: int = 0  # runs estimated by a timed step
    unknown: dict[str, list[str]] = field(default_factory=dict)  # why a run cannot be built -> identities
    memory: float = 0.0  # bytes, of the largest run
    kept: float = 0.0  # bytes on disk, of all runs when they are finished
    checkpoint: float = 0.0  # bytes on disk, of the largest run while it runs

    def add(self, estimator: Estimator, job: Job, plan: Plan) -> None:
        """Count one more run."""
        seconds, of_finished = estimator.of(job, plan)
        self.seconds += seconds
        self.finished += of_finished
        self.timed += not of_finished
        setup = estimator.setup(job.config)
        model, clients = _model(setup), len(setup.population.sizes)
        state = (clients + 1) * model  # of a method that keeps a model on every client
        self.memory = max(self.memory, _memory(setup, state))
        self.checkpoint = max(self.checkpoint, state)
        evaluations = -(-job.config.protocol.rounds // job.config.protocol.eval_every)
        self.kept += LOGS + ROUND * (evaluations + clients) + 8 * clients**2
        self.kept += state if job.config.settings.save_models else 0


def needs(plan: Plan, missing: Sequence[Job], at_once: int = 1) -> Needs:
    """Of the runs `missing` of `plan`, of which `at_once` share the cores; studies are left out."""
    found, estimator = Needs(), Estimator()
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // at_once))
    try:
        for job in missing:
            if job.study:
                continue
            try:
                found.add(estimator, job, plan)
            except FedbenchError as error:
                found.unknown.setdefault(str(error), []).append(job.identity)
    finally:
        torch.set_num_threads(threads)
    return found


def told(plan: Plan, missing: Sequence[Job], at_once: int) -> Iterator[str]:
    """Lines for people, of runs of which `at_once` run at a time: what cannot be built and why, what the rest takes."""
    found = needs(plan, missing, at_once)
    for reason, identities in found.unknown.items():
        yield f"cannot be built: {naming.of_runs(plan, identities)}: {reason}"
    sources = {
        "by finished ones": found.finished,
        "by a step timed here, without what servers do": found.timed,
    }
    if not any(sources.values()):
        return
    how = ", ".join(f"{count} runs {source}" for source, count in sources.items() if count)
    yield f"time: about {spell(found.seconds / at_once)} on this machine, {at_once} at once ({how})"
    free = free_bytes(torch.device("cpu"))
    memory = at_once * found.memory
    yield (
        f"memory: about {human_bytes(memory)}, {human_bytes(free)} are free"
        f"{_short(memory, free, 'jobs=1 takes least')}"
    )
    where = missing[0].folder.path
    room = shutil.disk_usage(next(each for each in (where, *where.parents) if each.exists())).free
    disk = found.kept + at_once * found.checkpoint
    yield (
        f"disk: about {human_bytes(found.kept)} in {missing[0].config.settings.runs_dir}, "
        f"{human_bytes(disk)} with checkpoints while runs go on; {human_bytes(room)} are free"
        f"{_short(disk, room, 'runs_dir=DIR goes elsewhere')}"
    )


def _memory(setup: Setup, state: float) -> float:
    """Of a run that trains one client at a time: the data, every model that is kept, those of a cohort, the client."""
    x, clients = setup.federation.x, len(setup.population.sizes)
    cohort = setup.protocol.cohort_size(clients) * _model(setup)
    trained = max(client_bytes(kind) for kind in setup.kinds)
    return PROCESS + x.numel() * x.element_size() + state + 2 * cohort + trained


def _model(setup: Setup) -> int:
    """Bytes of one model."""
    return max(trees.row_bytes(trees.expand(kind.task.fresh().state_dict(), 1)) for kind in setup.kinds)


def _short(wanted: float, free: float, way: str) -> str:
    return f" (too little: {way})" if wanted > free else ""
