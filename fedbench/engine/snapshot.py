"""The state of a simulation as one tree and JSON-able meta, and back: what a checkpoint holds."""

from __future__ import annotations

from typing import Any

import torch

from fedbench.engine import trees
from fedbench.engine.simulation import State
from fedbench.engine.trees import Tree
from fedbench.metrics.accuracy import Tally
from fedbench.results.history import History


def pack(state: State) -> tuple[Tree, dict[str, Any]]:
    """(tree, meta) of everything in `state`, to the bit."""
    history, history_meta = state.history.state()
    scores = {
        f"{name}/{part}": torch.tensor(getattr(tally, part))
        for name, tally in state.scores.items()
        for part in ("correct", "total")
    }
    arrays = {name: torch.from_numpy(array) for name, array in state.arrays.items()}
    tree = {**trees.join(server=state.server, memory=state.memory, scores=scores, arrays=arrays), **history}
    meta = {
        "round": state.round,
        "bytes_up": state.bytes_up,
        "bytes_down": state.bytes_down,
        "seconds": state.seconds,
        "scores": sorted(state.scores),
        "history": history_meta,
    }
    return tree, meta


def unpack(tree: Tree, meta: dict[str, Any], device: torch.device) -> State:
    """The state that `pack` described, models on `device`."""

    def placed(name: str) -> Tree:
        return trees.map_leaves(lambda leaf: leaf.to(device), trees.part(tree, name))

    scores = trees.part(tree, "scores")
    return State(
        server=placed("server"),
        memory=placed("memory"),
        round=meta["round"],
        bytes_up=meta["bytes_up"],
        bytes_down=meta["bytes_down"],
        seconds=dict(meta["seconds"]),
        scores={
            n: Tally(scores[f"{n}/correct"].numpy(), scores[f"{n}/total"].numpy()) for n in meta["scores"]
        },
        arrays={name: leaf.numpy() for name, leaf in trees.part(tree, "arrays").items()},
        history=History.restore(tree, meta["history"]),
    )
