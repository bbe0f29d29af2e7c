"""The scale benchmark's parts: what a case reports, and the table and figure made of it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HEADER = {"machine": "a machine", "device": "cpu", "version_torch": "2", "date": "today", "commit": "abc"}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of a case and of the rendering, with cases made short."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    scale_cases, scale_render = (
        importlib.import_module(f"benchmarks.scale_{name}") for name in ("cases", "render")
    )
    monkeypatch.setattr(scale_cases, "TIMED", 1)
    monkeypatch.setattr(scale_cases, "POOL", 50)
    monkeypatch.setattr(scale_cases, "reset_peak", lambda: None)
    return scale_cases, scale_render


@pytest.mark.slow
def test_cases_become_a_table_and_a_figure(bench: Any) -> None:
    scale_cases, scale_render = bench
    few, many = (scale_cases.rounds(n, 2, "fedavg", "auto", "cpu", "mlp") for n in (4, 400))
    assert many["round_mib"] == few["round_mib"] > 0
    assert many["lists_mib"] > 50 * few["lists_mib"]
    held, mapped = (scale_cases.rounds(6, 2, "ditto", kind, "cpu", "mlp") for kind in ("device", "file"))
    assert held["file_mib"] == 0 < mapped["rows_mib"] <= mapped["file_mib"]
    assert mapped["rows_mib"] == held["rows_mib"] <= held["checkpoint_mib"]
    assert held["checkpoint_mib"] - mapped["checkpoint_mib"] > 0.8 * held["rows_mib"], "rows stay in the file"
    rows = {"by_clients": [few, many], "by_cohort": [few], "stateful": [held, mapped]}
    loaded = {name: [{**row, "load_before": 0.5} for row in each] for name, each in rows.items()}
    assert "| 400 | 2 |" in scale_render.markdown(HEADER | loaded)
    assert len(scale_render.figure(HEADER | loaded).axes) == 6


def test_committed_results_hold_what_they_should_show() -> None:
    """A round's memory does not depend on N; client memory stays out of the process."""
    files = sorted((ROOT / "results" / "bench" / "scale").glob("*.json"))
    assert files
    for file in files:
        found = json.loads(file.read_text(encoding="utf-8"))
        sizes = [row["round_mib"] for row in found["by_clients"]]
        assert max(sizes) < 1.05 * min(sizes)
        assert found["by_clients"][-1]["clients"] >= 100_000
        mapped = [row for row in found["stateful"] if row["store"] == "file"]
        assert mapped[-1]["clients"] >= 10_000
        assert mapped[-1]["own_mib"] < mapped[0]["own_mib"] + 0.1 * mapped[-1]["rows_mib"]
