"""Accuracy, IPR and RSD, report rules, time to accuracy: pure functions on arrays.

Accuracies are fractions here. Files and printed tables hold percent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench.core.errors import ConfigError, unknown

# Counts of correct predictions, per client, and the averages the papers take of them.

Floats = NDArray[np.float64]

# Accuracies are ratios of integers over test sets far below 1e8 samples: two that differ do so by more than
# this, and two closer than this are the same ratio computed along different roads.
TIE = 1e-9

PARTS = ("correct", "total", "outputs")  # of a tally; the last may be None


@dataclass(frozen=True, eq=False)
class Tally:
    """Correct predictions and samples tested, one entry a client: `correct` [N], `total` [N], float64.

    Entries are whole numbers, except where classes are weighted (`weighted`). Of regression `correct` is a sum of
    points, each at most 1, and may be negative. The arrays are copied, so a buffer may be used again.

    Raises:
        ValueError: when they are not a possible count (shape, not finite, more correct than tested).
    """

    correct: Floats
    total: Floats
    # [N, n, K], where a metric needs them: the scores of each tested sample, in the order of the client's set; n is the
    # largest number that a client has
    outputs: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        for name in ("correct", "total"):
            object.__setattr__(self, name, np.array(getattr(self, name), dtype=np.float64))
        if self.correct.ndim != 1 or self.correct.shape != self.total.shape:
            raise ValueError(f"a tally needs two [N] arrays, got {self.correct.shape} and {self.total.shape}")
        finite = np.isfinite(self.correct) & np.isfinite(self.total)
        possible = finite & (self.total >= 0) & (self.correct <= self.total * (1 + TIE))
        if not possible.all():
            raise ValueError(f"client {int(np.argmin(possible))}: not a count of correct predictions")

    def __len__(self) -> int:
        return len(self.correct)

    def accuracy(self) -> Floats:
        """correct_i / total_i per client [N]; nan for a client without test samples."""
        tested = self.total > 0
        return np.where(tested, self.correct / np.where(tested, self.total, 1.0), np.nan)

    @property
    def scored(self) -> int:
        """Clients with test samples: those that `mean` is over."""
        return int((self.total > 0).sum())

    def mean(self) -> float:
        """Client mean (1/N) sum_i correct_i / total_i over the clients with test samples (FedCollab's Acc)."""
        return client_mean(self.accuracy())

    def pooled(self) -> float:
        """Pooled sum_i correct_i / sum_i total_i (pFedSim's and FedReMa's code); nan without samples."""
        total = float(self.total.sum())
        return float(self.correct.sum()) / total if total > 0 else float("nan")

    def or_else(self, other: Tally) -> Tally:
        """This tally, with `other`'s counts for clients of whom nothing was tested here."""
        tested = self.total > 0
        outputs = None
        if self.outputs is not None and other.outputs is not None:
            outputs = np.where(tested[:, None, None], self.outputs, other.outputs)
        correct = np.where(tested, self.correct, other.correct)
        return Tally(correct, np.where(tested, self.total, other.total), outputs)

    def averaged(self, average: str) -> float:
        """`average`: client (`mean`) or pooled (`pooled`), as in protocol.average."""
        return {"client": self.mean, "pooled": self.pooled}[average]()


@dataclass(frozen=True, eq=False)
class Measured:
    """A metric of scores (fedbench.sample_metrics) on the samples of each client, and on those of all together."""

    clients: Floats  # [N]; nan where it is undefined, as for a client without samples
    pooled: float

    def mean(self) -> float:
        """Mean over the clients for whom it is defined."""
        return client_mean(self.clients)

    @property
    def defined(self) -> int:
        """Those clients."""
        return int(np.isfinite(self.clients).sum())

    @classmethod
    def over(cls, each: Sequence[Measured], places: NDArray[np.int64]) -> Measured:
        """The mean over the evaluations `places` [k, N] of `each` [R].

        Pooled it is nan where clients are read off different rounds: their samples were not scored together.
        """
        clients = np.take_along_axis(np.stack([one.clients for one in each]), places, axis=0).mean(axis=0)
        alike = (places == places[:, :1]).all()
        return cls(clients, float(np.mean([each[place].pooled for place in places[:, 0]])) if alike else float("nan"))


def client_mean(accuracy: Floats) -> float:
    """Mean over the clients whose accuracy is not nan; nan if there is none."""
    known = accuracy[~np.isnan(accuracy)]
    return float(known.mean()) if len(known) else float("nan")


def weighted(correct: NDArray[Any], total: NDArray[Any], shares: NDArray[Any]) -> Tally:
    """The global test set weighted by each client's label shares q: sum_c q_c correct_c / sum_c q_c total_c.

    Args:
        correct: [N, K] correct predictions of client i's model on the test samples of class c.
        total: [K] or [N, K] test samples of each class.
        shares: [N, K] label distribution q of each client.

    Source: the evaluation of FedSaC's public code. The entries of the tally are the two weighted sums, so
    pooling it weighs a client by sum_c q_c total_c.
    """
    q = np.asarray(shares, dtype=np.float64)
    if correct.ndim != 2 or q.shape != correct.shape or total.shape not in (correct.shape, correct.shape[1:]):
        raise ValueError(f"weighted: shapes {correct.shape}, {total.shape} and {q.shape} do not agree")
    return Tally((q * correct).sum(axis=1), (q * total).sum(axis=1))


# Who gains from federating, against training alone: IPR and RSD (FedCollab, Eq. 11 and 12).


@dataclass(frozen=True, eq=False)
class Fairness:
    """Gains over Local and their summary."""

    gains: Floats  # [N] points of the unit (percent points), 0 for a tie; nan where either value is unknown
    ipr: float  # percent of clients
    rsd: float  # as the gains

    @property
    def clients(self) -> int:
        """Those with a gain."""
        return int(np.isfinite(self.gains).sum())


def fairness(accuracy: Floats, local: Floats, *, unit: float = 100.0) -> Fairness:
    """IPR and RSD of `accuracy` [N] against `local` [N], client by client.

    Both are fractions, or any values of which more is better; `unit` is what 1 is written as.

    IPR = (1/N) sum_i 1{a_i - l_i > 0}: a tie is no gain, and a difference below `TIE` is a tie, because the
    same ratio of integers may be rounded differently on either side.
    RSD = sqrt((1/N) sum_i (g_i - mean g)^2), g_i = a_i - l_i: the population standard deviation.

    Clients without test samples (nan) count in neither; both are nan when none is left.
    """
    if accuracy.shape != local.shape or accuracy.ndim != 1:
        raise ValueError(f"fairness compares client by client, got {accuracy.shape} and {local.shape}")
    gains = accuracy - local
    known = gains[~np.isnan(gains)]
    told = unit * np.where(np.abs(gains) <= TIE, 0.0, gains)  # so that who counts gains above 0 finds the IPR
    if not len(known):
        return Fairness(told, float("nan"), float("nan"))
    return Fairness(told, 100 * float((known > TIE).mean()), unit * float(known.std(ddof=0)))


# Which clients a mean hides: fractions [N] of one run, client by client; nan where a client has no test sample.

THIRDS = ("small", "middle", "large")


def worst(accuracy: Floats, share: float = 0.1) -> float:
    """Mean accuracy of the worst `share` of the clients with test samples, rounded up to a whole one."""
    known = np.sort(accuracy[~np.isnan(accuracy)])
    return client_mean(known[: math.ceil(share * len(known) - TIE)])


def hurt(accuracy: Floats, reference: Floats, margin: float) -> float:
    """Share of the clients that are worse than in `reference` [N], such as Local's, by more than `margin`, a fraction.

    A difference within `TIE` of the margin does not exceed it. Clients unknown in either run do not count.
    """
    losses = -fairness(accuracy, reference).gains / 100
    known = losses[~np.isnan(losses)]
    return float((known > margin + TIE).mean()) if len(known) else float("nan")


def by_size(accuracy: Floats, sizes: NDArray[Any]) -> dict[str, float]:
    """Mean accuracy of the third of the clients with the fewest training samples, of the middle, and of the largest.

    Thirds of the clients with test samples, as equal in number as can be, the earlier ones larger; of equally large
    clients the first come first.
    """
    order = np.argsort(sizes, kind="stable")
    order = order[~np.isnan(accuracy[order])]
    return {name: client_mean(accuracy[part]) for name, part in zip(THIRDS, np.array_split(order, 3), strict=True)}


# Report rules: which evaluated round a number is read from. The papers differ, by points of accuracy.
#
# - last: the last evaluated round (FedCollab).
# - best_test: the round with the best test accuracy (SosicFL, FedReMa's best: optimistic, the test set selects).
# - best_val: the round with the best validation accuracy; per client in FedSaC's code (`per_client=True`).
# - mean_last_5: mean over the last five evaluated rounds (FedReMa's "final").

RULES = ("last", "best_test", "best_val", "mean_last_5")


@dataclass(frozen=True, eq=False)
class Reported:
    """What is reported: `tally` [N], counts summed over the rounds used, and those `rounds` [k, N], k <= 5.

    A client's test set is the same in every round, so the ratio of the sums is the mean of the accuracies.
    """

    tally: Tally
    rounds: NDArray[np.int64]
    places: NDArray[np.int64]  # [k, N], those of the rounds among the tallies that were given
    measures: Mapping[str, Measured] = field(default_factory=dict)  # of the metrics of scores, means over these rounds


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
    return Reported(Tally(*summed), np.asarray(rounds, dtype=np.int64)[picked], picked)


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


# Time-to-accuracy: how long a run takes to reach a reference accuracy (SosicFL, Section 5 and Table 5).


@dataclass(frozen=True)
class TimeToAccuracy:
    """Cost of the first evaluated round that reaches `reference`; all None (censored) when none does."""

    reference: float  # fraction
    horizon: int  # last evaluated round: a censored run is "> horizon"
    rounds: int | None
    seconds: float | None
    bytes: int | None


def time_to_accuracy(
    rounds: Sequence[int],
    accuracy: Sequence[float],
    reference: float,
    seconds: Sequence[float] | None = None,
    traffic: Sequence[int] | None = None,
) -> TimeToAccuracy:
    """First entry whose accuracy is at least `reference`: TTA = min {t : acc_t >= reference}.

    Args:
        rounds: rounds completed at each evaluation, ascending.
        accuracy: accuracy at each evaluation, as a fraction (nan never reaches).
        reference: accuracy to reach; a difference below `TIE` counts as reached.
        seconds: cumulative training seconds at each evaluation, if known.
        traffic: cumulative bytes (up and down) at each evaluation, if known.
    """
    if not rounds or len(rounds) != len(accuracy):
        raise ValueError("time_to_accuracy needs one accuracy for each evaluated round, and at least one")
    for index, value in enumerate(accuracy):
        if value >= reference - TIE:
            spent = None if seconds is None else seconds[index]
            sent = None if traffic is None else traffic[index]
            return TimeToAccuracy(reference, rounds[-1], rounds[index], spent, sent)
    return TimeToAccuracy(reference, rounds[-1], None, None, None)


def improvement(baseline: TimeToAccuracy, other: TimeToAccuracy) -> float | None:
    """SosicFL's Table 5: rounds of `baseline` / rounds of `other`; above 1, `other` is faster.

    None when either is censored. A reference that `other` meets before the first round makes it infinite, or 1
    if both do.
    """
    if baseline.rounds is None or other.rounds is None:
        return None
    if other.rounds == 0:
        return 1.0 if baseline.rounds == 0 else math.inf
    return baseline.rounds / other.rounds
