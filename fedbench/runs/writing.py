"""The files of a finished run."""

from __future__ import annotations

from typing import Any

from fedbench.data.partition import Partition
from fedbench.engine import state as states
from fedbench.engine.hooks import Calls
from fedbench.engine.setup import Setup
from fedbench.engine.state import State
from fedbench.metrics import Floats
from fedbench.results.environment import versions
from fedbench.results.folder import RunFolder
from fedbench.results.summary import Reading, client_rows, summarise
from fedbench.runs import fingerprint
from fedbench.runs.config import RunConfig
from fedbench.runs.places import labels_of


def write(
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
    kinds = _kinds(run, setup)
    folder.write_clients(client_rows(state.history, reading, sizes=sizes, local=local, kinds=kinds))
    method, call = setup.method, Calls(setup.method, None, ())
    matrix = call("collaboration", method.collaboration, state.server, setup.population)
    if matrix is not None:
        folder.write_collaboration(matrix.numpy())
    own = call("record", method.record, state.server)
    found = {name: array.cpu().numpy() for name, array in own.items()}
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
        kinds=kinds,
        prepared=state.prepared,
        versions={**_made(run), "code": folder.code, **versions()},
    )
    folder.finish(row, states.models(state) if run.settings.save_models else None)
    return folder.result()


def _kinds(run: RunConfig, setup: Setup) -> list[str]:
    """The kind of each client; nothing where there is one."""
    names = list(run.model.networks)
    return [names[kind] for kind in setup.task.kind_of(setup.everyone).tolist()] if len(names) > 1 else []


def _made(run: RunConfig) -> dict[str, str]:
    """Of the samples which, and the precision where it is not float32."""
    coarse = {} if run.hardware.precision == "float32" else {"precision": run.hardware.precision}
    return {"data": fingerprint.content(run.dataset), **coarse}
