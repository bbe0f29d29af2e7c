"""The sources of the scored models, so that a finished run can rebuild them.

A scored model follows from the client's message and memory in one round. A received model is built by the method's
`personal` or `adapt`, a trained model by the round's local work. `Sources` has a row for each client: its message under
`message/`, its memory under `memory/`, the clock's `round` (-1: unknown), and `trained`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.history import TRAINED, History
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup

Sources = Tree  # leaves [N, ...] on the CPU; none before the first is noted


def nothing_known(clients: int) -> Sources:
    """Return the sources for `clients` of which none has a scored model yet."""
    return {"round": torch.full((clients,), -1)}


def sources_of(message: Tree, memory: Tree, clock: Clock, count: int, *, trained: bool) -> Sources:
    """Return the sources of the models of `count` clients at `clock`."""
    tree = trees.join(message=message, memory=memory)
    home = {k: leaf[:1].cpu().expand(leaf.shape) if trees.is_shared(leaf) else leaf.cpu() for k, leaf in tree.items()}
    return {**home, "round": torch.full((count,), clock.round), "trained": torch.full((count,), trained)}


def noted(known: Sources, ids: Tensor, fresh: Sources, clients: int) -> Sources:
    """Return the `known` sources of `clients`, with the rows `fresh` [C] of clients `ids`."""
    if len(ids) == clients:
        return fresh
    blank = {key: leaf.new_zeros(1, *leaf.shape[1:]).expand(clients, *leaf.shape[1:]) for key, leaf in fresh.items()}
    return trees.put({**blank, **nothing_known(clients), **known}, ids, fresh)


def reported_now(history: History, rule: str, average: str, *, per_client: bool) -> tuple[Tensor, Tensor]:
    """Return (clients [N] whose reported number now comes from the latest record, whether it is after training)."""
    test_set = history.test_sets()[0]
    places = history.report(test_set, rule, average, per_client).places[-1]
    candidates = history.candidates(test_set, rule)
    latest = np.array([record is history.last for record, _ in candidates])
    trained = np.array([moment == TRAINED for _, moment in candidates])
    return torch.from_numpy(latest[places]), torch.from_numpy(trained[places])


def compact(sources: Sources) -> Tree:
    """Return the form for storage: a leaf that all clients share has one row."""
    return {key: leaf[:1] if trees.is_shared(leaf) else leaf for key, leaf in sources.items()}


def restored(tree: Tree, clients: int) -> Sources:
    """The inverse of `compact`."""
    return {key: leaf.expand(clients, *leaf.shape[1:]) for key, leaf in tree.items()}


def model_of(setup: Setup, client: int, source: Tree) -> Tree:
    """Rebuild the scored model of `client` from its row of sources by the looped engine, equal up to rounding."""
    clock = Clock(int(source["round"]), setup.protocol.rounds)
    tree = setup.federation.placed(source)
    message, memory = trees.under(tree, "message"), trees.under(tree, "memory")
    view = setup.client(client, message, memory, clock, trees.OnHost(trees.expand(message, 1)))
    engine = LoopedTrainer(setup.modality_of(client))
    return engine.trained(client, view) if source["trained"] else engine.received(client, view)
