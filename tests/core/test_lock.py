"""Holding a folder until what was read there is written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedbench.core import locks
from fedbench.core.errors import FedbenchError, FolderInUse, warn_once


def test_who_comes_second_waits_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.01)
    order, asked, released = [], threading.Event(), threading.Event()
    acquire = locks.FolderLock.acquire

    def told(self: locks.FolderLock) -> None:
        if not released.is_set():
            asked.set()
            raise FolderInUse("another process holds it")
        acquire(self)

    def second() -> None:
        with locks.held(tmp_path):
            order.append("second holds")

    with locks.held(tmp_path):
        monkeypatch.setattr(locks.FolderLock, "acquire", told)
        waiting = threading.Thread(target=second)
        waiting.start()
        assert asked.wait(5)
        order.append("first is done")
    released.set()
    waiting.join(5)
    assert order == ["first is done", "second holds"]
    assert caplog.messages == ["waiting for another process: another process holds it"], "once"
    assert not (tmp_path / ".lock").exists()


@pytest.mark.parametrize("ends", [True, False])
def test_a_folder_that_another_process_removes_meanwhile_is_made_again(
    ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run that leaves nothing does with the empty folders above its own."""
    folder, removed = tmp_path / "a" / "b", []
    acquire = locks.FileLock.acquire

    def late(self: locks.FileLock, **options: bool) -> object:
        if ends and len(removed) == 3:
            return acquire(self, **options)
        folder.rmdir()
        folder.parent.rmdir()
        removed.append(folder)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(locks.FileLock, "acquire", late)
    with (
        contextlib.nullcontext()
        if ends
        else pytest.raises(FedbenchError, match=r"^cannot lock .*: No such file.*; choose another folder$")
    ):
        locks.FolderLock(folder).acquire()
    assert len(removed) == (3 if ends else locks.TRIES)


@pytest.fixture
def without_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    warn_once.cache_clear()


@pytest.mark.usefixtures("without_flock")
def test_a_disk_without_locks_is_held_by_a_file_and_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock = locks.FolderLock(tmp_path)
    lock.acquire()
    assert [each.name for each in tmp_path.iterdir()] == [".held"]
    with pytest.raises(FedbenchError, match=rf"in use by process {os.getpid()} on .* no locks: .*remove .*\.held"):
        locks.FolderLock(tmp_path).acquire()
    lock.release()
    assert not [*tmp_path.iterdir()]
    with locks.held(tmp_path):
        assert (tmp_path / ".held").exists()
    assert len(caplog.messages) == 1, "once a process"


@pytest.mark.usefixtures("without_flock")
def test_what_a_killed_process_of_this_machine_left_there_is_taken(tmp_path: Path) -> None:
    code = (
        "import os, sys; from filelock import SoftFileLock; from pathlib import Path\n"
        "lock = SoftFileLock(Path(sys.argv[1]) / '.held'); lock.acquire(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert (tmp_path / ".held").exists()
    locks.FolderLock(tmp_path).acquire()


@pytest.mark.usefixtures("without_flock")
def test_what_a_process_of_another_machine_holds_is_not(tmp_path: Path) -> None:
    (tmp_path / ".held").write_text("1\nelsewhere\n17\n")
    with pytest.raises(FolderInUse, match="in use by process 1 on elsewhere;"):
        locks.FolderLock(tmp_path).acquire()
