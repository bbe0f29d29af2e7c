"""One run from config to result: build, resume or begin, simulate, score against Local, write."""

from __future__ import annotations

import dataclasses
import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedbench.config.compose import registry
from fedbench.core.errors import FolderInUse
from fedbench.core.interruption import held
from fedbench.data.dataset import Dataset, DataSource
from fedbench.data.federation import Federation
from fedbench.data.split import Partition, make_partition
from fedbench.engine import state as states
from fedbench.engine.clients.storage import Storage
from fedbench.engine.pick.hardware import pick_device, pick_trainer
from fedbench.engine.request import Asking, serve
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.state import State
from fedbench.engine.train.trainer import Trainer
from fedbench.metrics.accuracy import Floats
from fedbench.plots.partition import bubbles
from fedbench.results.console import Progress
from fedbench.results.environment import environment, versions
from fedbench.results.folder import RunFolder
from fedbench.results.observer import Labels, Observer, Observers
from fedbench.results.summary import Reading, client_rows, summarise
from fedbench.runs.config import RunConfig, run_key

PATIENCE = 0.5  # seconds between looks at a reference that another process makes
DRAWN = 2000  # clients at most in the figure of a partition, which has a pixel for half as many


@dataclass(frozen=True)
class RunResult:
    """A finished run: its row and its folder."""

    row: dict[str, Any]
    folder: Path


def execute(run: RunConfig) -> RunResult:
    """Run what `run` describes, go on with it if it was interrupted, or just read it if it is finished.

    Raises:
        FedbenchError: anything a user can act on (missing data, impossible settings, divergence, ...).
    """
    execution = Execution(run)
    return serve(execution.steps(), lambda: execution.trainer)


class Execution:
    """One run on its way: its folder, its engine, and the steps that make it a result."""

    trainer: Trainer  # from the first request on

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        self.key = run_key(run)
        self.folder = folder_of(run)

    def steps(self) -> Asking[RunResult]:
        """The whole run, asking an engine to train and to score. Raises as `execute`."""
        run, folder = self.run, self.folder
        observer = observers(run, self.key, folder)
        try:
            if folder.status() == "finished" and not run.settings.force:
                row = folder.result()
            else:
                with folder:
                    if run.settings.force:
                        folder.clear()
                    row = yield from self._simulate(observer)
            observer.finish(row)
            return RunResult(row, folder.path)
        finally:
            observer.close()

    def _simulate(self, observer: Observer) -> Asking[dict[str, Any]]:
        run, folder = self.run, self.folder
        setup, partition, dataset = build(run)
        local, local_key = local_reference(run)
        folder.write_config(OmegaConf.to_yaml(OmegaConf.create(dict(run.plain))))
        folder.write_environment(environment(str(setup.federation.device)))
        folder.write_partition(partition, partition.statistics(dataset.y))
        if len(partition) <= DRAWN:
            title = f"{run.labels['dataset']}, {partition.label}, seed {run.seed}"
            folder.write_figure("partition", bubbles(partition.label_counts(dataset.y), title))
        self.trainer = pick_trainer(setup, run.hardware)
        try:
            storage = Storage.of(setup, run.hardware, folder.path)
            simulation = Simulation(setup, self.trainer, observer, storage)
            resumed = folder.status() == "partial"
            if resumed:
                state = states.load(folder.checkpoint, self.key, setup.federation.device, storage)
            observer.start(labels_of(run), run.protocol.rounds, state.round if resumed else 0)
            if not resumed:
                state = yield from simulation.beginning()
            with state.memory:
                yield from self._rounds(simulation, state)
                return _write(run, self.key, folder, setup, partition, state, local, local_key)
        finally:
            self.trainer.close()

    def _rounds(self, simulation: Simulation, state: State) -> Asking[None]:
        """All rounds still to do, with a checkpoint whenever one is due."""
        rule = self.run.settings.checkpoint
        saved = time.monotonic()
        with held() as signals:
            while not simulation.done(state):
                yield from simulation.round(state)
                by_time = 0 < rule.seconds <= time.monotonic() - saved
                by_round = rule.rounds > 0 and state.round % rule.rounds == 0
                if signals.asked or ((by_time or by_round) and not simulation.done(state)):
                    states.save(self.folder.checkpoint, state, self.key)
                    self.folder.write_history(state.history)
                    saved = time.monotonic()
                if signals.asked:
                    progress = f"after round {state.round} of {self.run.protocol.rounds}"
                    raise signals.stopped(f"{progress}; checkpoint: {self.folder.checkpoint}")


