"""Atomic files: a reader sees the previous version or the new one, whole, whenever the writer is killed."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

TEMPORARY = (
    ".tmp"  # prefix of files being written (safetensors' own too); what outlives its writer is garbage
)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends well it takes the place of `path`, durably.

    When the block raises, `path` is left as it was and the temporary file is removed.
    """
    temporary = path.with_name(f"{TEMPORARY}-{os.getpid()}-{secrets.token_hex(4)}-{path.name}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # what the umask allows; safetensors would keep others out
        yield temporary
        temporary.chmod(mode)
        with temporary.open("rb+") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the platform can open folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove what killed writers left in `folder`. Call it only while no other process writes there."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        leftover.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`, atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write `text` (UTF-8) to `path`, atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` to `path`, atomically, as `as_json`."""
    write_bytes(path, as_json(value))


def as_json(value: Mapping[str, Any]) -> bytes:
    """`value` as the content of a standard JSON file: a number that is not finite becomes null."""
    return (json.dumps(_finite(value), indent=2, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write `rows` to `path`, atomically, as `as_csv`."""
    write_bytes(path, as_csv(rows))


def as_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """`rows` as the content of a CSV file; columns in order of first appearance, a missing value is empty.

    Floats are written with as many digits as they need to be read back exactly.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [{key: _cell(value) for key, value in row.items()} for row in rows]
    # A carriage return ends a line for a reader, but does not make the writer quote it.
    returns = any("\r" in str(text) for row in cells for item in row.items() for text in item)
    text = io.StringIO(newline="")
    quoting: Literal[0, 1] = csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n", quoting=quoting)
    writer.writeheader()
    writer.writerows(cells)
    return text.getvalue().encode()


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows that `write_csv` wrote, as text."""
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def as_npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """`arrays` as the content of a compressed .npz file."""
    named: dict[str, Any] = dict(arrays)
    content = io.BytesIO()
    np.savez_compressed(content, **named)
    return content.getvalue()


def _cell(value: Any) -> Any:
    return repr(float(value)) if isinstance(value, float) else value
