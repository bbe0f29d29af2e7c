"""One process a folder: an advisory lock that the kernel releases when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import platform
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, SoftFileLock, Timeout

from fedbench.core.errors import FedbenchError, FolderInUse, warn_once
from fedbench.core.files import make_folder, settle

log = logging.getLogger("fedbench")

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system that has none

ResultT = TypeVar("ResultT")
PATIENCE = 0.2  # seconds between attempts to hold a folder
TRIES = 100  # at a folder that other processes remove, as a run does with empty ones above its own


_held: weakref.WeakValueDictionary[Path, FolderLock] = weakref.WeakValueDictionary()  # by this process: the latest


class FolderLock:
    """An exclusive lock on the file `.lock` in `folder`, which contains its holder's name.

    On a file system without locks the existence of the file `.held` is the lock. It remains if its holder is killed.
    The next process on the same machine notices this and takes the lock. On another machine a message asks the user to
    remove the file. A forked process does not hold the lock. It is held until it is released or this object is deleted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / ".lock"
        self._thread = 0  # that holds it
        self._lock: Any = FileLock(self._path, thread_local=False, on_acquired=functools.partial(_sign, self._path))

    def acquire(self, tries: int = TRIES) -> None:
        """Create the folder and take the lock.

        Raises:
            FolderInUse: another process or thread holds it.
            FedbenchError: another part of this thread does, or the lock's file cannot be written.
        """
        if self._lock.is_locked:
            return
        self._take(tries)
        self._thread = threading.get_ident()
        _held[self._folder.resolve()] = self

    def _take(self, tries: int) -> None:
        try:
            make_folder(self._folder)
            with contextlib.suppress(*([Timeout] if self._by_presence else [])):
                self._lock.acquire(blocking=False)
                return
            self._lock.acquire(blocking=False)  # the first attempt may have removed what a dead process left
        except Timeout as error:
            holder = self._holder()
            own = _held.get(self._folder.resolve())
            waits_for_itself = own is not None and holder == _me() and own._thread == threading.get_ident()
            kind = FedbenchError if waits_for_itself else FolderInUse
            stuck = f"; its disk has no locks: if nothing runs there, remove {self._path}" if self._by_presence else ""
            raise kind(
                f"run folder {self._folder} is in use by {holder}; wait for it, stop it, or choose another runs_dir"
                f"{stuck}"
            ) from error
        except OSError as error:
            if error.errno == errno.ENOENT and tries > 1:
                self._take(tries - 1)
                return
            if error.errno not in NO_LOCKS or self._by_presence:
                link = f"{error.strerror}; choose another folder"
                link = "it is a symbolic link; remove it" if self._path.is_symlink() else link
                nowhere = next((each for each in self._path.parents if each.is_symlink() and not each.exists()), None)
                if nowhere:
                    link = f"{nowhere} is a link to {nowhere.readlink()}, where there is nothing; remove it"
                raise FedbenchError(f"cannot lock {self._path}: {link}") from error
            self._path.unlink(missing_ok=True)
            self._path = self._folder / ".held"
            self._lock = SoftFileLock(self._path, thread_local=False)
            warn_once("this disk has no locks (flock); a file .held replaces them, see docs/hardware.md")
            self._take(tries)

    @property
    def _by_presence(self) -> bool:
        return isinstance(self._lock, SoftFileLock)

    def release(self) -> None:
        """Release the lock and remove its file; the folder stays."""
        if self._lock.is_locked:
            self._thread = 0
            if not self._by_presence:
                with contextlib.suppress(OSError):  # some systems keep open files
                    self._path.unlink()  # before the lock is gone: nobody else may be using it
            self._lock.release()

    def _holder(self) -> str:
        try:
            words = self._path.read_text(encoding="utf-8").split()
        except OSError:
            words = []
        if self._by_presence and len(words) > 1:  # process, machine, when it began
            return f"process {words[0]} on {words[1].partition(':')[0]}"
        return " ".join(words) or "another process"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock `folder`, so nothing changes between a read and a write; wait while another process has the lock."""
    lock = FolderLock(folder)
    wait_while_in_use(lock.acquire)
    try:
        yield
    finally:
        lock.release()


def wait_while_in_use(attempt: Callable[[], ResultT], between: Callable[[], object] = lambda: None) -> ResultT:
    """Return the result of `attempt`; while it raises FolderInUse, call `between` and then `attempt` again."""
    told = False
    while True:
        try:
            return attempt()
        except FolderInUse as error:  # noqa: PERF203 - it waits
            if not told:
                log.warning("waiting for another process: %s", error)
            told = True
            time.sleep(PATIENCE)
            between()


def _sign(path: Path, file: int) -> None:
    with contextlib.suppress(PermissionError):  # another user's, who was killed
        settle(path)
    os.ftruncate(file, 0)
    os.write(file, f"{_me()}\n".encode())


def _me() -> str:
    return f"process {os.getpid()} on {platform.node()}"