def folder_of(run: RunConfig) -> RunFolder:
    """Where the run's files are."""
    return RunFolder(run.settings.runs_dir, run_key(run), labels_of(run))


def labels_of(run: RunConfig) -> Labels:
    """What people call the run."""
    names = {group: run.labels[group] for group in ("dataset", "partition", "method", "protocol")}
    return Labels(**names, model=run.model.label, seed=run.seed)


def observers(run: RunConfig, key: str, folder: RunFolder) -> Observer:
    """Who is told how the run goes on."""
    chosen: list[Observer] = [Progress(mode=run.settings.progress)]
    wandb = run.settings.wandb
    if wandb.enabled:
        from fedbench.results.wandb_log import WandbObserver

        account = {"project": wandb.project, "mode": wandb.mode}
        chosen.append(
            WandbObserver(key, folder.path, run.plain, entity=wandb.entity, tags=wandb.tags, **account)
        )
    return Observers(chosen)


def build(run: RunConfig) -> tuple[Setup, Partition, Dataset]:
    """Data, network and method of a run, checked against each other."""
    dataset = load(run.dataset)
    partition = make_partition(run.partition, dataset, run.protocol.test, run.partition_seed)
    federation = Federation(run.model.view(dataset), partition, pick_device(run.hardware))
    run.protocol.cohort_size(federation.clients)
    task = run.model.task(federation.shape, federation.classes)
    batch = run.protocol.local.batch_size
    task.check_input(min(int(n) % batch or batch for n in federation.population.sizes))
    return Setup(run.method, task, federation, run.protocol, run.seed), partition, dataset


@functools.lru_cache(maxsize=2)
def load(spec: DataSource) -> Dataset:
    """The data set, read once for all runs of a sweep."""
    return spec.load()


def local_config(run: RunConfig) -> RunConfig:
    """Local under the data, partition, model and protocol of `run`, and its reference_seed."""
    kept = run.with_settings(force=False, save_models=False)
    if run.reference_seed != run.seed:
        kept = kept.with_settings(seed=run.reference_seed, partition_seed=run.partition_seed)
    kept = kept.with_settings(reference_seed=None)
    method = {"name": "local"}
    return dataclasses.replace(
        kept,
        method=registry("method").build(method),
        labels={**run.labels, "method": "local"},
        plain={**kept.plain, "method": method},
    )


def local_reference(run: RunConfig) -> tuple[Floats | None, str]:
    """(accuracies [N], key) of the run's `local_config`, trained if missing.

    (None, "") for Local itself. The runs of a parallel sweep need the same one: whoever comes first makes it, the
    others wait, and one of them goes on if it dies.
    """
    if run.labels["method"] == "local":
        return None, ""
    reference = local_config(run)
    key = run_key(reference)
    folder = folder_of(reference)
    while folder.status() != "finished":
        _make_or_wait(reference)
    return folder.accuracies(), key


def _make_or_wait(reference: RunConfig) -> None:
    try:
        execute(reference)
    except FolderInUse:
        time.sleep(PATIENCE)


def _write(
    run: RunConfig,
    key: str,
    folder: RunFolder,
    setup: Setup,
    partition: Partition,
    state: State,
    local: Floats | None,
    local_key: str,
) -> dict[str, Any]:
    """All files of a finished run; its row is written last."""
    reading = Reading(run.protocol.report, run.protocol.average, run.protocol.per_client)
    folder.write_history(state.history)
    sizes = {name: each.sizes.numpy() for name, each in setup.federation.sets.items()}
    folder.write_clients(client_rows(state.history, reading, sizes=sizes, local=local))
    matrix = setup.method.collaboration(state.server, setup.population)
    if matrix is not None:
        folder.write_collaboration(matrix.numpy())
    found = {name: array.cpu().numpy() for name, array in setup.method.record(state.server).items()}
    if arrays := {**state.arrays, **found}:
        folder.write_arrays(arrays)
    row = summarise(
        labels_of(run),
        key,
        state.history,
        reading,
        partition_hash=partition.hash,
        local=local,
        local_key=local_key,
        versions=versions(),
    )
    folder.finish(row, states.models(state) if run.settings.save_models else None)
    return folder.result()
