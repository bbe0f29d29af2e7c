"""How long a plan will take: client-steps of every run times the measured seconds of a step on this machine.

A run of which another seed is finished takes what that one took. Otherwise a step of FedAvg with the same data, model
and local work is timed, as where an engine is picked; the method's stages and the scoring of each client's model count.
What happens inside a step (proximal loops, a second gradient), on the server and before the first round does not, so a
first estimate is a lower bound for such methods. Where clients share one model, which is scored but once on the test
set of all, it is an upper one.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedbench.core import trees
from fedbench.core.errors import FedbenchError
from fedbench.engine import schedule
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.hardware import Contender, client_bytes, free_bytes, pace
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import scored_sets
from fedbench.methods.fedavg import FedAvg
from fedbench.runs.config import RunConfig
from fedbench.runs.environment import machine
from fedbench.runs.execution import build
from fedbench.runs.progress import human_bytes
from fedbench.tables.plan import Job, Plan, of_runs

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
    for cell in plan.cells:
        for jobs in (cell.jobs, cell.baselines):
            if any(each.key == job.key for each in jobs):
                return _mean([seconds for each in jobs if (seconds := _spent(each, plan)) is not None])
    return None


def _spent(job: Job, plan: Plan) -> float | None:
    """Seconds of a finished run, or of one that was recorded here."""
    row: Mapping[str, Any] = job.folder.result() if job.finished else {}
    if not row and plan.stored.provenance and plan.stored.provenance.machine == machine():
        row = plan.stored.rows.get(job.key, {})
    return float(row["seconds_total"]) if row.get("seconds_total") else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _without_method(config: RunConfig) -> str:
    parts = [config.dataset, config.partition, config.model, config.protocol.local, config.protocol.test]
    return repr(parts)


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


def estimate_lines(plan: Plan, missing: Sequence[Job], at_once: int) -> Iterator[str]:
    """Lines for people, of runs of which `at_once` run at a time: what cannot be built and why, what the rest takes."""
    found = needs(plan, missing, at_once)
    for reason, identities in found.unknown.items():
        yield f"cannot be built: {of_runs(plan, identities)}: {reason}"
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
