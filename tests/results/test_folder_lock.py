"""One process at a time writes a run's folder."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from fedbench.core.errors import FedbenchError, FolderInUse
from fedbench.runs.folder import RunFolder
from tests.results.toys import KEY, LABELS


class TestLock:
    def test_a_second_process_is_turned_away_and_a_dead_one_is_not_in_the_way(self, tmp_path):
        folder = RunFolder(tmp_path, KEY, LABELS)
        # The holder forks a worker that outlives it, as a killed run's worker processes do.
        holder = (
            "import os, sys, time\n"
            "from fedbench.runs.folder import RunFolder\n"
            "from fedbench.engine.history import Labels\n"
            f"folder = RunFolder({str(tmp_path)!r}, {KEY!r}, {LABELS!r}).__enter__()\n"
            "child = os.fork()\n"
            "if child == 0:\n    print(os.getpid(), flush=True); os.close(1)\n"  # forked, and past what fork calls
            "time.sleep(60)\n"
        )
        process = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True)
        child = int(process.stdout.readline())
        try:
            with pytest.raises(FolderInUse, match=f"in use by process {process.pid} on .*; wait") as error:
                folder.__enter__()
            assert "\n" not in str(error.value)
            process.send_signal(signal.SIGKILL)
            process.wait()
            with folder:
                folder.write_config("seed: 3\n")
        finally:
            os.kill(child, signal.SIGKILL)
            process.stdout.close()

    def test_the_lock_holds_inside_a_process_too_and_ends_with_the_block(self, tmp_path):
        with RunFolder(tmp_path, KEY, LABELS):
            with pytest.raises(FedbenchError, match="in use") as error:
                RunFolder(tmp_path, KEY, LABELS).__enter__()
            assert not isinstance(error.value, FolderInUse), "waiting for oneself would never end"
            with RunFolder(tmp_path, "another key", LABELS):
                pass
        with RunFolder(tmp_path, KEY, LABELS):
            pass

    @pytest.mark.parametrize("reason", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
    def test_without_locks_on_the_file_system_it_runs_unlocked(self, reason, tmp_path, monkeypatch):
        def flock(*_):
            raise OSError(reason, os.strerror(reason))

        monkeypatch.setattr(fcntl, "flock", flock)
        with RunFolder(tmp_path, KEY, LABELS) as folder, RunFolder(tmp_path, KEY, LABELS):
            folder.write_config("x: 1\n")

    def test_a_lock_that_is_a_link_is_refused_and_its_target_untouched(self, tmp_path):
        folder = RunFolder(tmp_path / "runs", KEY, LABELS)
        folder.path.mkdir(parents=True)
        target = tmp_path / "precious"
        for text in ("keep me", None):  # with a target, and without
            target.unlink() if text is None else target.write_text(text)
            (folder.path / ".lock").unlink(missing_ok=True)
            (folder.path / ".lock").symlink_to(target)
            with pytest.raises(FedbenchError, match=r"\.lock: it is a symbolic link; remove it"):
                folder.__enter__()
            assert (target.read_text() if target.exists() else None) == text

    def test_a_lock_that_cannot_be_written_is_one_line(self, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        folder = RunFolder(tmp_path, KEY, LABELS)
        monkeypatch.setattr(os, "ftruncate", full)
        with pytest.raises(FedbenchError, match=r"cannot lock .*\.lock: No space left on device"):
            folder.__enter__()
        monkeypatch.undo()
        with folder:
            pass
