"""From counts of right answers to what is recorded: each client's own, the global model's, those after training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup
from fedbench.engine.train.divergence import diverged
from fedbench.engine.train.trainer import Counts, count_correct
from fedbench.metrics import Tally, weighted
from fedbench.results.history import TRAINED

COMMON_BATCH = 1024  # samples of the global test set a forward pass of the global model


def scored_sets(setup: Setup) -> tuple[str, ...]:
    """Names of the sets that clients' models are scored on."""
    test = setup.protocol.test
    sets = {"global": ("global",), "both": ("local", "global")}.get(test.sets, ("local",))
    return (*sets, "val") if test.val_fraction > 0 else sets


def tallies(setup: Setup, counts: Counts, ids: Tensor) -> dict[str, Tally]:
    """Counts per class [C, K] of clients `ids` as counts per client, by the protocol's weighting of the global set."""
    found: dict[str, Tally] = {}
    for name, (correct, total) in counts.items():
        if name == "global" and setup.protocol.test.weighting == "label_shares":
            owned = setup.population.label_counts[ids]
            shares = owned / owned.sum(1, keepdim=True)
            found[name] = weighted(correct.numpy(), total.numpy(), shares.numpy())
        else:
            found[name] = Tally(correct.sum(1).numpy(), total.sum(1).numpy())
    return found


@torch.no_grad()
def common_tally(setup: Setup, model: Tree, clock: Clock) -> Tally:
    """The global model at `clock` on the global test set, in every kind's view of it.

    Raises:
        Diverged: its scores are not finite.
    """
    correct = total = 0.0
    for kind in setup.kinds:
        for indices in kind.federation.global_test.split(COMMON_BATCH):
            x, y = kind.federation.gather(indices)
            hits, seen = count_correct(kind.task.apply(model, x), y, kind.task.classes)
            correct, total = correct + float(hits.sum()), total + float(seen.sum())
    if np.isnan(total):
        raise diverged(clock.round, "the server", "the global model's scores are")
    return Tally(np.array([correct]), np.array([total]))


def latest(
    known: Mapping[str, Tally], fresh: Mapping[str, Tally], ids: Tensor, clients: int
) -> dict[str, Tally]:
    """Scores after training of all `clients`: those of `ids` are `fresh`, the others keep what is `known` of them."""
    merged: dict[str, Tally] = {}
    for name, tally in fresh.items():
        unknown = np.zeros(clients)
        before = known.get(name, Tally(unknown, unknown))
        correct, total = before.correct.copy(), before.total.copy()
        correct[ids.numpy()], total[ids.numpy()] = tally.correct, tally.total
        merged[name] = Tally(correct, total)
    return merged


def competing(trained: Mapping[str, Tally], received: Mapping[str, Tally]) -> dict[str, Tally]:
    """Scores after training for a record that also has those as `received`: by names of their own.

    A client that has not trained yet counts with its model as received.
    """
    return {TRAINED + name: tally.or_else(received[name]) for name, tally in trained.items()}
