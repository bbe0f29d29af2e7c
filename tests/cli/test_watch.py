"""`fedbench.watch`, and the table that `fedbench.reproduce` prints at its end."""

from __future__ import annotations

import shlex
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedbench.cli import reproduce, request, telling, watch
from fedbench.engine.simulation import Simulation
from fedbench.engine.state import State

ARGUMENTS = [
    "table=fedcollab_t1",
    "scale=smoke",
    "substitute=digits",
    "columns=1",
    "rows=Local,FedAvg,Ditto",
    "seeds=1",
    "jobs=1",
    "hardware.engine=looped",
]


def test_a_table_is_watched_and_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    arguments = [*ARGUMENTS, f"runs_dir={tmp_path / 'runs'}", f"results={tmp_path / 'results'}"]
    assert watch.main([*arguments, "--once"]) == 0
    assert lines(capsys.readouterr().out) == {"Local": ["1"], "FedAvg": ["1"], "Ditto": ["1"]}

    step, announce, stopped, listed = Simulation.step, telling.announce, [], []

    def announced(*given: Any) -> None:
        listed.append(watch.main([f"runs_dir={tmp_path / 'runs'}"]))
        announce(*given)

    def interrupted(self: Simulation, state: State) -> None:
        step(self, state)
        if type(self.setup.method).__name__ == "Ditto" and not stopped:
            stopped.append(state.round)
            listed.append(watch.main([f"runs_dir={tmp_path / 'runs'}"]))
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "step", interrupted)
        patch.setattr(telling, "announce", announced)
        assert reproduce.main(arguments) == 128 + signal.SIGTERM
    assert stopped == [1]
    assert listed == [0, 0]
    shown = capsys.readouterr().out
    title = "each method alone and inside FedCollab (on digits instead of the paper's data; smoke scale)"
    for there in (0, 2):  # while it is measured, and in the last round
        assert f"{title}: {there} of 3 runs are there, 0 failed\n" in shown
    line, _ = (line for line in shown.splitlines() if line.startswith("  watch it: "))
    assert watch.main([*shlex.split(line)[5:], "--once"]) == 0, "the command is one that watches it"
    assert lines(capsys.readouterr().out)["Ditto"]
    assert watch.main([f"runs_dir={tmp_path / 'runs'}"]) == 0
    assert f"nothing under way in {tmp_path / 'runs'}; fill a table: python -m" in capsys.readouterr().out
    assert not (tmp_path / "runs" / ".tables").exists()
    assert watch.main([*arguments, "--once"]) == 0
    state = capsys.readouterr().out
    assert "smoke scale" in " ".join(state.split())
    assert lines(state)["Local"] == lines(state)["FedAvg"] == ["1"]
    assert "seed 0: round 1 of 2" in state

    assert reproduce.main(arguments) == 0
    shown = capsys.readouterr().out
    assert {"Local", "FedAvg", "Ditto"} <= {line.strip("│ ").partition(" ")[0] for line in shown.splitlines()}
    assert f"complete: 3 of 3 cells asked for are in {tmp_path / 'results'}" in shown
    assert watch.main(arguments) == 0  # nothing left: it ends by itself
    shutil.rmtree(tmp_path / "runs")
    capsys.readouterr()
    assert watch.main(arguments) == 0, "what is recorded needs no run"
    assert capsys.readouterr().out == "".join(f"{row}: 1 finished\n" for row in ("Local", "FedAvg", "Ditto"))


def test_a_pipe_gets_a_line_for_each_row_that_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = [
        [("Local", (2, 0, 0), []), ("Ditto", (0, 0, 1), ["seed 1: round 3 of 20"])],
        [("Local", (2, 0, 0), []), ("Ditto", (1, 0, 0), ["seed 1: round 7 of 20"])],
        [("Local", (2, 0, 0), []), ("Ditto", (1, 1, 0), [])],
    ]
    failed = SimpleNamespace(failure="Diverged")
    missing = iter([[SimpleNamespace(failure="")]] * 2 + [[failed]] * 2)
    plan, states = SimpleNamespace(missing=lambda: next(missing)), iter(looks)
    monkeypatch.setattr(request, "planned", lambda *_: (plan,))
    monkeypatch.setattr(watch, "state", lambda _: next(states))
    monkeypatch.setattr(watch, "PATIENCE", 0)
    assert watch.main(["table=fedcollab_t1"]) == 3
    assert capsys.readouterr().out.splitlines() == [
        "Local: 2 finished",
        "Ditto: 1 to do, seed 1: round 3 of 20",
        "Ditto: 1 finished, seed 1: round 7 of 20",
        "Ditto: 1 finished, 1 failed",
    ]


def lines(text: str) -> dict[str, list[str]]:
    """Label of each row -> the cells that hold something."""
    cells = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line
    ]
    return {label: [cell for cell in rest if cell] for label, *rest in cells}


def test_help_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert watch.main(["--help"]) == 0
    assert "table=NAME" in capsys.readouterr().out
    assert watch.main(["table=fedcollab_t9"]) == 2
    assert "nearest: fedcollab_t" in capsys.readouterr().err
