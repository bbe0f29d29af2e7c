"""Calls of a table add up: partial ones lose nothing, and runs that are gone are not made again."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedbench.core.signals import Stopped
from fedbench.papers import recorded, reproduce, store
from fedbench.papers.execute import run_all
from tests.papers.tables.calls import FIRST, folder, reproduced
from tests.papers.tables.selections import table

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def values(tmp_path: Path, row: str, column: str = "Label shift") -> dict[int, float]:
    """Accuracy by seed."""
    cell = store.read_table(folder(tmp_path)).cell(row, column, "acc")
    return dict(zip(cell.seeds, cell.values, strict=True))


@pytest.mark.slow
def test_partial_calls_add_to_the_table(tmp_path: Path) -> None:
    assert reproduced(tmp_path, *FIRST, "seeds=2") == 0
    both = values(tmp_path, "FedAvg")
    assert set(both) == {0, 1}
    assert reproduced(tmp_path, "rows=FedAvg", "columns=Feature shift", "seeds=1") == 0
    assert values(tmp_path, "FedAvg") == both
    assert set(values(tmp_path, "FedAvg", "Feature shift")) == {0}
    assert values(tmp_path, "Ditto") == {}
    assert "Concept" in (folder(tmp_path) / "table.md").read_text(encoding="utf-8")  # named as not run
    points = {(p["row"], p["column"], p["seed"]) for p in store.read_rows(folder(tmp_path), store.CURVES)}
    assert {("FedAvg", "Label shift", "1"), ("FedAvg", "Feature shift", "0")} <= points


def rewrite(tmp_path: Path, old: str, new: str) -> None:
    """Change the stored table as another version would have written it."""
    files = store.files_of(folder(tmp_path))
    files.write({store.TABLE: files.read(store.TABLE).replace(old.encode(), new.encode())})


@pytest.mark.slow
def test_recorded_values_stand_without_their_runs(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(first / "results", tmp_path / "results")
    before = (values(tmp_path, "FedAvg"), values(tmp_path, "Local"))
    stored = recorded.read_stored(folder(tmp_path))
    capsys.readouterr()
    assert reproduced(tmp_path, *FIRST, "seeds=1") == 0
    assert f"0 finished, 2 recorded in {folder(tmp_path)}, 0 failed, 0 to do" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    assert repr(stored) == repr(recorded.read_stored(folder(tmp_path)))
    # A new row needs the Local run itself, to be measured against; nothing else is trained again.
    assert reproduced(tmp_path, "rows=Ditto", "columns=Label shift", "seeds=1") == 0
    assert {path.parent.name for path in (tmp_path / "runs").rglob("seed0-*")} == {"local", "ditto"}
    assert before == (values(tmp_path, "FedAvg"), values(tmp_path, "Local"))


@pytest.mark.slow
def test_a_record_of_another_configuration_does_not_stand(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(first / "results", tmp_path / "results")
    cell = store.read_table(folder(tmp_path)).cell("FedAvg", "Label shift", "acc")
    rewrite(tmp_path, cell.keys[0], "0" * 16)
    capsys.readouterr()
    assert reproduced(tmp_path, *FIRST, "seeds=1", "--dry-run") == 0
    assert "2 to do" in capsys.readouterr().out  # FedAvg, and the Local run that it is measured against


@pytest.mark.slow
def test_what_another_call_added_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = reproduce.make_runs

    def slow(*arguments: Any, **more: Any) -> None:
        monkeypatch.setattr(reproduce, "make_runs", ours)
        assert reproduced(tmp_path, "rows=Local", "columns=Label shift", "seeds=1") == 0
        ours(*arguments, **more)

    monkeypatch.setattr(reproduce, "make_runs", slow)
    assert reproduced(tmp_path, "rows=FedAvg", "columns=Feature shift", "seeds=1") == 0
    assert set(values(tmp_path, "Local")) == {0}
    assert set(values(tmp_path, "FedAvg", "Feature shift")) == {0}


@pytest.mark.slow
def test_a_stopped_call_stores_what_has_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_and_stop(jobs: Sequence[Any], launcher: Sequence[str]) -> None:
        run_all([[job for job in jobs if job.config.labels["method"] == "local"]], launcher)
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(reproduce, "make_runs", one_and_stop)
    assert reproduced(tmp_path, "rows=Local,FedAvg", "columns=Label shift", "seeds=1") == 128 + signal.SIGTERM
    assert set(values(tmp_path, "Local")) == {0}
    assert values(tmp_path, "FedAvg") == {}


def test_a_mean_of_a_cell_of_other_code_is_marked_as_well(tmp_path: Path) -> None:
    parts = [{"label": label, "overrides": ["dataset=digits", "model=mlp"]} for label in ("one", "two")]
    own = table(columns=[{"label": "both", "mean": ["one", "two"]}, *parts], name="toy_of_means", paper="", table="")
    cells = [
        store.Cell(row.label, column.label, "acc", (50.0,), (0,), ("k",)) for row in own.rows for column in own.columns
    ]
    row = {"row": "FedAvg", "column": "two", "key": "k", "seed": 0, "code": "method:000000000000"}
    store.save_table(tmp_path, store.TableResult(own, tuple(cells)), [row])
    marked, _ = recorded.read_marked(tmp_path)
    assert marked.stale == dict.fromkeys([("FedAvg", "two"), ("FedAvg", "both")], ("method",))
