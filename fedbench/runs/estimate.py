"""Estimate the duration of a run on this machine before it begins, from a few timed steps and its number of steps.

The work of servers and the work before the first round are not counted.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedbench.core.errors import FedbenchError
from fedbench.core.files import read_csv
from fedbench.engine import schedule
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.hardware import pace, processes
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import scored_sets
from fedbench.engine.timing import run_steps
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.parts.clustered import prepares
from fedbench.runs.building import build
from fedbench.runs.config import RunConfig
from fedbench.runs.folder import ROUNDS, RunFolder, Status, folder_of
from fedbench.runs.progress import amount, rough_seconds, title

FORWARD_SHARE = 1 / 3  # of a training step's time
LONG = 900.0  # seconds after which a line says how to make a run shorter
SMALLER = 5000  # training samples that it proposes
SETUPS = 4  # that are kept, as each holds its samples
PATIENCE = 8.0  # seconds that are spent on timing the steps of a sweep's methods


@dataclass
class RunTimes:
    """Seconds of runs by timed steps of their own methods, on one core without other load."""

    patience: float = field(default=math.inf, kw_only=True)  # seconds of timing; after it other methods' steps count
    # By all but method and seed: the last SETUPS setups, or why there is none; seconds of a client-step.
    _setups: dict[str, Setup | FedbenchError] = field(default_factory=dict, kw_only=True)
    _steps: dict[str, float] = field(default_factory=dict, kw_only=True)

    def setup(self, config: RunConfig) -> Setup:
        """Return the setup of a run; those with the same data, partition and network share all else."""
        where = without_method(config)
        if where not in self._setups:
            if len(self._setups) == SETUPS:
                del self._setups[next(iter(self._setups))]
            try:
                self._setups[where] = build(config.changed(**config.local_values))  # Local fits every network
            except FedbenchError as error:
                self._setups[where] = error
        built = self._setups[where]
        if isinstance(built, FedbenchError):
            raise built
        # Refuses a method that does not fit the network.
        return replace(built, method=config.method, protocol=config.protocol)

    def timed_as_it_is(self, config: RunConfig) -> float:
        """Return the seconds of a run by a timed step of its own method, and the scoring by one of FedAvg.

        Raises:
            FedbenchError: it cannot be built.
        """
        setup = self.setup(config)
        own, usual = (self._pace(config, setup, method) for method in (config.method, FedAvg()))
        adapted = client_steps(setup, config) - client_steps(setup, config, scored=False)
        scored = adapted + scored_batches(setup, config) * FORWARD_SHARE
        return run_steps(setup) * own + scored * usual

    def expected(self, config: RunConfig) -> float:
        """Return the seconds of a run by its engine, with the present load of this machine.

        Raises:
            FedbenchError: it cannot be built.
        """
        setup, seconds = self.setup(config), self.timed_as_it_is(config)
        return (
            seconds
            * (contention() if setup.federation.device.type == "cpu" else 1.0)
            / processes(setup, config.hardware, seconds)
        )

    def _pace(self, config: RunConfig, setup: Setup, method: Method) -> float:
        """Return the seconds of a plain local step with `method`, mean over the modalities.

        It is timed once, as it is the same on every partition.
        """
        alike = repr([config.dataset, config.model, config.protocol.local, config.hardware, method])
        if alike not in self._steps and self._steps and self.patience <= 0:
            return sum(self._steps.values()) / len(self._steps)
        if alike not in self._steps:
            begin = time.monotonic()
            paces = [pace(replace(modality, method=method), config.hardware) for modality in setup.modalities]
            self._steps[alike] = sum(paces) / len(paces)
            self.patience -= time.monotonic() - begin
        return self._steps[alike]


def contention() -> float:
    """The factor by which this process is slower so far than alone on its core; 1 if the system does not tell."""
    with suppress(OSError, ValueError):
        ran, waited, _ = map(int, Path("/proc/self/schedstat").read_text(encoding="ascii").split())
        return (ran + waited) / max(1, ran)
    return 1.0


def client_steps(setup: Setup, config: RunConfig, *, scored: bool = True) -> float:
    """Return expected client-steps of a run: all stages on an average cohort, and what clients adapt when `scored`."""
    local, clock = config.protocol.local, Clock(0, config.protocol.rounds)
    sizes = [int(size) for size in setup.population.sizes]

    def steps(stages: Sequence[Stage]) -> int:
        return sum(schedule.steps(size, local, stage) for size in sizes for stage in stages)

    share = config.protocol.cohort_size(len(sizes)) / len(sizes)
    trained = config.protocol.rounds * share * steps(config.method.stages(local, clock))
    return trained + scored * _scorings(config, len(sizes))[0] * steps(config.method.adapt(local, clock))


def scored_batches(setup: Setup, config: RunConfig) -> float:
    """Return the batches of training size that all evaluations pass forward, each client's model on its own."""
    clients = range(setup.population.clients)
    received, trained = _scorings(config, len(clients))
    share = config.protocol.cohort_size(len(clients)) / len(clients)

    def samples(sets: Sequence[str]) -> int:
        return sum(len(setup.scored.indices(name, client)) for name in sets for client in clients)

    first, last = samples(scored_sets(setup, 0)), samples(scored_sets(setup))  # which differ where tests are read once
    return ((received + trained * share - 1) * first + last) / config.protocol.local.batch_size


