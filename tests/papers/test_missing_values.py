"""`python -m fedbench evidence`: which columns come first, what is made, and what stops it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from fedbench.cli import program
from fedbench.config.messages import INCOMPLETE
from fedbench.core.errors import ConfigError
from fedbench.core.signals import Stopped
from fedbench.papers import estimate, evidence, reproduce, spec, store
from fedbench.papers.execute import run_all
from fedbench.papers.selection import Selection

CONTENT = {
    "name": "toy",
    "title": "Toy",
    "paper": "fedcollab",
    "table": "T1",
    "seeds": 5,
    "base": ["dataset=digits", "model=mlp", "protocol=quick", "protocol.rounds=2", "partition.num_clients=4"],
    "metrics": [{"name": "acc"}],
    "rows": [
        {"label": "Local", "overrides": ["method=local"]},
        {"label": "FedAvg", "overrides": ["method=fedavg"]},
    ],
    "columns": [
        {
            "label": "Label shift",
            "overrides": ["partition=dir0.5"],
            "published": {"dataset": "fashion_mnist", "partition": "label_shift"},
        },
        {"label": "unpublished", "overrides": ["partition=homo"], "published": {"dataset": "none"}},
    ],
}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> spec.TableSpec:
    """A table of a paper on digits: one column has published values, the other none."""
    table = spec.parse_spec(CONTENT)
    monkeypatch.setattr(spec, "load_spec", lambda _: table)
    monkeypatch.setattr(evidence, "paper_tables", lambda: ["toy"])
    return table


def asked(tmp_path: Path, *more: str) -> int:
    places = [f"results={tmp_path / 'results'}", f"runs_dir={tmp_path / 'runs'}", "jobs=1"]
    return program.main(["evidence", *places, *more])


def work(name: str, values: int, seconds: float) -> evidence.ColumnWork:
    return evidence.ColumnWork(Selection(table=name, columns=("c",)), (), values, seconds)


def test_one_line_says_that_nothing_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    evidence._show([], {}, 1)
    assert capsys.readouterr().out == "nothing is missing\n"
    evidence._show([], {"no data": 3}, 1)
    assert capsys.readouterr().out == "nothing is missing that can run here\n3 values: no data\n"


def test_columns_that_fit_come_by_values_an_hour_and_then_the_others() -> None:
    found = evidence.ordered(
        [work("slow", 1, 50), work("long", 50, 200), work("dear", 1, 40), work("best", 9, 60)], 110
    )
    assert [each.selection.table for each in found] == ["best", "dear", "long", "slow"]


def test_a_column_that_is_a_mean_has_its_values_and_the_runs_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, other = CONTENT["columns"]
    mean = {"label": "both", "published": published["published"], "mean": ["one", "two"]}
    parts = [{"label": name, "overrides": each["overrides"]} for name, each in (("one", published), ("two", other))]
    table = spec.parse_spec({**CONTENT, "columns": [mean, *parts]})
    monkeypatch.setattr(spec, "load_spec", lambda _: table)
    monkeypatch.setattr(estimate, "estimate", lambda *_: SimpleNamespace(seconds=7.0))
    places = (f"runs_dir={tmp_path / 'runs'}",)
    (found,), *rest = evidence.survey(Selection(seeds=(0, 1, 2), overrides=places, results=str(tmp_path)), ["toy"])
    assert (found.selection.columns, found.values, len(found.missing), rest) == (("both",), 2, 12, [{}, []])


def test_runs_that_failed_before_are_told_and_leave_it_incomplete(
    tmp_path: Path, toy: spec.TableSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    selection = Selection(table="toy", seeds=(0,), overrides=(f"runs_dir={tmp_path / 'runs'}",), results=str(tmp_path))
    for job in reproduce.plan_of(selection)[0].missing():  # of the column without published values, too
        with contextlib.suppress(ConfigError), job.folder.noting_failure():
            raise ConfigError("made to fail")
    assert asked(tmp_path, "seeds=1") == INCOMPLETE
    said = capsys.readouterr()
    assert said.out == "nothing is missing but runs that failed\n"
    first, second = said.err.splitlines()
    assert "method=local" in first
    assert "method=fedavg" in second
    assert all(line.endswith(": ConfigError: made to fail; retry=true tries it again") for line in (first, second))


def test_a_table_without_published_values_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = spec.parse_spec({**CONTENT, "columns": CONTENT["columns"][1:]})
    monkeypatch.setattr(spec, "load_spec", lambda _: table)
    assert asked(tmp_path, "toy") == 2
    assert capsys.readouterr().err.startswith("error: toy has no published values (times do not count); ")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_makes_what_published_values_lack_and_nothing_else(
    tmp_path: Path, toy: spec.TableSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(tmp_path, "--dry-run") == 0
    assert "2 values, 6 runs" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()

    assert asked(tmp_path) == 0
    (folder,) = store.table_folders(tmp_path / "results").values()
    table = store.read_table(folder)
    for row in ("Local", "FedAvg"):
        assert table.cell(row, "Label shift", "acc").seeds == (0, 1, 2), "three seeds, not the table's five"
        assert not table.cell(row, "unpublished", "acc").values
    assert len(store.read_rows(folder)) == 6

    capsys.readouterr()
    assert asked(tmp_path) == 0
    assert capsys.readouterr().out == "nothing is missing\n"


class Clock:
    """A timer that rings when the test says so."""

    daemon = False
    started: ClassVar[list[Clock]] = []

    def __init__(self, seconds: float, ring: Callable[[], None]) -> None:
        self.seconds, self.ring = seconds, ring

    def start(self) -> None:
        Clock.started.append(self)

    def cancel(self) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[Clock]:
    """The timers that a call starts; what they send reaches nobody."""
    monkeypatch.setattr(Clock, "started", [])
    monkeypatch.setattr(evidence.threading, "Timer", Clock)
    monkeypatch.setattr(os, "kill", lambda *sent: SENT.append(sent))
    SENT.clear()
    return Clock.started


SENT: list[tuple[int, int]] = []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("rings", [True, False])
def test_a_run_is_a_row_as_soon_as_it_has_finished(
    tmp_path: Path, toy: spec.TableSpec, monkeypatch: pytest.MonkeyPatch, clock: list[Clock], rings: bool
) -> None:
    """The first run finishes, then a signal comes: the time is over, or somebody stops the command."""

    def one_and_stop(jobs: Sequence[Any], launcher: Sequence[str], *, write: Any) -> None:
        run_all([jobs[:1]], launcher)
        write(jobs[:1])
        if rings:
            clock[0].ring()
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(evidence, "make_runs", one_and_stop)
    assert asked(tmp_path, "hours=0.5") == (INCOMPLETE if rings else 128 + signal.SIGTERM)
    (folder,) = store.table_folders(tmp_path / "results").values()
    assert [row["row"] for row in store.read_rows(folder)] == ["Local"]
    assert 1500 < clock[0].seconds <= 1800
    assert [(os.getpid(), signal.SIGTERM)] * rings == SENT


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_that_failed_is_told_and_stops_no_other(
    tmp_path: Path, toy: spec.TableSpec, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedbench.runs import execution

    make = execution.execute

    def fails_once(run: Any, *given: Any, **named: Any) -> Any:
        if run.labels["method"] == "fedavg" and run.seed == 1:
            raise ConfigError("made to fail")
        return make(run, *given, **named)

    monkeypatch.setattr(execution, "execute", fails_once)
    assert asked(tmp_path) == INCOMPLETE
    said = capsys.readouterr()
    assert "5 of 6 runs are below" in said.out
    (line,) = (line for line in said.err.splitlines() if line.startswith("failed: "))
    for part in ("method=fedavg", "seed=1", "made to fail", "retry=true"):
        assert part in line


def test_settings_that_change_results_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(tmp_path, "protocol.rounds=3") == 2
    assert "protocol.rounds=3 changes results" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("columns=1", "columns=1 is a key of reproduce; evidence takes"),
        ("table=toy", "table=toy is a key of reproduce; evidence takes"),
        ("hours=0", "hours must be positive, got 0"),
        ("hours=-1", "hours must be positive, got -1"),
    ],
)
def test_keys_of_reproduce_and_no_hours_are_refused(
    word: str, reason: str, tmp_path: Path, toy: spec.TableSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(tmp_path, word, "--dry-run") == 2
    assert reason in capsys.readouterr().err
