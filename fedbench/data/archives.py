"""Unpacking zip and tar archives that nobody has to trust: regular files and folders below one folder, or nothing.

pooch leaves it to the standard library's `extractall`, which makes links, gives a name that climbs out another one, and
leaves behind what it had written when it met the damage.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from fedbench.core.errors import DataCorrupt
from fedbench.core.progress import Report, silent
from fedbench.data.formats.idx import GZIP_MAGIC

Wanted = Callable[[str], bool]
NOT_THIS_DISK = (
    None,
    errno.EINVAL,
    errno.ENAMETOOLONG,
)  # of an OSError: places and names that only damage asks for


def unpack(archive: Path, target: Path, wanted: Wanted | None = None, report: Report = silent) -> None:
    """Unpack `archive` as the folder `target`, whole or not at all; only the files that `wanted` picks.

    Where all of it lies in one folder called as `target`, that level is dropped.

    Raises:
        DataCorrupt: damaged, or a member that is a link, a device, or would land outside; nothing is left behind.
        FileExistsError: `target` is there already.
    """
    if target.exists():
        raise FileExistsError(f"{target} is there already; move it away to unpack {archive.name} again")
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    staging.chmod(0o755)
    try:
        _extract(archive, staging, wanted, report)
        entries = list(staging.iterdir())
        single = len(entries) == 1 and entries[0].is_dir() and entries[0].name == target.name
        (entries[0] if single else staging).rename(target)
    except DataCorrupt:
        raise
    except Exception as error:  # a damaged archive can fail in any way inside its reader
        if isinstance(error, OSError) and error.errno not in NOT_THIS_DISK:
            raise
        reason = " ".join(str(error).split())
        raise DataCorrupt(f"{archive} is damaged ({reason}); fetch it again") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _extract(archive: Path, staging: Path, wanted: Wanted | None, report: Report) -> None:
    size = archive.stat().st_size
    members = _zip_members if zipfile.is_zipfile(archive) else _tar_members
    for name, content, position in members(archive):
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or any(c in name for c in "\\:\0"):
            raise _unsafe(archive, name, "would land outside")
        if content is not None and (wanted is None or wanted(name)):
            place = staging.joinpath(*parts)
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("xb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                raise _unsafe(archive, name, "is there twice") from error
            report(f"unpacking {archive.name}", position, size)


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None, int]]:
    """(name, content or None for a folder, bytes of the archive read so far) of each member."""
    position = 0
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _unsafe(archive, info.filename, "is a link or a device")
            position += info.compress_size
            if info.is_dir():
                yield info.filename, None, position
            else:
                with opened.open(info) as content:  # verifies the member's checksum as it is read
                    yield info.filename, content, position


def _tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None, int]]:
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(archive.open("rb"))
        zipped = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        stream = stack.enter_context(gzip.GzipFile(fileobj=raw)) if zipped else raw
        opened = stack.enter_context(tarfile.open(fileobj=stream, mode="r:"))
        for info in opened:
            if not (info.isreg() or info.isdir()) or info.issparse():
                raise _unsafe(archive, info.name, "is a link or a device")
            yield info.name, opened.extractfile(info) if info.isreg() else None, raw.tell()
        while stream.read(1 << 20):  # to the end, where gzip's checksum is
            pass


def _unsafe(archive: Path, name: str, reason: str) -> DataCorrupt:
    return DataCorrupt(f"{archive} is unsafe: its member '{name}' {reason}; nothing was unpacked")
