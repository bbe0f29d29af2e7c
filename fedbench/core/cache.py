"""Prepared arrays on disk, memory-mapped, so that unpacked data load in milliseconds.

The cache only saves time. A run also works with a folder that cannot be written, a full disk, a damaged entry (found by
its checksum, fedbench.core.checked), or another process that prepares the same data.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench.core.checked import MANIFEST, manifest, write_manifest
from fedbench.core.errors import FedbenchError
from fedbench.core.files import checksum_of, settle
from fedbench.core.locks import FolderLock

Arrays = dict[str, NDArray[Any]]

FORMAT = 1  # raised when a reader changes what it stores

log = logging.getLogger("fedbench")


def cache_dir() -> Path:
    """FEDBENCH_CACHE, else ~/.cache/fedbench (in the temporary folder for a user without a home)."""
    given = os.environ.get("FEDBENCH_CACHE")
    if given:
        return Path(given).expanduser()
    try:
        return Path.home() / ".cache" / "fedbench"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / "fedbench-cache"


def source_key(name: str, files: Iterable[Path]) -> str:
    """A cache key that changes with the path, size or any time of change of a source file.

    Its own, which copying with times kept (cp -p, tar, rsync -a) can set back, and that of its inode, which nobody can.
    """
    digest = hashlib.sha256(f"{name} {FORMAT}".encode())
    for file in files:
        info = file.stat()
        digest.update(f"|{file.resolve()} {info.st_size} {info.st_mtime_ns} {info.st_ctime_ns}".encode())
    return f"{name}-{digest.hexdigest()[:16]}"


def cached_arrays(key: str, build: Callable[[], Mapping[str, NDArray[Any]]]) -> Arrays:
    """Return the arrays called `key` from the cache (read-only memory maps); build and store missing ones."""
    folder = cache_dir() / "prepared" / key
    _remove_what_killed_processes_left(folder.parent)
    found = _read(folder)
    if found is None:
        if folder.exists():
            log.warning("%s is damaged or from an earlier version: it is made again", folder)
        built = dict(build())
        _write(folder, built)
        found = _read(folder) or built
    return found


def is_cached(key: str) -> bool:
    """Whether the cache has an entry called `key`; reading checks its content."""
    return (cache_dir() / "prepared" / key / MANIFEST).is_file()


def _read(folder: Path) -> Arrays | None:
    """The entry in `folder`, every file checked against its checksum; None if absent or damaged."""
    try:
        known = manifest(folder)
        if known is None:
            return None
        if all(checksum_of(folder / name) in sums for name, sums in known.items()):
            return {Path(name).stem: _mapped(folder / name) for name in known}
    except (OSError, ValueError):
        pass  # damaged, or another version's: built again
    return None


def _mapped(file: Path) -> NDArray[Any]:
    """Return an array on disk, read-only; writes to a view that is made writable stay in this process's memory."""
    array: NDArray[Any] = np.load(file, mmap_mode="c")
    array.flags.writeable = False
    return array


def release(array: NDArray[Any]) -> None:
    """Free the memory that the pages of a mapped array take: the next access reads them from its file again.

    Arrays in memory stay as they are, and so do all arrays on systems without this call.
    """
    base: object = array.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def _write(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the entry next to its place and rename it, so no reader sees a part of it."""
    staging = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    lock = FolderLock(staging)
    try:
        lock.acquire()
        files = [staging / f"{name}.npy" for name in arrays]
        for file, array in zip(files, arrays.values(), strict=True):
            np.save(file, array)
            settle(file)
        write_manifest(staging, {file.name: (checksum_of(file),) for file in files})
        if folder.exists() and _read(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
        lock.release()
        staging.rename(folder)
    except (OSError, FedbenchError):  # a full disk, or another process was first: what was built is used all the same
        pass
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        lock.release()


def _remove_what_killed_processes_left(entries: Path) -> None:
    """Remove the hidden folders of dead writers, whose locks the kernel has released."""
    for staging in entries.glob(".*"):
        lock = FolderLock(staging)
        try:
            lock.acquire()
        except FedbenchError:  # it is being written, or another user's who keeps others out
            continue
        shutil.rmtree(staging, ignore_errors=True)
        lock.release()
