"""Safe files: atomic writes, and the formats of what is written.

If a writer is killed, a reader sees the whole previous version of a file or the whole new one. Files get the
permissions of their folder, independent of the umask, so a group that shares the folder can read and continue them.
fedbench.core.checked adds checksums to files that are read back.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import re
import secrets
import stat
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd


TEMPORARY = ".tmp"  # prefix of files being written (safetensors' own too); what outlives its writer is garbage


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; if the block succeeds, it replaces `path` durably.

    If the block raises, `path` is unchanged and the temporary file is removed.
    """
    temporary = path.with_name(f"{TEMPORARY}-{os.getpid()}-{secrets.token_hex(4)}-{path.name}")
    try:
        yield temporary
        settle(temporary)
        with temporary.open("rb+") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make `folder` and its missing parents, each with the permissions of its parent."""
    if not folder.is_dir():
        make_folder(folder.parent)
        try:
            folder.mkdir()
        except FileExistsError:  # another process was first
            if not folder.is_dir():
                raise
        else:
            settle(folder)


def settle(path: Path) -> None:
    """Give a file or folder of this user the permissions of the folder that contains it.

    In a sticky folder such as /tmp, where nobody may change other users' files, other users only get read permission.
    """
    above, own = path.parent.stat().st_mode, path.stat().st_mode
    mode = 0o700 | above & (0o755 if above & stat.S_ISVTX else 0o777)
    path.chmod(stat.S_IMODE(own) & ~0o777 | mode if stat.S_ISDIR(own) else mode & 0o666)


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the platform can open folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove the remains of killed writers in `folder`. Call it only while no other process writes there."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        leftover.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`, atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write `text` (UTF-8) to `path`, atomically."""
    write_bytes(path, text.encode())


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
    cells = [
        {key: repr(float(value)) if isinstance(value, float) else value for key, value in row.items()} for row in rows
    ]
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


def frame_of(content: bytes, text: Collection[str] = ()) -> pd.DataFrame:
    """The rows in the content of a CSV file: the columns `text` as they were written, others as pandas reads them.

    Text may look like a number (the hash 4e9580300111) or like a missing value (the name NA). An empty field is
    missing.
    """
    import pandas as pd

    (header, *_) = csv.reader(io.StringIO(content.decode(), newline=""))
    missing = {name: [""] if name in text else ["", "nan"] for name in header}
    kinds = {name: str for name in header if name in text}
    frame: pd.DataFrame = pd.read_csv(io.BytesIO(content), dtype=kinds, keep_default_na=False, na_values=missing)
    return frame


def as_npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """`arrays` as the content of a compressed .npz file."""
    named: dict[str, Any] = dict(arrays)
    content = io.BytesIO()
    np.savez_compressed(content, **named)
    return content.getvalue()


def short_name(name: str, most: int) -> str:
    """Return `name`, or the beginning of a name that is too long and a hash of the whole."""
    return name if len(name) <= most else f"{name[: most - 9]}-{zlib.crc32(name.encode()):08x}"


NAME = 60  # characters of a folder's name under results/


def setting_name(parts: Sequence[str]) -> str:
    """Return the name of a folder from `parts` such as model=lenet5 and protocol.rounds=50.

    A name that is too long has keys without their groups, as many parts as fit, and a hash of the whole name.
    """
    whole = "-".join(parts)
    if len(whole) <= NAME:
        return whole
    name, *others = (re.sub(r"^(\w+\.)+(?=\w+=)", "", part) for part in parts)
    name, ending = name[: NAME - 9], f"-{zlib.crc32(whole.encode()):08x}"
    for other in others:
        if len(name) + 1 + len(other) + len(ending) > NAME:
            break
        name += f"-{other}"
    return name + ending


CHUNK = 2**20  # bytes read at once


def checksum(content: bytes) -> str:
    """Length and CRC-32 of a file's content, which detect accidents and are fast for large arrays."""
    return f"{len(content)}-{zlib.crc32(content):08x}"


def checksum_of(path: Path) -> str:
    """`checksum` of a file too large to be held. Raises OSError."""
    length = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            length, crc = length + len(chunk), zlib.crc32(chunk, crc)
    return f"{length}-{crc:08x}"
