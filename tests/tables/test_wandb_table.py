"""A filled table goes to wandb as a table and as an artifact; wandb's failures cost nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from fedbench.config.schema import WandbConfig
from fedbench.tables import spec
from fedbench.tables.result import Cell, TableResult
from fedbench.tables.wandb_table import COLUMNS, lines, log_table


@pytest.fixture
def filled() -> TableResult:
    table = spec.load("fedcollab_t1").only(["Local"], ["1"])
    column, metric = table.columns[0], table.metrics[0]
    paper = table.published(table.rows[0], column, metric)
    cells = (
        Cell("Local", column.label, "acc", (80.0, 82.0), (0, 1), ("a", "b"), paper),
        Cell("Local", column.label, "ipr", reason="not run: data missing"),
    )
    return TableResult(table, cells)


def test_lines_hold_ours_beside_the_paper_s(filled: TableResult) -> None:
    first, second = (dict(zip(COLUMNS, line, strict=True)) for line in lines(filled))
    assert (first["mean"], first["seeds"]) == (81, 2)
    assert first["std"] == pytest.approx(2**0.5)
    assert first["published"] == filled.cells[0].published.mean  # type: ignore[union-attr]
    assert (second["mean"], second["seeds"], second["reason"]) == (None, 0, "not run: data missing")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_offline_run_holds_the_table_and_the_artifact(
    filled: TableResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_ARTIFACT_DIR", str(tmp_path / "artifacts"))
    assert log_table(filled, WandbConfig(enabled=True, mode="offline"), tmp_path)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (record,) = folder.glob("*.wandb")
    deadline = time.monotonic() + 20  # wandb's own process may still write when finish() returns
    while b"fedcollab_t1" not in record.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.1)
    (media,) = (folder / "files" / "media" / "table").glob("cells*.json")
    logged: dict[str, Any] = json.loads(media.read_text())
    assert logged["columns"] == list(COLUMNS)
    assert logged["data"] == lines(filled)
    assert b"fedcollab_t1" in record.read_bytes()


def test_disabled_logs_nothing_and_failures_are_told(
    filled: TableResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert not log_table(filled, WandbConfig(), tmp_path)
    import wandb

    def broken(**_: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(wandb, "init", broken)
    assert not log_table(filled, WandbConfig(enabled=True), tmp_path)
    assert "no network" in caplog.text
    assert list(tmp_path.iterdir()) == []
