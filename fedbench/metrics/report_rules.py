"""Report rules: which evaluated round a number is read from. The papers differ, by points of accuracy.

- last: the last evaluated round (FedCollab).
- best_test: the round with the best test accuracy (SosicFL, FedReMa's best: optimistic, the test set selects).
- best_val: the round with the best validation accuracy; per client in FedSaC's code (`per_client=True`).
- mean_last_5: mean over the last five evaluated rounds (FedReMa's "final").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbench.core.errors import ConfigError, unknown
from fedbench.metrics.accuracy import TIE, Floats, Tally

RULES = ("last", "best_test", "best_val", "mean_last_5")


@dataclass(frozen=True, eq=False)
class Reported:
    """What is reported: `tally` [N], counts summed over the rounds used, and those `rounds` [k, N], k <= 5.

    A client's test set is the same in every round, so the ratio of the sums is the mean of the accuracies.
    """

    tally: Tally
    rounds: NDArray[np.int64]


def report(
    rule: str,
    rounds: Sequence[int],
    test: Sequence[Tally],
    val: Sequence[Tally] | None = None,
    average: str = "client",
    per_client: bool = False,
) -> Reported:
    """Apply `rule` to the evaluated `rounds` [R], whose tallies are `test` [R] and, for best_val, `val` [R].

    Args:
        rule: one of `RULES`.
        rounds: rounds completed at each evaluation, ascending (twice where two models of a round compete); 0 is
            the untrained model.
        test: the tallies to report.
        val: validation tallies of the same rounds.
        average: client or pooled: the metric that a best round maximises.
        per_client: best_val only: each client at its own best-validation round; a client without validation
            samples takes the federation's.

    The first maximum wins a tie. Raises ConfigError when best_val has no validation tallies.
    """
    if rule not in RULES:
        raise unknown("protocol.report", rule, RULES)
    if not test or len(rounds) != len(test) or (val is not None and len(val) != len(test)):
        raise ValueError("report needs one tally for each evaluated round, and at least one")
    clients = len(test[0])
    if rule == "best_val":
        if val is None:
            raise ConfigError("protocol.report=best_val needs protocol.test.val_fraction > 0")
        picked = _best_val(val, average, per_client, clients)
    elif rule == "best_test":
        picked = _whole(_first_best([tally.averaged(average) for tally in test]), clients)
    elif rule == "mean_last_5":
        # An untrained model is averaged in only when nothing else was scored.
        trained = [index for index, done in enumerate(rounds) if done > 0] or [len(test) - 1]
        picked = np.repeat(np.array(trained[-5:])[:, None], clients, axis=1)
    else:
        picked = _whole(len(test) - 1, clients)
    correct = np.stack([tally.correct for tally in test])  # [R, N]
    total = np.stack([tally.total for tally in test])
    summed = [np.take_along_axis(counts, picked, axis=0).sum(axis=0) for counts in (correct, total)]
    return Reported(Tally(summed[0], summed[1]), np.asarray(rounds, dtype=np.int64)[picked])


def _best_val(val: Sequence[Tally], average: str, per_client: bool, clients: int) -> NDArray[np.int64]:
    """Index of the round to use, [1, clients]."""
    shared = _first_best([tally.averaged(average) for tally in val])
    if not per_client:
        return _whole(shared, clients)
    if len(val[0]) != clients:
        raise ValueError("best_val per client needs a validation accuracy for each reported client")
    accuracy = np.stack([tally.accuracy() for tally in val])  # [R, N]
    own = [shared if np.isnan(column).all() else _first_best(column) for column in accuracy.T]
    return np.array([own])


def _whole(index: int, clients: int) -> NDArray[np.int64]:
    return np.full((1, clients), index)


def _first_best(values: Sequence[float] | Floats) -> int:
    """Index of the first maximum, up to `TIE`; the last index when all are nan (nothing to choose by)."""
    scores = np.asarray(values, dtype=np.float64)
    if np.isnan(scores).all():
        return len(scores) - 1
    return int(np.argmax(scores >= np.nanmax(scores) - TIE))
