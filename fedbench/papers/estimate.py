"""What a plan will take: time, memory and disk of the runs that it lacks, on this machine.

A run of which another seed is finished takes what that one took. Otherwise its client-steps are multiplied by the
seconds of a step of FedAvg with the same data, model and local work, timed as where an engine is picked; the method's
stages and the scoring of each client's model count. What happens inside a step (proximal loops, a second gradient), on
the server and before the first round does not, so a first estimate is a lower bound for such methods. Where clients
share one model, which is scored but once on the test set of all, it is an upper one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fedbench.core import trees
from fedbench.core.errors import FedbenchError
from fedbench.engine import schedule
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.hardware import client_bytes, free_bytes
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import scored_sets
from fedbench.engine.timing import EngineCandidate, time_engines
from fedbench.methods.fedavg import FedAvg
from fedbench.papers.plan import Job, Plan, of_runs
from fedbench.runs.building import build
from fedbench.runs.config import RunConfig
from fedbench.runs.fingerprint import machine
from fedbench.runs.progress import amount, human_bytes, rough_seconds

FORWARD_SHARE = 1 / 3  # of a training step's time
PROCESS = 450e6  # bytes of Python with PyTorch
ROUND = 150  # bytes of a scored round on disk, and of a client
LOGS = 20e3  # bytes of the other files of a finished run


@dataclass
class ResourceEstimate:
    """Time, memory and disk of those runs of a plan that can be built."""

    plan: Plan | None = None  # whose finished runs tell of others
    seconds: float = 0.0  # of all, one after another
    finished: int = 0  # runs estimated by a finished one
    timed: int = 0  # runs estimated by a timed step
    unknown: dict[str, list[str]] = field(default_factory=dict)  # why a run cannot be built -> identities
    memory: float = 0.0  # bytes, of the largest run
    kept: float = 0.0  # bytes on disk, of all runs when they are finished
    checkpoint: float = 0.0  # bytes on disk, of the largest run while it runs
    # By all but method and seed: the setup, or why there is none; seconds of a client-step.
    _setups: dict[str, Setup | FedbenchError] = field(default_factory=dict)
    _steps: dict[str, float] = field(default_factory=dict)

    def add(self, job: Job) -> None:
        """Count one more run, or note why it cannot be built: it will fail and say so."""
        try:
            setup = self.setup(job.config)
            seconds = _seconds_of_another_seed(job, self.plan) if self.plan else None
            self.seconds += self._timed(job.config, setup) if seconds is None else seconds
        except FedbenchError as error:
            self.unknown.setdefault(str(error), []).append(job.identity)
            return
        self.finished += seconds is not None
        self.timed += seconds is None
        protocol, clients = job.config.protocol, len(setup.population.sizes)
        model = max(trees.row_bytes(trees.expand(kind.task.fresh().state_dict(), 1)) for kind in setup.kinds)
        state = (clients + 1) * model  # of a method that keeps a model on every client
        data = setup.federation.x.numel() * setup.federation.x.element_size()
        trained = max(client_bytes(kind) for kind in setup.kinds)  # one client at a time
        cohort = 2 * protocol.cohort_size(clients) * model
        self.memory = max(self.memory, PROCESS + data + state + cohort + trained)
        self.checkpoint = max(self.checkpoint, state)
        evaluations = -(-protocol.rounds // protocol.eval_every)
        self.kept += LOGS + ROUND * (evaluations + clients) + 8 * clients**2
        self.kept += state if job.config.settings.save_models else 0

    def setup(self, config: RunConfig) -> Setup:
        """Return the setup of a run; those with the same data, partition and network share all else."""
        where = _without_method(config)
        if where not in self._setups:
            try:
                self._setups[where] = build(config.changed(**config.local_values))  # Local fits every network
            except FedbenchError as error:
                self._setups[where] = error
        built = self._setups[where]
        if isinstance(built, FedbenchError):
            raise built
        return replace(built, method=config.method)  # refuses one that does not fit the network

    def _timed(self, config: RunConfig, setup: Setup) -> float:
        """Return the seconds of a run, from those of a step."""
        batches = client_steps(setup, config) + scored_batches(setup, config) * FORWARD_SHARE
        return batches * self._pace(repr([config.dataset, config.model, config.protocol.local]), setup, FedAvg())

    def timed_as_it_is(self, config: RunConfig) -> float:
        """Return the seconds of a run by a timed step of its own method, and the scoring by one of FedAvg.

        Raises:
            FedbenchError: it cannot be built.
        """
        setup, alike = self.setup(config), [config.dataset, config.model, config.protocol.local]
        own, usual = (  # a step takes the same on every partition
            self._pace(repr([*alike, method]), setup, method) for method in (config.method, FedAvg())
        )
        share = config.protocol.cohort_size(len(setup.population.sizes)) / len(setup.population.sizes)
        plain = float(schedule.all_steps(setup.population.sizes, config.protocol.local).sum()) * share
        adapted = client_steps(setup, config) - client_steps(setup, config, scored=False)
        scored = adapted + scored_batches(setup, config) * FORWARD_SHARE
        return config.protocol.rounds * plain * own + scored * usual

    def _pace(self, where: str, setup: Setup, method: Method) -> float:
        """Return the seconds of a plain local step with `method`, mean over the kinds of client; timed once `where`."""
        if where not in self._steps:
            one = {"looped": EngineCandidate(LoopedTrainer)}
            paces = [time_engines(replace(kind, method=method), one)["looped"] for kind in setup.kinds]
            self._steps[where] = sum(paces) / len(paces)
        return self._steps[where]


def estimate(
    plan: Plan, missing: Sequence[Job], at_once: int = 1, paces: dict[str, float] | None = None
) -> ResourceEstimate:
    """Return what the runs `missing` of `plan` take, of which `at_once` share the cores; studies are left out.

    `paces`: seconds of a step that earlier estimates timed, to which this one adds its own.
    """
    total, threads = ResourceEstimate(plan, _steps={} if paces is None else paces), torch.get_num_threads()
    torch.set_num_threads(max(1, threads // at_once))
    try:
        for job in (each for each in missing if not each.study):
            total.add(job)
    finally:
        torch.set_num_threads(threads)
    return total


def estimate_lines(plan: Plan, missing: Sequence[Job], at_once: int) -> Iterator[str]:
    """Yield lines for people, of runs of which `at_once` run at a time: what cannot be built, what the rest takes."""
    total = estimate(plan, missing, at_once)
    for reason, identities in total.unknown.items():
        yield f"cannot be built: {of_runs(plan, identities)}: {reason}"
    ways = {"finished ones": total.finished, "a step timed here, without starts and servers": total.timed}
    how = ", ".join(f"{amount(count, 'run')} by {way}" for way, count in ways.items() if count)
    if not how:
        return
    yield f"time: about {rough_seconds(total.seconds / at_once)} on this machine, {at_once} at once ({how})"
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


def client_steps(setup: Setup, config: RunConfig, *, scored: bool = True) -> float:
    """Return expected client-steps of a run: all stages on an average cohort, and what clients adapt when `scored`."""
    local, clock = config.protocol.local, Clock(0, config.protocol.rounds)
    sizes = [int(size) for size in setup.population.sizes]

    def steps(stages: Sequence[Stage]) -> int:
        return sum(schedule.steps(size, local, stage) for size in sizes for stage in stages)

    share = config.protocol.cohort_size(len(sizes)) / len(sizes)
    trained = config.protocol.rounds * share * steps(config.method.stages(local, clock))
    return trained + scored * _scorings(config)[0] * steps(config.method.adapt(local, clock))


def scored_batches(setup: Setup, config: RunConfig) -> float:
    """Return the batches of training size that all evaluations pass forward, each client's model on its own."""
    received, trained = _scorings(config)
    clients = range(setup.population.clients)
    share = config.protocol.cohort_size(len(clients)) / len(clients)

    def samples(sets: Sequence[str]) -> int:
        return sum(len(setup.scored.indices(name, client)) for name in sets for client in clients)

    first, last = samples(scored_sets(setup, 0)), samples(scored_sets(setup))  # which differ where tests are read once
    return ((received + trained * share - 1) * first + last) / config.protocol.local.batch_size


