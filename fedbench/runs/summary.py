"""A run as rows: everything in one row for tables, and one row a client."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench.core.errors import ConfigError
from fedbench.engine.history import VALIDATION, History, Labels, seconds_columns
from fedbench.metrics import RULES, Floats, Reported, fairness


@dataclass(frozen=True)
class Reading:
    """How a number is read off a history: protocol.report, protocol.average, and whose best-validation round."""

    report: str = "last"
    average: str = "client"
    per_client: bool = False

    def of(self, history: History, test_set: str, rule: str | None = None) -> Reported:
        """What is reported on `test_set`, by another `rule` if given."""
        return history.report(test_set, rule or self.report, self.average, self.per_client)


def summarise(
    labels: Labels,
    key: str,
    history: History,
    reading: Reading,
    *,
    partition_hash: str,
    local: Floats | None = None,
    local_key: str = "",
    kinds: Sequence[str] = (),
    prepared: tuple[int, int] = (0, 0),
    versions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """One row of plain values; accuracies, IPR in percent, RSD in percent points.

    `acc` (client mean) and `acc_pooled` follow the report rule on the primary test set; `score` is the one of
    the two that the protocol calls its accuracy. acc_on_<set> repeats both for every test set, each by the same
    rule (and acc_on_val for the validation samples, if any); acc_<rule> reads the primary test set by every rule
    that applies; acc_of_<kind> is `acc` over the clients of a kind. `report_first`, `report_last` are the first and
    last round used.

    Args:
        labels: names of the run.
        key: hash of what determines the result.
        history: the scored rounds.
        reading: how the protocol reads numbers off.
        partition_hash: hash of the partition.
        local: accuracies [N] (fractions) of Local by the same reading, for IPR and RSD; None: both are nan.
        local_key: key of that Local run.
        kinds: of each client; none where all are alike.
        prepared: bytes up and down of all those sent that the method's preparation took.
        versions: columns to append, such as versions and the commit.

    Raises:
        ConfigError: nobody who was scored has a test sample.
    """
    primary = history.test_sets()[0]
    reported = reading.of(history, primary)
    client, pooled = 100 * reported.tally.mean(), 100 * reported.tally.pooled()
    if math.isnan(client):
        raise ConfigError(
            f"no client that was scored has a sample of the {primary} test set, so there is no accuracy: more rounds, "
            "a larger protocol.cohort or protocol.test.fraction, or fewer clients with more samples each"
        )
    fair = None if local is None else fairness(reported.tally.accuracy(), local)
    row = dataclasses.asdict(labels) | {
        "key": key,
        "partition_hash": partition_hash,
        "clients": len(reported.tally),
        "rounds": history.last.round,
        **dataclasses.asdict(reading),
        "test_set": primary,
        "report_first": int(reported.rounds.min()),
        "report_last": int(reported.rounds.max()),
        "score": {"client": client, "pooled": pooled}[reading.average],
        "acc": client,
        "acc_pooled": pooled,
        "ipr": float("nan") if fair is None else fair.ipr,
        "rsd": float("nan") if fair is None else fair.rsd,
        "local_key": local_key,
    }
    validated = (VALIDATION,) if history.having(VALIDATION) else ()
    for test_set in (*history.test_sets(), *validated):
        row |= _accuracies(f"acc_on_{test_set}", reading.of(history, test_set))
    for rule in RULES:
        if rule != "best_val" or history.having(primary, VALIDATION):
            row |= _accuracies(f"acc_{rule}", reading.of(history, primary, rule))
    for kind in dict.fromkeys(kinds):
        row[f"acc_of_{kind}"] = 100 * float(np.nanmean(reported.tally.accuracy()[np.array(kinds) == kind]))
    row |= {"bytes_up": history.last.bytes_up, "bytes_down": history.last.bytes_down}
    row |= {"bytes_up_prepare": prepared[0], "bytes_down_prepare": prepared[1]}
    return row | seconds_columns(history.last.seconds) | dict(versions or {})


def client_rows(
    history: History,
    reading: Reading,
    *,
    sizes: Mapping[str, Sequence[int] | NDArray[np.int64]],
    local: Floats | None = None,
    kinds: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """One row a client: `sizes` (such as train, val, test: [N]), acc, acc_local and gain over it, in percent.

    And the number of its kind, where there are several (`kinds` [N]).

    `round` is the (last) round used; clients differ in it when each has its own best-validation round.
    """
    reported = reading.of(history, history.test_sets()[0])
    accuracy = reported.tally.accuracy()
    reference = np.full_like(accuracy, np.nan) if local is None else local
    gains = fairness(accuracy, reference).gains
    order = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    return [
        {"client": index}
        | ({"kind": order[kinds[index]]} if kinds else {})
        | {f"size_{name}": int(values[index]) for name, values in sizes.items()}
        | {
            "round": int(reported.rounds[-1, index]),
            "acc": 100 * float(accuracy[index]),
            "acc_local": 100 * float(reference[index]),
            "gain": float(gains[index]),
        }
        for index in range(len(accuracy))
    ]


def _accuracies(name: str, reported: Reported) -> dict[str, float]:
    return {name: 100 * reported.tally.mean(), f"{name}_pooled": 100 * reported.tally.pooled()}
