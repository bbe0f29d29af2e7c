"""Holding a folder until what was read there is written."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fedbench.core import files
from fedbench.core.errors import FolderInUse


def test_who_comes_second_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PATIENCE", 0.01)
    order, asked, released = [], threading.Event(), threading.Event()
    acquire = files.FolderLock.acquire

    def told(self: files.FolderLock) -> None:
        if not released.is_set():
            asked.set()
            raise FolderInUse("another process holds it")
        acquire(self)

    def second() -> None:
        with files.held(tmp_path):
            order.append("second holds")

    with files.held(tmp_path):
        monkeypatch.setattr(files.FolderLock, "acquire", told)
        waiting = threading.Thread(target=second)
        waiting.start()
        assert asked.wait(5)
        order.append("first is done")
    released.set()
    waiting.join(5)
    assert order == ["first is done", "second holds"]
    assert not (tmp_path / ".lock").exists()
