"""One process a folder: an advisory lock that the kernel releases when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import IO

from fedbench.core.errors import FedbenchError, FolderInUse

_held: set[IO[str]] = set()


class FolderLock:
    """An exclusive flock on a file in `folder`.

    Where the platform or the file system has no such locks, nothing is locked: two processes must then not be
    given the same run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / ".lock"
        self._handle: IO[str] | None = None

    def acquire(self) -> None:
        """Create the folder and take the lock.

        Raises:
            FolderInUse: another process holds it.
            FedbenchError: another part of this process does.
        """
        while self._handle is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle = self._path.open("a+", encoding="utf-8")
            try:
                self._take(handle)
            except BaseException:
                handle.close()
                raise
            # The previous holder may have removed the file between our open and our lock.
            if self._is_current(handle):
                self._handle = handle
                _held.add(handle)
            else:
                handle.close()

    def release(self) -> None:
        """Let go. Removes the lock's file; the folder stays."""
        if self._handle in _held:  # not in a forked child
            with contextlib.suppress(OSError):  # some systems keep open files
                self._path.unlink()  # before the lock is gone: nobody else may be using it
            _held.discard(self._handle)
            self._handle.close()
        self._handle = None

    def _is_current(self, handle: IO[str]) -> bool:
        try:
            return os.path.samestat(os.fstat(handle.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def _take(self, handle: IO[str]) -> None:
        try:
            import fcntl
        except ImportError:
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.seek(0)
            holder = handle.read().strip() or "another process"
            kind = FedbenchError if holder == self._me() else FolderInUse
            raise kind(
                f"run folder {self._folder} is in use by {holder}; wait for it, stop it, or choose another runs_dir"
            ) from error
        except OSError:
            return
        handle.truncate(0)
        handle.write(f"{self._me()}\n")
        handle.flush()

    @staticmethod
    def _me() -> str:
        return f"process {os.getpid()} on {platform.node()}"


def _forget() -> None:
    """A forked child shares the parent's locks and would keep them after the parent is killed."""
    for handle in _held:
        handle.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