def _scorings(config: RunConfig) -> tuple[int, int]:
    """Return how often all clients are scored as received, round 0 included, and a cohort after its training."""
    times, score = -(-config.protocol.rounds // config.protocol.eval_every), config.protocol.score
    return 0 if score == "trained" else times + 1, 0 if score == "received" else times


def _seconds_of_another_seed(job: Job, plan: Plan) -> float | None:
    """Return the mean seconds that seeds of the same row and column took on this machine; None without any."""
    lists = (jobs for cell in plan.cells for jobs in (cell.jobs, cell.baselines))
    seeds = next((jobs for jobs in lists if any(each.key == job.key for each in jobs)), ())
    times = [seconds for each in seeds if (seconds := _seconds_taken(each, plan)) is not None]
    return sum(times) / len(times) if times else None


def _seconds_taken(job: Job, plan: Plan) -> float | None:
    """Return the seconds of a finished run, or of one that was recorded here."""
    row: Mapping[str, Any] = job.folder.result() if job.finished else {}
    if not row and plan.stored.provenance and plan.stored.provenance.machine == machine():
        row = plan.stored.rows.get(job.key, {})
    return float(row["seconds_total"]) if row.get("seconds_total") else None


def _without_method(config: RunConfig) -> str:
    protocol = config.protocol
    return repr([config.dataset, config.partition, config.model, protocol.local, protocol.test])
