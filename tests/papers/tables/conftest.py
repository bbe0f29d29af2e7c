"""Fixtures of tests of tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.papers.tables.calls import FIRST, reproduced


@pytest.fixture
def nothing_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set of files is on this machine."""
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "no data"))
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "no cache"))


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a first call leaves; nobody changes it."""
    made = tmp_path_factory.mktemp("first")
    assert reproduced(made, *FIRST, "seeds=1") == 0
    return made