def _scorings(config: RunConfig, clients: int) -> tuple[int, int]:
    """Return how often all clients are scored as received, round 0 included, and a cohort after its training.

    A client of a partial cohort may not be drawn again before the next evaluation, so it is scored in each round.
    """
    protocol, score = config.protocol, config.protocol.score
    times = -(-protocol.rounds // protocol.eval_every)
    after = times if protocol.cohort_size(clients) == clients else protocol.rounds
    return 0 if score == "trained" else times + 1, 0 if score == "received" else after


def without_method(config: RunConfig) -> str:
    """Return what of a run decides its setup, as text: data, partition, network, local work and test sets."""
    protocol = config.protocol
    return repr([config.dataset, config.partition, config.model, protocol.local, protocol.test])


# What is said before a run, and of one that is not made.


PLACE = ("dataset", "partition", "model")
SAID: dict[Status, str] = {"finished": "there already", "partial": "to go on with", "new": "to do"}


def found(run: RunConfig, folder: RunFolder) -> Status:
    """Return the status of the run's folder; "new" if the run will be made again (force, stale=rerun)."""
    status, again = folder.status(), run.settings.force
    if (again and status == "finished") or ((again or run.settings.stale == "rerun") and folder.changed):
        return "new"
    return status


def lacking(run: RunConfig) -> list[RunConfig]:
    """Return the missing runs for `run`: its Local and itself."""
    return [each for each in (run.local, run) if each is not None and found(each, folder_of(each)) != "finished"]


def expectation(run: RunConfig, setup: Setup) -> str:
    """Return a line, "about 50 min here: local 20 rounds, fedcollab 20 rounds"; "" if no step can be timed.

    An interrupted run counts with its remaining rounds.
    """
    times, seconds, parts = RunTimes(_setups={without_method(run): setup}), 0.0, list[str]()
    for each in lacking(run):
        left = each.protocol.rounds - _done(each)
        try:
            taken = times.expected(each)
        except Exception:  # noqa: BLE001 - an estimate must not end a run, which says itself what fails
            return ""
        seconds += taken * left / each.protocol.rounds
        more = " beside its preparation" * prepares(each.method)
        parts.append(f"{each.labels['method']} {amount(left, 'round')}{more}")
    smaller = seconds > LONG and len(setup.federation.sets["train"].values) > SMALLER
    return f"about {rough_seconds(seconds)} here: {', '.join(parts)}{f'; smaller: dataset.limit={SMALLER}' * smaller}"


def _done(run: RunConfig) -> int:
    """Return the last round of an interrupted run that was scored."""
    folder = folder_of(run)
    with suppress(FedbenchError, OSError, LookupError, ValueError, csv.Error):
        if found(run, folder) == "partial":
            return int(read_csv(folder.path / ROUNDS)[-1]["round"])  # which has a checksum once the run is finished
    return 0


def plan_lines(runs: Sequence[RunConfig], variants: Sequence[str] | None) -> Iterator[str]:
    """Yield, if there are `variants`, which name runs beside their method, whether each is finished; then the time.

    The time is that of one after another; a launcher takes less. A run that cannot be built is named with the reason.
    """
    times, waiting, seconds, there = RunTimes(patience=PATIENCE), dict[str, RunConfig](), 0.0, 0
    for run, variant in zip(runs, variants or [""] * len(runs), strict=True):
        folder = folder_of(run)
        there += (status := found(run, folder)) == "finished"
        waiting |= {one.key: one for one in lacking(run)}
        if variants is not None:
            where = ", ".join(run.labels[part] for part in PLACE)
            yield f"{title(replace(folder.labels, variant=variant))} on {where}: {SAID[status]}"
    for run in sorted(waiting.values(), key=without_method):
        try:
            seconds += times.expected(run) * (1 - _done(run) / run.protocol.rounds)
        except Exception as error:  # noqa: BLE001, PERF203 - the run says it as well, when it is made
            yield f"{title(folder_of(run).labels)}: no step could be timed: {error}"
    references = len(waiting) - (len(runs) - there)
    more = f", and {amount(references, 'run')} of Local" if references > 0 else ""
    yield f"{amount(len(runs), 'run')}, {there} there already{more}: about {rough_seconds(seconds)} here, one by one"
