"""One run from config to result: build, resume or begin, simulate, score against Local, write."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from fedbench.config import groups
from fedbench.config.schema import ACCURACY
from fedbench.core.errors import CheckpointError, FedbenchError, warn_once
from fedbench.core.files import as_csv, as_json, as_npz
from fedbench.core.locks import wait_while_in_use
from fedbench.core.signals import Stopped, asked, held, stop_if_asked
from fedbench.data.dataset import Dataset
from fedbench.data.partition import Partition
from fedbench.engine import simulation as states
from fedbench.engine.hardware import pick_trainer
from fedbench.engine.history import VALIDATION, Observer, Observers
from fedbench.engine.hooks import HookCaller
from fedbench.engine.newcomers import Newcomers, Unseen
from fedbench.engine.recording import Arrays, check
from fedbench.engine.schedule import all_steps
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation, State
from fedbench.engine.trial import check_cuts, check_hooks
from fedbench.metrics import Floats, Measured, fairness
from fedbench.runs import fingerprint
from fedbench.runs.building import set_up, split_data
from fedbench.runs.config import RunConfig, resolve
from fedbench.runs.fingerprint import environment, versions
from fedbench.runs.folder import (
    ARRAYS,
    CLIENTS,
    CONFIG,
    ENVIRONMENT,
    MODEL,
    NAME,
    RESULT,
    RunFolder,
    Status,
    files_of,
    folder_of,
    run_status,
)
from fedbench.runs.progress import Progress
from fedbench.runs.run import Reading, Run, client_rows, gain_columns, gains_of, summarise
from fedbench.sample_metrics import METRICS


def observers(run: RunConfig, folder: RunFolder) -> Observer:
    """Return all observers as one, for the run whose files are in `folder`."""
    chosen: list[Observer] = [Progress(mode=run.settings.progress, task=run.dataset.task)]
    if trackers := run.settings.trackers:
        from fedbench.runs.trackers import TRACKERS  # which most runs do without

        own = f"{folder.key}-{folder.data[:6]}"  # as the folder is called: other samples make another run
        chosen += [TRACKERS[name](own, folder.path, run.plain, **options) for name, options in trackers.items()]
    return Observers(chosen)


# Whether a finished run is of other code.


def changed_since(folder: Path) -> list[str]:
    """Return the parts of today's code that differ from those of the finished run in `folder`, by its config.

    There is none if that config is damaged, or its data set or one of its classes is not here.
    """
    files = files_of(folder)
    try:
        code = str(files.json(RESULT).get("code") or "")
        files.read(CONFIG)  # it is as it was written
        saved = groups.load_yaml(folder / CONFIG)
    except FedbenchError:
        return []
    # The rest is no part of the code, and may have settings that are gone.
    config = OmegaConf.create({part: saved.get(part) for part in groups.REGISTRIES} | {"protocol": {}, "hardware": {}})
    try:
        return fingerprint.changed(code, fingerprint.code_of(resolve(config)))
    except FedbenchError:
        return [part for part in ("method", "model", "partition") if _refuses(part, config)]


def _refuses(part: str, config: DictConfig) -> bool:
    """Return whether an existing component refuses its recorded settings."""
    components = groups.registry(part)
    values = config.get(part)
    if not values or values.get("name") not in components:
        return False
    try:
        components.build(cast("dict[str, Any]", OmegaConf.to_container(values, resolve=False)))
    except FedbenchError:
        return True
    return False


# Whether a run has what its config asks to be recorded; it may have been made without, as its key does not tell.


def lacking(run: RunConfig, arrays: Arrays, completed: int | None = None) -> list[str]:
    """Return the recorders that `run` asks for and `arrays` lack after `completed` rounds; if not given, at its end."""
    rounds = run.protocol.rounds
    done = rounds if completed is None else completed
    return [each.name for each in run.recorders if each.lacks(arrays, done, rounds)]


def require(run: RunConfig, folder: RunFolder, arrays: Arrays, completed: int) -> None:
    """Refuse to show a run, or to resume it after `completed` rounds, if `arrays` lack what it must record.

    Raises:
        FedbenchError: says how to make the run again.
    """
    if lost := lacking(run, arrays, completed):
        raise FedbenchError(f"{folder.path} was made without record={lost[0]}; force=true makes it again")


REFERENCE = "(the reference of IPR and RSD)"
MOST = 8  # classes that a line names
HIGH, USUAL = 0.05, 0.001  # learning rates of Adam: one of SGD from which training fails, and torch's default


def execute(run: RunConfig, purpose: str = "") -> Run:
    """Make a run, resume an interrupted one, or read a finished one.

    `purpose`, shown next to the method's name, says what the run is for.

    Raises:
        FedbenchError: anything a user can act on (missing data, impossible settings, divergence, ...).
    """
    folder = folder_of(run)
    observer = observers(run, folder)
    fingerprint.warn_of_edits(run)
    try:
        if (status := _status(run, folder)) != "finished":
            with folder:  # which another process may have held until it had finished the run
                if (status := _status(run, folder)) != "finished":
                    row = experiment(run, folder, observer, purpose, begun=status == "partial")
        if status == "finished":
            row = recall(run, folder)
            observer.recall(row)
        observer.finish(row)
        return Run(folder.path, earlier=status == "finished", code_changed=tuple(folder.changed))
    finally:
        observer.close()


def _status(run: RunConfig, folder: RunFolder) -> Status:
    begun = folder.status() == "partial" and not folder.changed
    if run.settings.force and not begun:  # with what is begun the same command goes on
        return "new"
    return run_status(run, folder)


def recall(run: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """Return the row of a run that has finished, compared with Local where that is asked and missing.

    Raises:
        FedbenchError: it lacks an array that `run` records.
    """
    require(run, folder, Run(folder.path).arrays, run.protocol.rounds)
    if run.settings.save_models and not (folder.path / MODEL).is_file():
        warn_once(f"{folder.path} was made without save_models=true; force=true makes it again")
    if trackers := ", ".join(run.settings.trackers):
        warn_once(f"a run that has finished logs nothing to {trackers}; force=true makes it again")
    try:
        fingerprint.content(run.dataset)
    except FedbenchError as error:
        warn_once(f"{folder.path} is shown, but it may be of other samples, as its data cannot be read: {error}")
    return compared(run, folder)


def experiment(
    run: RunConfig, folder: RunFolder, observer: Observer, purpose: str = "", *, begun: bool = False
) -> dict[str, Any]:
    """Run one experiment in `folder`, which is locked, from config to result; return the result's row.

    `begun`: resume from the checkpoint there.

    Raises:
        FedbenchError: see `execute`.
        Stopped: Ctrl-C, SIGTERM or SIGHUP, after the round under way and a checkpoint.
    """
    # Data, its split among clients, and the network and method, checked against each other and the protocol.
    dataset, partition = split_data(run)
    whole = set_up(run, dataset, partition)
    setup = whole.seen
    check_rounds(run, setup)
    dealt, _ = run.model.dealt(partition)
    names = client_names(dataset, dealt)
    tell_of_clients(run, setup, dataset, names)
    if not begun:
        check_hooks(setup)
        check_cuts(setup)
    newcomers = Newcomers(whole, setup) if run.protocol.unseen else None

    if run.settings.progress != "none" and purpose != REFERENCE:  # a reference was told with the run that needs it
        from fedbench.runs.estimate import expectation  # which knows what runs are there

        observer.expect(expectation(run, setup))

    # What the result is compared with.
    local, local_key = local_reference(run)

    # The engine that trains clients, what says how the run is made, and the loop over rounds, which goes on where an
    # interrupted one was saved.
    trainer = pick_trainer(setup, run.hardware)
    try:
        simulation = Simulation(setup, trainer, observer, run.recorders, keeps_sources=run.settings.save_models)
        saved_state = load_checkpoint(run, folder, setup) if begun else None
        if saved_state is None:  # from here on nothing refuses the run, and an earlier one may go
            folder.clear()
        describe(run, folder, setup, dealt, dataset, names)
        if saved_state is None:
            folder.begin()
        done = 0 if saved_state is None else saved_state.round
        observer.start(replace(folder.labels, variant=purpose), run.protocol.rounds, done)
        state = simulation.begin() if saved_state is None else saved_state

        # Rounds: draw a cohort, send, train, aggregate, score.
        saved, rule = time.monotonic(), run.settings.checkpoint
        with held():
            while not simulation.done(state):
                if not asked():  # which it may be before the first round, by another run of this process
                    simulation.step(state)
                signal = asked()
                by_time = 0 < rule.seconds <= time.monotonic() - saved
                by_round = rule.rounds > 0 and state.round % rule.rounds == 0
                if signal or ((by_time or by_round) and not simulation.done(state)):
                    states.save_state(folder.checkpoint, state, folder.key)
                    folder.write_history(state.history)
                    saved = time.monotonic()
                if signal:
                    progress = f"after round {state.round} of {run.protocol.rounds}"
                    raise Stopped(signal, f"{progress}; checkpoint: {folder.checkpoint}")

        # Result: scores of all rounds and clients, and the row that tables read.
        unseen = Unseen() if newcomers is None else newcomers.score(state)
        return write(run, folder, setup, partition, state, local, local_key, unseen, names)
    finally:
        trainer.close()


def check_rounds(run: RunConfig, setup: Setup) -> None:
    """Refuse a recorder that does not fit; warn of what the config names and the run does not use."""
    for recorder in run.recorders:
        check(recorder, setup)
    rounds, every, late = run.protocol.rounds, run.protocol.eval_every, run.method.prepare_round
    optimizer, test = run.protocol.optimizer, run.protocol.test
    scored, unweighted = (run.protocol.score, test.sets), test.weighting != "none" and test.sets in ("local", "common")
    name, momentum, rate = optimizer.name, optimizer.momentum, f"protocol.optimizer.lr={optimizer.lr:g}"
    for applies, said in (
        (late > rounds, f"{run.labels['method']} prepares after {late} rounds; of {rounds} it never does"),
        (every > rounds > 1, f"protocol.eval_every={every} with {rounds} rounds: only round 0 and the last are scored"),
        (scored == ("trained", "common"), "protocol.test.sets=common is of models as received, score=trained of none"),
        (unweighted, f"protocol.test.weighting={test.weighting} is of the global test set; sets={test.sets} has none"),
        (name != "sgd" and momentum, f"{name} has no momentum: protocol.optimizer.momentum={momentum} is not used"),
        (name == "adamw" and not optimizer.weight_decay, "adamw without protocol.optimizer.weight_decay is adam"),
        (name != "sgd" and optimizer.lr >= HIGH, f"{name} with {rate}: its usual rate is {USUAL}"),
    ):
        if applies:
            warn_once(said)
    schedule, steps = optimizer.schedule, all_steps(setup.population.sizes, run.protocol.local)
    spans = rounds * (torch.ones_like(steps) if schedule.by == "round" else steps)
    for name, begins in (("warmup", 0), ("every", schedule.warmup)):
        length = getattr(schedule, name) or 0
        if length and (short := int((spans <= begins + length).sum())):
            ends = f"the run of {short} of {len(spans)} clients is over before they are"
            warn_once(f"protocol.optimizer.schedule.{name}={length} {schedule.by}s: {ends}")
    where = f"{run.labels['dataset']}, {run.labels['partition']}, seed {run.partition_seed}"
    for name, kind in (("local", "test"), (VALIDATION, "validation")):
        sizes = setup.federation.sets[name].sizes
        if name in states.scored_sets(setup) and (empty := int((sizes == 0).sum())):
            lack = f"{empty} of {len(sizes)} clients have no {kind} sample; scores are over the others"
            warn_once(f"{where}: {lack}")
    if untested := untested_classes(setup):
        named = ", ".join(map(str, untested[:MOST])) + (", ..." if len(untested) > MOST else "")
        warn_once(f"{where}: {len(untested)} classes are trained on of which none is tested: {named}")


def untested_classes(setup: Setup) -> list[int]:
    """Return the classes that clients train on but no scored set has a sample of."""
    federation = setup.federation
    lists = {"global": federation.global_test} | {name: each.values for name, each in federation.sets.items()}
    labels = {name: {*federation.y[each].unique().tolist()} for name, each in lists.items()}
    sets = {*states.scored_sets(setup), *(["global"] if setup.protocol.test.whole else [])}
    tested = [labels[name] for name in sets - {VALIDATION} or {VALIDATION}]
    return sorted(labels["train"].difference(*tested))


FEW = 10  # test samples of a client, below which its accuracy moves in large steps


def client_names(dataset: Dataset, partition: Partition) -> list[str]:
    """Return the data's names of the clients; nothing if a client has no name or two share one."""
    if not dataset.names or dataset.domain is None:
        return []
    owners = [np.unique(dataset.domain[part]) for part in partition.train]
    names = [dataset.names[each[0]] for each in owners]
    return names if len({*names}) == len(names) and all(len(each) == 1 for each in owners) else []


