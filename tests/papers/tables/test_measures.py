"""What a table reads off a run, against loops over the run's own files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.papers.measures import WORDS, build
from fedbench.runs.run import Run, reaches

ACC = ["10.5", "20", "", "40.25", "81", "62"]  # of six clients; the third has no test samples


def run(**parts: Any) -> Run:
    """A run whose parts need no folder."""
    made = Run(Path("nowhere"))
    vars(made).update(client_rows=[{"acc": text} for text in ACC], **parts)
    return made


def curve(*accuracies: float) -> list[dict[str, str]]:
    """Scored rounds 0, 5, 10, ... in percent."""
    return [
        {"round": f"{5 * k}", "acc_on_local": f"{acc}", "seconds_total": "1", "bytes_up": "0", "bytes_down": "0"}
        for k, acc in enumerate(accuracies)
    ]


def value(measure: dict[str, Any], of: Run, baseline: Run | None = None) -> float:
    return build(measure).value(of, baseline)


@pytest.mark.parametrize("first", range(6))
def test_clients_are_those_from_first_to_last_inclusive(first: int) -> None:
    for last in range(first, 6):
        read = [float(ACC[k]) for k in range(6) if first <= k <= last and ACC[k]]
        found = value({"name": "clients", "first": first, "last": last}, run())
        assert found == pytest.approx(sum(read) / len(read) if read else math.nan, nan_ok=True)
        assert math.isnan(found) == (first == last == 2), "one without test samples takes no part, as in acc"


def test_clients_that_are_not_there_have_no_mean() -> None:
    for first, last in ((4, 6), (6, 6), (20, 39)):
        with pytest.raises(ConfigError, match=f"the run has 6 clients, numbered from 0, and no {last}"):
            value({"name": "clients", "first": first, "last": last}, run())
    for first, last in ((3, 2), (-2, -1)):
        with pytest.raises(ConfigError, match=f"first={first}, last={last} is not a range"):
            build({"name": "clients", "first": first, "last": last})


def test_columns() -> None:
    one = run(row={"score": 41.5, "seconds_total": 30.0, "bytes_up": 12, "ipr": None})
    assert value({"name": "result"}, one) == 41.5
    assert value({"name": "result", "column": "bytes_up", "factor": 0.5}, one) == 6
    assert math.isnan(value({"name": "result", "column": "ipr"}, one))


def test_the_mean_of_an_array() -> None:
    one = run(arrays={"kept": np.array([[1.0, 2.0], [4.0, 9.0]])})
    assert value({"name": "array", "array": "kept"}, one) == 4
    with pytest.raises(FedbenchError, match="kept"):
        value({"name": "array", "array": "keep"}, one)


def test_speedup_is_the_ratio_of_the_first_rounds_at_the_baseline_s_best() -> None:
    base = run(rounds=curve(0, 30, 20, 50, 50, 10))  # its best first in round 15
    for accuracies, expected in (
        ((0, 60, 0, 0), 15 / 5),
        ((0, 49.9, 50, 0), 15 / 10),
        ((0, 1, 2, 3, 4, 50), 15 / 25),
        ((50, 0), math.inf),
    ):
        assert value({"name": "speedup"}, run(rounds=curve(*accuracies)), base) == expected
    assert math.isnan(value({"name": "speedup"}, run(rounds=curve(0, 49.9)), base))
    untrained = run(rounds=curve(math.nan, 30, 20, 50))  # not scored before its first round
    assert value({"name": "speedup"}, run(rounds=curve(math.nan, 60)), untrained) == 3
    with pytest.raises(ConfigError, match="baseline"):
        value({"name": "speedup"}, base)


def test_what_a_run_took_until_an_accuracy() -> None:
    rows = [
        {
            "round": f"{k}",
            "acc_on_local": f"{acc}",
            "seconds_total": f"{2.5 * k}",
            "bytes_up": f"{k}",
            "bytes_down": "7",
        }
        for k, acc in ((0, 10), (4, 30), (8, 25), (9, 50))
    ]
    found = reaches(run(rounds=rows), 0.3, "local")
    assert (found.rounds, found.seconds, found.bytes) == (4, 10.0, 11)
    assert (reaches(run(rounds=rows), 0.3001, "local").rounds, reaches(run(rounds=rows), 0.1, "local").bytes) == (9, 7)
    assert reaches(run(rounds=rows), 0.5001, "local").rounds is None


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        ({"name": "result"}, "accuracy by the protocol's rule, percent"),
        ({"name": "result", "column": "acc_on_common", "factor": 2}, f"{WORDS['acc_on_common']}, times 2"),
        ({"name": "result", "column": "acc_on_local_pooled"}, "accuracy on the local pooled test set, percent"),
        ({"name": "result", "column": "nll_on_val"}, "negative log-likelihood on the val test set"),
        ({"name": "result", "column": "acc_best"}, "accuracy, best"),
        ({"name": "result", "column": "bytes_up", "factor": 1e-6}, "bytes up, times 1e-06"),
        ({"name": "clients", "first": 2, "last": 5}, "mean accuracy of clients 2 to 5, percent"),
        ({"name": "array", "array": "kept"}, "mean of what the method records as kept"),
    ],
)
def test_what_a_number_is_said_to_be(measure: dict[str, Any], words: str) -> None:
    assert build(measure).words == words
