"""Cells that other code or other samples made: marked, counted, made again, or refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedbench.cli import program
from fedbench.papers import store
from fedbench.papers.report import build_page
from fedbench.runs.progress import STALE
from tests.helpers.codes import edit
from tests.papers.report.toys import drawn
from tests.papers.tables.calls import FIRST, folder, reproduced

pytestmark = [
    pytest.mark.usefixtures("fresh_codes"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def again(tmp_path: Path, *more: str) -> int:
    """The exit code of the first call once more."""
    return reproduced(tmp_path, *FIRST, "seeds=1", *more)


def table(tmp_path: Path) -> str:
    return (folder(tmp_path) / "table.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_cells_of_other_code_are_marked_counted_and_made_again(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(first, tmp_path, dirs_exist_ok=True)
    assert STALE not in table(tmp_path)
    before = {row["row"]: row["code"] for row in store.read_rows(folder(tmp_path))}
    edit(monkeypatch, "method")
    capsys.readouterr()
    assert again(tmp_path) == 0
    assert STALE in capsys.readouterr().out
    assert table(tmp_path).count(STALE) == 2 * 3 - 2 + 1  # Local has one metric; one is in the remark
    assert "the code of method has changed: Local, FedAvg." in table(tmp_path)
    build_page(tmp_path / "results", tmp_path / "page.html")
    html, _ = drawn(tmp_path / "page.html", folder(tmp_path).relative_to(tmp_path / "results" / "tables").as_posix())
    assert len(re.findall(rf'class="ours[^>]*>[^<]*{STALE}<', html)) == 2 * 3 - 2
    capsys.readouterr()
    program.main(["redraw", str(tmp_path / "results")])
    assert "2 runs: 2 made by other code than today's, 0 recorded before code was" in capsys.readouterr().out
    assert again(tmp_path, "stale=error") != 0
    assert "method changed since" in capsys.readouterr().err
    assert again(tmp_path, "stale=rerun") == 0
    after = {row["row"]: row["code"] for row in store.read_rows(folder(tmp_path))}
    assert all(after[name] != code for name, code in before.items())
    assert STALE not in table(tmp_path)
    capsys.readouterr()
    assert again(tmp_path, "stale=rerun") == 0
    assert "2 finished, 0 failed, 0 to do" in capsys.readouterr().out


@pytest.mark.slow
def test_a_record_of_other_samples_does_not_stand(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(first / "results", tmp_path / "results")
    rows = [{**row, "data": "0" * 12} for row in store.read_rows(folder(tmp_path))]
    store.save_table(folder(tmp_path), store.read_table(folder(tmp_path)), rows)
    capsys.readouterr()
    assert again(tmp_path, "dry_run=true") == 0
    assert "0 finished, 0 failed, 2 to do" in capsys.readouterr().out


@pytest.mark.slow
def test_a_record_of_before_code_was_recorded_stands_and_is_counted(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(first / "results", tmp_path / "results")
    rows = [{**row, "code": "", "data": ""} for row in store.read_rows(folder(tmp_path))]
    store.save_table(folder(tmp_path), store.read_table(folder(tmp_path)), rows)
    capsys.readouterr()
    assert again(tmp_path, "dry_run=true", "stale=error") == 0
    assert f"0 finished, 2 recorded in {folder(tmp_path)}, 0 failed, 0 to do" in capsys.readouterr().out
    program.main(["redraw", str(tmp_path / "results")])
    assert "2 runs: 0 made by other code than today's, 2 recorded before code was" in capsys.readouterr().out
    assert STALE not in table(tmp_path)


@pytest.mark.slow
def test_rows_with_another_local_than_the_tables_are_marked_counted_and_made_again(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(first, tmp_path, dirs_exist_ok=True)
    clients = dict(store.read_arrays(folder(tmp_path), store.CLIENTS))
    local = store.place_of("Local", "Label shift", 0)
    clients[local] = clients[local] + np.linspace(0, 1, len(clients[local]), dtype=np.float32)  # as run elsewhere
    store.save_table(folder(tmp_path), store.read_table(folder(tmp_path)), clients=clients)
    capsys.readouterr()
    program.main(["redraw", str(tmp_path / "results")])
    assert "1 measured against another run of Local" in capsys.readouterr().out
    (line,) = (line for line in table(tmp_path).splitlines() if line.startswith("- IPR and RSD refer to another"))
    assert line.endswith("rounds differently: FedAvg. The command with stale=rerun makes them again.")
    (own,) = (line for line in table(tmp_path).splitlines() if line.startswith("| FedAvg "))
    assert own.count(STALE) == 3
    runs = tmp_path / "runs"
    shutil.move(runs, tmp_path / "gone")
    assert again(tmp_path, "stale=error") != 0
    assert "was recorded against another run of Local" in capsys.readouterr().err
    assert again(tmp_path, "stale=rerun") == 0
    assert STALE not in table(tmp_path)