def named(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows of clients with the clients' names after their numbers."""
    if not names:
        return list(rows)
    return [{"client": row["client"], NAME: name, **row} for row, name in zip(rows, names, strict=False)]


def tell_of_clients(run: RunConfig, setup: Setup, dataset: Dataset, names: Sequence[str]) -> None:
    """Log which clients and test split of the data play no part, and that a mean over few test samples is rough."""
    where = f"{run.labels['dataset']}, {run.labels['partition']}, seed {run.partition_seed}"
    pooled = run.protocol.test.pool and not run.partition.fixes_test and dataset.num_train < len(dataset)
    # A fifth that was drawn for testing stands behind the rest; the user's own test samples do in the data, or by part.
    if dataset.rows is not None and pooled and (dataset.part is not None or (np.diff(dataset.rows) > 0).all()):
        warn_once(
            f"{where}: protocol.test.pool=true deals the test samples of the data to clients like the others; "
            "protocol.test.pool=false does not, and protocol.test.sets=global scores clients' models on them"
        )
    if not names:
        return
    if lost := [name for name in dataset.names if name not in {*names}]:
        told = ", ".join(lost[:MOST]) + (", ..." if len(lost) > MOST else "")
        warn_once(f"{where}: {len(lost)} of {len(dataset.names)} clients are left out, as they have no "
                              f"training sample or partition={run.labels['partition']} says so: {told}")  # fmt: skip
    sizes = setup.federation.sets["local"].sizes
    few = int(((sizes > 0) & (sizes < FEW)).sum())
    if few and run.protocol.average == "client":
        warn_once(
            f"{where}: {few} of {len(sizes)} clients have fewer than {FEW} test samples, and each counts alike in the "
            "mean over clients; acc_pooled, or protocol.average=pooled, is over samples"
        )


def describe(
    run: RunConfig, folder: RunFolder, setup: Setup, partition: Partition, dataset: Dataset, names: Sequence[str]
) -> None:
    """Write what is known before the first round: config, environment, partition."""
    folder.write(CONFIG, OmegaConf.to_yaml(OmegaConf.create(dict(run.plain))).encode())
    folder.write(ENVIRONMENT, as_json(environment(str(setup.federation.device))))
    clients = setup.federation.clients
    folder.write_partition(partition, named(partition.statistics(dataset.y)[:clients], names))


def load_checkpoint(run: RunConfig, folder: RunFolder, setup: Setup) -> State | None:
    """Return the saved state of an interrupted run; None if force=true makes it anew.

    Raises:
        CheckpointError: the file is damaged.
        FedbenchError: it lacks an array that `run` records.
    """
    try:
        state = states.load_state(folder.checkpoint, folder.key, setup.federation.device)
    except CheckpointError:
        if run.settings.force:
            return None
        raise
    if run.settings.force and lacking(run, state.arrays, state.round):
        return None
    require(run, folder, state.arrays, state.round)
    return state


def write(
    run: RunConfig,
    folder: RunFolder,
    setup: Setup,
    partition: Partition,
    state: State,
    local: Mapping[str, Floats],
    local_key: str,
    unseen: Unseen,
    names: Sequence[str],
) -> dict[str, Any]:
    """Write all files of a finished run, its row last; return the row."""
    reading = Reading(run.protocol.report, run.protocol.average, run.protocol.per_client)
    folder.write_history(state.history, unseen.tallies)
    sizes = {name: each.sizes.numpy() for name, each in setup.federation.sets.items()}
    modalities = _modalities(run, setup)
    alone = local.get(ACCURACY)
    clients = client_rows(state.history, reading, sizes=sizes, local=alone, local_measures=local, modalities=modalities)
    folder.write(CLIENTS, as_csv(named(clients, names)))
    method, call = setup.method, HookCaller(setup.method, None, ())
    matrix = call("collaboration", method.collaboration, state.server, setup.population)
    if matrix is not None:
        folder.write_collaboration(matrix.cpu().numpy(), names)
    own = call("record", method.record, state.server)
    found = {name: array.cpu().numpy() for name, array in own.items()}
    if arrays := {**state.arrays, **found}:
        folder.write(ARRAYS, as_npz(arrays))
    row = summarise(
        folder.labels,
        folder.key,
        state.history,
        reading,
        partition_hash=partition.hash,
        local=alone,
        local_measures=local,
        local_key=local_key,
        modalities=modalities,
        prepared=state.prepared,
        versions={
            "data": fingerprint.content(run.dataset),
            "scored": run.protocol.score,
            **({} if run.hardware.precision == "float32" else {"precision": run.hardware.precision}),
            **({"task": run.dataset.task} if setup.task.regresses else {}),
            "code": folder.code,
            **versions(),
        },
    )
    row |= {name: float(array) for name, array in found.items() if array.ndim == 0 and name not in row}
    if run.protocol.unseen:
        row |= {"unseen": run.protocol.unseen, "unseen_note": unseen.note}
        row |= {f"acc_unseen_{name}": 100 * each[row["test_set"]].mean() for name, each in unseen.tallies.items()}
        for moment, sets in unseen.measures.items():
            for name, each in sets[row["test_set"]].items():
                row[f"{name}_unseen_{moment}"] = METRICS[name].unit * each.mean()
    folder.finish(row, states.models(state) if run.settings.save_models else None)
    return folder.result()


def _modalities(run: RunConfig, setup: Setup) -> list[str]:
    """Return the modality of each client; nothing if there is one modality."""
    names = list(run.model.networks)
    return [names[modality] for modality in setup.task.modality_of(setup.everyone).tolist()] if len(names) > 1 else []


def local_reference(run: RunConfig) -> tuple[dict[str, Floats], str]:
    """Return (values [N] by metric, key) of the Local run that `run` is compared with, trained if missing.

    It is ({}, "") for Local itself. Runs of a parallel sweep need the same Local: the first one makes it and the
    others wait; if it dies, another one resumes it.
    """
    if run.local is None:
        return {}, ""
    reference, folder = run.local, folder_of(run.local)

    def make() -> None:
        if run_status(reference, folder) != "finished":
            execute(reference, purpose=REFERENCE)

    wait_while_in_use(make, stop_if_asked)
    return folder.scores(), folder.key


def is_compared(run: RunConfig, folder: RunFolder) -> bool:
    """Return whether the finished run in `folder` has the IPR and RSD that `run` asks for."""
    return run.local is None or bool(folder.result().get("local_key"))


def compared(run: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """Return the row of a finished run; if asked, compare one that was made with reference=none with Local now."""
    if is_compared(run, folder):
        return folder.result()
    local, key = local_reference(run)
    with folder:  # which another process may have held until it had compared the run
        if is_compared(run, folder):
            return folder.result()
        scores = folder.scores()
        fair = fairness(scores[ACCURACY], local[ACCURACY])
        columns = {"acc_local": 100 * local[ACCURACY], "gain": fair.gains}
        row = {**folder.result(), "ipr": fair.ipr, "rsd": fair.rsd, "local_key": key, "clients_ipr": fair.clients}
        own = {name: Measured(values, math.nan) for name, values in scores.items() if name != ACCURACY}
        for name, gained in gains_of(own, local).items():
            columns |= {f"{name}_local": METRICS[name].unit * local[name], f"{name}_gain": gained.gains}
            row |= gain_columns(name, gained)
        clients = [
            {**client, **{name: float(values[index]) for name, values in columns.items()}}
            for index, client in enumerate(Run(folder.path).client_rows)
        ]
        files_of(folder.path).write({CLIENTS: as_csv(clients), RESULT: as_json(row)})
    return folder.result()
