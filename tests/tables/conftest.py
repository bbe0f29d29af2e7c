"""Fixtures of tests of tables."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def nothing_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set of files is on this machine."""
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "no data"))
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "no cache"))
