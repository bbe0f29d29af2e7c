"""The state of a simulation, and the same as one tree and JSON-able meta: what a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbench.core import trees
from fedbench.core.errors import CheckpointError
from fedbench.core.trees import Tree
from fedbench.engine.clients.storage import Storage
from fedbench.engine.clients.store import ClientStore
from fedbench.metrics import Tally
from fedbench.results import checkpoint
from fedbench.results.history import History


@dataclass(eq=False)
class State:
    """All that a round changes, and so all that a checkpoint holds."""

    server: Tree
    memory: ClientStore
    round: int = 0  # rounds completed
    bytes_up: int = 0
    bytes_down: int = 0
    prepared: tuple[int, int] = (0, 0)  # bytes up and down of these that the method's preparation took
    seconds: dict[str, float] = field(default_factory=dict)
    scores: dict[str, Tally] = field(default_factory=dict)  # latest score of each client after training
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    history: History = field(default_factory=History)


def save(path: Path, state: State, key: str) -> None:
    """Write a checkpoint of `state` for the run `key`.

    Raises:
        FedbenchError: it cannot be written; the previous one is kept, and whole.
    """
    checkpoint.save(path, *pack(state), key=key)
    state.memory.settle()


def load(path: Path, key: str, device: torch.device, storage: Storage) -> State:
    """The state that `save` wrote.

    Raises:
        CheckpointError: missing, damaged, or of another configuration.
    """
    tree, meta = checkpoint.load(path, key=key)
    if not {"clients", "prepared"} <= meta.keys():
        raise CheckpointError(f"checkpoint {path} is of an earlier version; delete it to start over")
    return unpack(tree, meta, device, storage)


def models(state: State) -> Tree:
    """The server's state and every client's memory [N, ...], whole."""
    return trees.join(server=state.server, memory=state.memory)


def pack(state: State) -> tuple[Tree, dict[str, Any]]:
    """(tree, meta) of everything in `state`, to the bit."""
    history, history_meta = state.history.state()
    scores = {
        f"{name}/{part}": torch.tensor(getattr(tally, part))
        for name, tally in state.scores.items()
        for part in ("correct", "total")
    }
    arrays = {name: torch.from_numpy(array) for name, array in state.arrays.items()}
    memory = state.memory.state()
    tree = {**trees.join(server=state.server, memory=memory, scores=scores, arrays=arrays), **history}
    meta = {
        "clients": state.memory.clients,
        "round": state.round,
        "bytes_up": state.bytes_up,
        "bytes_down": state.bytes_down,
        "prepared": state.prepared,
        "seconds": state.seconds,
        "scores": sorted(state.scores),
        "history": history_meta,
    }
    return tree, meta


def unpack(tree: Tree, meta: dict[str, Any], device: torch.device, storage: Storage | None = None) -> State:
    """The state that `pack` described, models on `device`."""
    scores = trees.part(tree, "scores")
    clients = meta["clients"]
    return State(
        server=trees.map_leaves(lambda leaf: leaf.to(device), trees.part(tree, "server")),
        memory=ClientStore.restore(
            trees.part(tree, "memory"), clients, storage or Storage(most=clients), device
        ),
        round=meta["round"],
        bytes_up=meta["bytes_up"],
        bytes_down=meta["bytes_down"],
        prepared=tuple(meta["prepared"]),
        seconds=dict(meta["seconds"]),
        scores={
            n: Tally(scores[f"{n}/correct"].numpy(), scores[f"{n}/total"].numpy()) for n in meta["scores"]
        },
        arrays={name: leaf.numpy() for name, leaf in trees.part(tree, "arrays").items()},
        history=History.restore(tree, meta["history"]),
    )
