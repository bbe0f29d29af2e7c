"""Fixtures of tests that call commands."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test runs in an empty folder, so that litter shows."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FEDBENCH_DEBUG", raising=False)
    monkeypatch.delenv("FEDBENCH_RUNS", raising=False)
    return folder
