"""Prepared arrays on disk, memory-mapped: what took seconds to unpack once is there in milliseconds after.

The cache is only ever an acceleration. A folder that cannot be written, a full disk, a truncated or altered
entry, or another process that prepares the same data at the same time costs the time saved, never the run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

FORMAT = 1  # raised when a reader changes what it stores
META = "meta.json"


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
    """A cache key that changes with the path, size or modification time of any source file."""
    digest = hashlib.sha256(f"{name} {FORMAT}".encode())
    for file in files:
        info = file.stat()
        digest.update(f"|{file.resolve()} {info.st_size} {info.st_mtime_ns}".encode())
    return f"{name}-{digest.hexdigest()[:16]}"


def cached_arrays(key: str, build: Callable[[], Mapping[str, NDArray[Any]]]) -> Arrays:
    """The arrays called `key`: from the cache (read-only memory maps), else built, stored and returned."""
    folder = cache_dir() / "prepared" / key
    found = _read(folder)
    if found is None:
        built = dict(build())
        _write(folder, built)
        found = _read(folder) or built
    return found


def is_cached(key: str) -> bool:
    """Whether an entry called `key` is there; its content is only checked when it is read."""
    return (cache_dir() / "prepared" / key / META).is_file()


def _read(folder: Path) -> Arrays | None:
    """The entry in `folder`, every array checked against its checksum; None if absent or damaged."""
    try:
        checksums = json.loads((folder / META).read_text())
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in checksums}
        if all(_checksum(arrays[name]) == value for name, value in checksums.items()):
            return arrays
    except (OSError, ValueError, TypeError, AttributeError, EOFError):
        pass
    return None


def _write(folder: Path, arrays: Arrays) -> None:
    """Write the entry beside its place and rename it, so that no reader ever meets half of it."""
    staging = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        for name, array in arrays.items():
            np.save(staging / f"{name}.npy", array)
        (staging / META).write_text(json.dumps({name: _checksum(array) for name, array in arrays.items()}))
        if folder.exists() and _read(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)
    except OSError:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)


def _checksum(array: NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
