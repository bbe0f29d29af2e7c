"""`fedbench.watch`, and the table that `fedbench.reproduce` prints at its end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from fedbench.cli import reproduce, watch
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

    step, stopped = Simulation.step, []

    def interrupted(self: Simulation, state: State) -> None:
        step(self, state)
        if type(self.setup.method).__name__ == "Ditto" and not stopped:
            stopped.append(state.round)
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "step", interrupted)
        assert reproduce.main(arguments) == 128 + signal.SIGTERM
    assert stopped == [1]
    capsys.readouterr()
    assert watch.main([*arguments, "--once"]) == 0
    state = capsys.readouterr().out
    assert lines(state)["Local"] == lines(state)["FedAvg"] == ["1"]
    assert "seed 0: round 1 of 2" in state

    assert reproduce.main(arguments) == 0
    shown = capsys.readouterr().out
    assert {"Local", "FedAvg", "Ditto"} <= {line.strip("│ ").partition(" ")[0] for line in shown.splitlines()}
    assert f"complete: 3 of 3 cells asked for are in {tmp_path / 'results'}" in shown
    assert watch.main(arguments) == 0  # nothing left: it ends by itself


def lines(text: str) -> dict[str, list[str]]:
    """Label of each row -> the cells that hold something."""
    cells = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line
    ]
    return {label: [cell for cell in rest if cell] for label, *rest in cells}


def test_help_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert watch.main(["--help"]) == 0
    assert "table=NAME" in capsys.readouterr().out
    assert watch.main([]) == 2
    assert watch.main(["table=fedcollab_t9"]) == 2
    assert "nearest: fedcollab_t" in capsys.readouterr().err
