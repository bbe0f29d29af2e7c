"""One process a folder: an advisory lock that the kernel releases when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from fedbench.core.errors import FedbenchError, FolderInUse

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system that has none

PATIENCE = 0.2  # seconds between attempts to hold a folder


class FolderLock:
    """An exclusive lock on the file `.lock` in `folder`, in which its holder's name stands.

    Where the file system has no such locks, nothing is locked: two processes must then not be given the same run.
    A process that is forked off does not hold it. It is held until it is released, or nobody has this object any more.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / ".lock"
        self._lock = FileLock(self._path, thread_local=False, on_acquired=_sign)

    def acquire(self) -> None:
        """Create the folder and take the lock.

        Raises:
            FolderInUse: another process holds it.
            FedbenchError: another part of this process does, or the lock's file cannot be written.
        """
        if self._lock.is_locked:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(blocking=False)
        except Timeout as error:
            holder = self._holder()
            kind = FedbenchError if holder == _me() else FolderInUse
            raise kind(
                f"run folder {self._folder} is in use by {holder}; wait for it, stop it, or choose another runs_dir"
            ) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                link = "it is a symbolic link; remove it" if self._path.is_symlink() else error.strerror
                raise FedbenchError(f"cannot lock {self._path}: {link}") from error

    def release(self) -> None:
        """Let go. Removes the lock's file; the folder stays."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):  # some systems keep open files
                self._path.unlink()  # before the lock is gone: nobody else may be using it
            self._lock.release()

    def _holder(self) -> str:
        try:
            return self._path.read_text(encoding="utf-8").strip() or "another process"
        except OSError:
            return "another process"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold `folder`, so that what is read there stays true until it is written; waits while another process does."""
    lock = FolderLock(folder)
    while True:
        try:
            lock.acquire()
            break
        except FolderInUse:
            time.sleep(PATIENCE)
    try:
        yield
    finally:
        lock.release()


def _sign(file: int) -> None:
    os.ftruncate(file, 0)
    os.write(file, f"{_me()}\n".encode())


def _me() -> str:
    return f"process {os.getpid()} on {platform.node()}"
