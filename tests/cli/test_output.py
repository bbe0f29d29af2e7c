"""Where the output goes: to a reader that leaves, a full disk, nowhere, or in an encoding that lacks a sign."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedbench.cli import program
from fedbench.engine.history import Labels
from fedbench.papers.leaderboard import fill_board
from fedbench.papers.reproduce import make_runs
from fedbench.papers.selection import Selection
from fedbench.runs.progress import Progress
from tests.helpers.runner import FakeRunner


@contextmanager
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard output is a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        yield
        pipe.flush()  # as Python does at its end


def test_a_reader_that_leaves_ends_a_command_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(_: list[str]) -> int:
        for _ in range(3):
            print("a line")
        return 0

    with unread(monkeypatch):
        assert program.end("x", [], body) == 141


def test_a_reader_that_leaves_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with unread(monkeypatch):
        progress = Progress(mode="lines")
        for done in range(1, 4):
            progress.start(Labels(*"dpmfq", 0), 3, 0)
            progress.advance(done)


def test_a_reader_that_leaves_ends_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of itself rich ends the process: a table that is being filled would stay half filled."""
    with unread(monkeypatch):
        assert program.main(["list", "recorders"]) == 0


def test_a_reader_that_leaves_ends_no_sweep(
    toy: Path, executed: FakeRunner, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unread(monkeypatch):
        assert program.main(["-m", "method=fedavg", "seed=0,1"]) == 0
    assert len(executed) == 2


def test_a_reader_that_leaves_ends_no_runs_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of itself rich ends the process after the runs, before the table is written."""
    monkeypatch.setattr("fedbench.papers.execute.run_all", lambda *_: None)
    with unread(monkeypatch):
        make_runs([], [])


def test_a_reader_that_leaves_ends_no_leaderboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = SimpleNamespace(rungs=(1,), tuning_seeds=(7,), rounds=1, seeds=(0,))
    ledger: Any = SimpleNamespace(board=board, folder=tmp_path, entries=lambda *_: [], save=lambda: None)
    ledger.record, ledger.missing = list, lambda *_, **__: []
    with unread(monkeypatch):
        assert fill_board(ledger, Selection(jobs=1)) == ""


def test_no_file_of_a_run_takes_the_number_of_a_closed_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's message would be written into it."""
    monkeypatch.setattr(sys, "stderr", None)
    assert program.end("x", [], lambda _: sys.stderr is None) == 0
    with sys.stderr as opened:
        assert opened.name == os.devnull


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_sign_that_the_output_lacks_ends_nothing(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()

    def body(_: list[str]) -> int:
        print("± ‡ \udcff")
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
        assert program.end("x", [], body) == 0
        found = written.getvalue().decode(encoding)
    assert found == ("? ? ?\n" if encoding == "ascii" else "± ‡ ?\n")


@pytest.mark.slow
def test_an_output_that_is_closed_or_full_is_no_traceback(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    run = f"{sys.executable} -m fedbench --version"
    for where, code in ((">&-", 0), ("> /dev/full", 2)):
        done = subprocess.run(
            ["bash", "-c", f"{run} {where}"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert done.stderr.count("\n") == (code > 0), done.stderr
