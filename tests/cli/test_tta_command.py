"""Time to accuracy of finished runs, read off hand-written rounds."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fedbench.cli import program
from fedbench.cli.runs import times_to_accuracy
from fedbench.core.files import write_csv
from fedbench.runs.run import Run
from fedbench.tables.measures import Speedup


def run(folder: Path, method: str, accuracies: list[float]) -> Path:
    """A run scored at rounds 0, 10, 20, ...: a second and 500 kB each way a round."""
    folder.mkdir()
    row = {"method": method, "dataset": "d", "partition": "p", "seed": 0}
    (folder / "result.json").write_text(json.dumps(row), encoding="utf-8")
    rounds = [
        {
            "round": 10 * i,
            "acc_on_local": acc,
            "seconds_total": 10.0 * i,
            "bytes_up": 5_000_000 * i,
            "bytes_down": 5_000_000 * i,
        }
        for i, acc in enumerate(accuracies)
    ]
    write_csv(folder / "rounds.csv", rounds)
    return folder


def test_rounds_seconds_bytes_and_ratio(tmp_path: Path) -> None:
    base = run(tmp_path / "a", "fedavg", [10, 50, 60, 70, 70])
    fast = run(tmp_path / "b", "sosicfl", [10, 72, 60])
    slow = run(tmp_path / "c", "local", [10, 20, 69.9])
    title, rows = times_to_accuracy([fast, slow], None, base, "local")
    assert "70.00 %" in title
    assert rows == [
        ("fedavg, d, p, seed 0", "30", "30.0", "30.0", "1.0"),
        ("sosicfl, d, p, seed 0", "10", "10.0", "10.0", "3.0"),
        ("local, d, p, seed 0", "> 20", "-", "-", "-"),
    ]
    _, (row,) = times_to_accuracy([base], 55.0, None, "local")
    assert row[1:] == ("20", "20.0", "20.0", "-")


def test_the_measure_of_tables_agrees(tmp_path: Path) -> None:
    base = Run(run(tmp_path / "a", "fedavg", [10, 50, 60, 70, 70]))
    fast = Run(run(tmp_path / "b", "sosicfl", [10, 72, 60]))
    slow = Run(run(tmp_path / "c", "local", [10, 20, 69.9]))
    assert Speedup().value(fast, base) == 3.0
    assert math.isnan(Speedup().value(slow, base))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(tmp_path / "a", "fedavg", [10, 50])
    assert program.main(["tta", str(folder), "--reference", "40"]) == 0
    assert "fedavg" in capsys.readouterr().out
    assert program.main(["tta", str(tmp_path), "--reference", "40"]) == 2
    assert "no finished run" in capsys.readouterr().err
    assert program.main(["tta", str(folder), "--reference", "40", "--set", "globl"]) == 2
    assert "local" in capsys.readouterr().err
