"""One run from config to result: build, resume or begin, simulate, score against Local, write."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from omegaconf import OmegaConf

from fedbench.config.settings import CheckpointConfig
from fedbench.core.errors import FolderInUse
from fedbench.core.interruption import held, pause
from fedbench.data.dataset import Dataset
from fedbench.data.partition import Partition
from fedbench.data.split import make_partition
from fedbench.engine import state as states
from fedbench.engine.clients.storage import Storage
from fedbench.engine.kinds import assemble
from fedbench.engine.pick.hardware import pick_device, pick_trainer
from fedbench.engine.recording import check
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.engine.state import State
from fedbench.engine.train.trainer import Trainer
from fedbench.metrics.accuracy import Floats
from fedbench.plots.runs import partition_svg
from fedbench.results.environment import environment
from fedbench.results.finished import Run
from fedbench.results.folder import RunFolder, Status
from fedbench.results.observer import Observer
from fedbench.runs import fingerprint, recorded
from fedbench.runs.config import RunConfig, run_key
from fedbench.runs.observing import observers
from fedbench.runs.places import folder_of, labels_of, standing
from fedbench.runs.writing import write

PATIENCE = 0.5  # seconds between looks at a reference that another process makes
REFERENCE = "(the reference of IPR and RSD)"
DRAWN = 2000  # clients at most in the figure of a partition, which has a pixel for half as many


def execute(run: RunConfig, seating: Callable[[Trainer], Trainer] | None = None, purpose: str = "") -> Run:
    """Run what `run` describes, go on with it if it was interrupted, or just read it if it is finished.

    `seating` makes of the engine that was picked for the run the one that it uses: see fedbench.runs.together.
    `purpose` is shown beside the method's name: what the run is for.

    Raises:
        FedbenchError: anything a user can act on (missing data, impossible settings, divergence, ...).
    """
    key, folder = run_key(run), folder_of(run)
    observer = observers(run, key, folder)
    fingerprint.warn_of_edits(run)
    try:
        if (status := _status(run, folder)) != "finished":
            with folder:  # which another process may have held until it had finished the run
                if (status := _status(run, folder)) != "finished":
                    if status == "new":
                        folder.clear()
                    row = _simulate(run, key, folder, observer, seating, purpose)
        if status == "finished":
            recorded.require(run, folder, recorded.kept(folder), run.protocol.rounds)
            row = folder.result()
            observer.recall(row)
        observer.finish(row)
        changed = fingerprint.changed(str(row.get("code") or ""), fingerprint.code_of(run))
        return Run(folder.path, earlier=status == "finished", code_changed=tuple(changed))
    finally:
        observer.close()


def _status(run: RunConfig, folder: RunFolder) -> Status:
    return "new" if run.settings.force else standing(run, folder)


def _simulate(
    run: RunConfig,
    key: str,
    folder: RunFolder,
    observer: Observer,
    seating: Callable[[Trainer], Trainer] | None,
    purpose: str,
) -> dict[str, Any]:
    setup, partition, dataset = build(run)
    for recorder in run.recorders:
        check(recorder, setup)
    if (late := run.method.prepare_round) > run.protocol.rounds:
        name = run.labels["method"]
        fingerprint.warn_once(f"{name} prepares after {late} rounds; of {run.protocol.rounds} it never does")
    local, local_key = local_reference(run)
    folder.write_config(OmegaConf.to_yaml(OmegaConf.create(dict(run.plain))))
    folder.write_environment(environment(str(setup.federation.device)))
    folder.write_partition(partition, partition.statistics(dataset.y))
    if len(partition) <= DRAWN:
        title = f"{run.labels['dataset']}, {partition.label}, seed {run.seed}"
        folder.write_figure("partition", partition_svg(partition.label_counts(dataset.y), title))
    trainer = pick_trainer(setup, run.hardware)
    if seating is not None:
        trainer = seating(trainer)
    try:
        storage = Storage.of(setup, run.hardware, folder.path)
        simulation = Simulation(setup, trainer, observer, storage, run.recorders)
        device, resumed = setup.federation.device, folder.status() == "partial"
        state: State | None = None
        if resumed:
            state = states.load(folder.checkpoint, key, device, storage)
            recorded.require(run, folder, state.arrays, state.round)
        else:
            folder.begin(fingerprint.code_of(run))
        observer.start(
            replace(labels_of(run), variant=purpose), run.protocol.rounds, state.round if state else 0
        )
        if state is None:
            state = simulation.begin()
        with state.memory:
            _play(simulation, state, run.settings.checkpoint, folder, key)
            return write(run, key, folder, setup, partition, state, local, local_key)
    finally:
        trainer.close()


def _play(
    simulation: Simulation,
    state: State,
    rule: CheckpointConfig,
    folder: RunFolder,
    key: str,
) -> None:
    """All rounds still to do, with a checkpoint whenever `rule` says that one is due, and when a signal ends them.

    Raises:
        Stopped: Ctrl-C or SIGTERM, after the round under way and a checkpoint.
    """
    saved = time.monotonic()
    with held() as signals:
        while not simulation.done(state):
            if not signals.asked:  # which it may be before the first round, by another run of this process
                simulation.step(state)
            by_time = 0 < rule.seconds <= time.monotonic() - saved
            by_round = rule.rounds > 0 and state.round % rule.rounds == 0
            if signals.asked or ((by_time or by_round) and not simulation.done(state)):
                states.save(folder.checkpoint, state, key)
                folder.write_history(state.history)
                saved = time.monotonic()
            if signals.asked:
                progress = f"after round {state.round} of {simulation.setup.protocol.rounds}"
                raise signals.stopped(f"{progress}; checkpoint: {folder.checkpoint}")


def build(run: RunConfig) -> tuple[Setup, Partition, Dataset]:
    """Data, network and method of a run, checked against each other."""
    dataset = fingerprint.load(run.dataset)
    partition = make_partition(run.partition, dataset, run.protocol.test, run.partition_seed)
    device = pick_device(run.hardware)
    bf16 = run.hardware.precision == "bf16"
    setup = assemble(run.method, run.model, dataset, partition, run.protocol, run.seed, device, bf16=bf16)
    return setup, run.model.dealt(partition)[0], dataset


def local_reference(run: RunConfig) -> tuple[Floats | None, str]:
    """(accuracies [N], key) of the Local run that `run` is compared with, trained if missing.

    (None, "") for Local itself. The runs of a parallel sweep need the same one: whoever comes first makes it, the
    others wait, and one of them goes on if it dies.
    """
    if run.local is None:
        return None, ""
    key, folder = run_key(run.local), folder_of(run.local)
    while standing(run.local, folder) != "finished":
        _make_or_wait(run.local)
    return folder.accuracies(), key


def _make_or_wait(reference: RunConfig) -> None:
    try:
        execute(reference, purpose=REFERENCE)
    except FolderInUse:
        pause(PATIENCE)
