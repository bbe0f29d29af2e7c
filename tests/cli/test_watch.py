"""`fedbench.watch`, and the table that `fedbench.reproduce` prints at its end."""

from __future__ import annotations

import shlex
import shutil
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

    step, stopped, listed = Simulation.step, [], []

    def interrupted(self: Simulation, state: State) -> None:
        step(self, state)
        if type(self.setup.method).__name__ == "Ditto" and not stopped:
            stopped.append(state.round)
            listed.append(watch.main([f"runs_dir={tmp_path / 'runs'}"]))
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "step", interrupted)
        assert reproduce.main(arguments) == 128 + signal.SIGTERM
    assert stopped == [1]
    assert listed == [0]
    shown = capsys.readouterr().out
    title = "each method alone and inside FedCollab (on digits instead of the paper's data; smoke scale)"
    assert f"{title}: 2 of 3 runs are there, 0 failed\n" in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("  watch it: "))
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
    assert lines(capsys.readouterr().out) == {"Local": ["1"], "FedAvg": ["1"], "Ditto": ["1"]}


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
