"""Files that are read back exactly as they were written, or refused.

They are in a `ChecksummedFolder`, whose `checksums.json` holds a checksum of each, or together in one `Archive`. The
checksums guard against accidents (a failing disk, a copy that was cut off, an edit by mistake), not against somebody
who writes new ones. A folder without `checksums.json` was made by a version that wrote none: its files are taken as
they are, and a line of the log says so, once a process.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.core.errors import Damaged
from fedbench.core.files import as_json, checksum, frame_of, write_bytes

if TYPE_CHECKING:
    import pandas as pd

MANIFEST = "checksums.json"
Checksums = Mapping[str, tuple[str, ...]]  # file name -> what it may have: two while it is replaced

log = logging.getLogger("fedbench")
_told: list[Path] = []  # the folder without checksums that was told of


class CheckedFiles(ABC):
    """Named files that are read exactly as they were written, or refused."""

    def __init__(self, place: Path, repair: str) -> None:
        """`place` is the folder or archive; `repair`, the command that restores it, ends messages about damage."""
        self.place = place
        self._repair = repair

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is such a file, or should be one; in the latter case reading it raises."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            Damaged: it is missing, unreadable, or not what was written.
        """

    def json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file. Raises Damaged as `read`."""
        content = self.read(name)
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self.damaged(name, "it is no JSON") from error
        if not isinstance(value, dict):
            raise self.damaged(name, "it holds no object")
        return value

    def csv(self, name: str) -> list[dict[str, str]]:
        """The rows of a CSV file, as text. Raises Damaged as `read`."""
        try:
            rows = list(csv.DictReader(io.StringIO(self.read(name).decode(), newline=""), strict=True))
        except (ValueError, csv.Error) as error:
            raise self.damaged(name, "it is no CSV") from error
        if any(None in row or None in row.values() for row in rows):
            raise self.damaged(name, "its rows differ in length")
        return rows

    def frame(self, name: str, text: Collection[str] = ()) -> pd.DataFrame:
        """The rows of a CSV file, see `frame_of`. Raises Damaged as `csv`."""
        self.csv(name)
        return frame_of(self.read(name), text)

    def npz(self, name: str) -> dict[str, NDArray[Any]]:
        """The arrays of an .npz file. Raises Damaged as `read`."""
        arrays = _arrays(self.read(name))
        if arrays is None:
            raise self.damaged(name, "it is no .npz of arrays")
        return arrays

    def damaged(self, name: str, why: str) -> Damaged:
        """The error for a file that cannot be used."""
        return Damaged(f"{self.place / name} is damaged ({why}); {self._repair}")


class ChecksummedFolder(CheckedFiles):
    """The files of one folder, with their checksums in another file there. One process writes to it at a time."""

    def write(self, files: Mapping[str, bytes], written: Mapping[str, str] | None = None) -> None:
        """Replace `files`, each atomically; after a kill each is completely the old or completely the new one.

        Args:
            files: name -> content.
            written: name -> `checksum` of files that exist already.
        """
        before = {**(self._known() or {}), **{name: (given,) for name, given in (written or {}).items()}}
        after = {**before, **{name: (checksum(content),) for name, content in files.items()}}
        between = {name: tuple(dict.fromkeys((*before.get(name, ()), *after[name]))) for name in after}
        write_manifest(self.place, between)
        for name, content in files.items():
            write_bytes(self.place / name, content)
        if between != after:
            write_manifest(self.place, after)

    def has(self, name: str) -> bool:
        """Whether there is such a file, or its checksum."""
        return (self.place / name).is_file() or name in (self._known() or {})

    def read(self, name: str) -> bytes:
        """The content of a file. Raises Damaged."""
        for _ in range(2):  # again, as it may just have been replaced
            try:
                content = (self.place / name).read_bytes()
            except OSError as error:
                raise self.damaged(name, (error.strerror or "unreadable").lower()) from error
            known = self._known()
            if known is None:
                _tell_once(self.place)
                return content
            if checksum(content) in known.get(name, ()):
                return content
        raise self.damaged(name, f"its checksum is not the one in {MANIFEST}")

    def _known(self) -> Checksums | None:
        try:
            return manifest(self.place)
        except ValueError as error:
            raise self.damaged(MANIFEST, str(error)) from error


def manifest(folder: Path) -> Checksums | None:
    """The checksums of a folder's files; None if there are none.

    Raises:
        ValueError: it is damaged.
    """
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        known = {str(name): tuple(map(str, sums)) for name, sums in content["files"].items()}
        if content["checksum"] == _own_checksum(known):
            return known
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
        pass
    raise ValueError("it is not as it was written")


def load_npz(path: Path) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of an .npz file from any source; None if it is no .npz file or damaged. Raises OSError.

    A folder's checksums count if they name the file.
    """
    content = path.read_bytes()
    try:
        known = manifest(path.parent) or {}
    except ValueError:
        return None
    return _arrays(content) if checksum(content) in known.get(path.name, (checksum(content),)) else None


# Archives: files that belong together, in one .zip that ends with a checksum of all before it.

LABEL, CRC_DIGITS = b"crc32 ", 8  # the comment of the .zip, its last bytes
FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # of every file, so that equal contents are equal bytes


class Archive(CheckedFiles):
    """Files in one .zip, which is replaced as a whole. One process writes to it at a time."""

    def write(self, files: Mapping[str, bytes]) -> None:
        """Replace `files`, name -> content; all other files stay.

        Raises:
            Damaged: the archive exists and is not as it was written.
        """
        before: dict[str, bytes] = {}
        if self.place.is_file():
            archive = self._opened("")
            before = {name: archive.read(name) for name in archive.namelist()}
        if not self.holds(files):
            write_bytes(self.place, _sealed({**before, **files}))

    def holds(self, files: Mapping[str, bytes]) -> bool:
        """Whether all `files` are there with what they say. Raises Damaged."""
        return all(self.has(name) and _said(name, self.read(name)) == _said(name, each) for name, each in files.items())

    def has(self, name: str) -> bool:
        """Whether the archive exists and holds such a file. Raises Damaged."""
        return self.place.is_file() and name in self._opened(name).namelist()

    def read(self, name: str) -> bytes:
        """The content of a file. Raises Damaged."""
        archive = self._opened(name)
        if name not in archive.namelist():
            raise self.damaged(name, "it is not there")
        return archive.read(name)

    def _opened(self, name: str) -> zipfile.ZipFile:
        try:
            content = self.place.read_bytes()
        except OSError as error:
            raise self.damaged(name, (error.strerror or "unreadable").lower()) from error
        body, end = content[:-CRC_DIGITS], content[-CRC_DIGITS:]
        if end != _crc(body):
            raise self.damaged(name, "its checksum is not the one at its end")
        return zipfile.ZipFile(io.BytesIO(content))


def _said(name: str, content: bytes) -> object:
    """Return the content of a file as it can be compared: zlib's versions pack the same arrays into other bytes."""
    found = _arrays(content) if name.endswith(".npz") else None
    return content if found is None else {key: (each.dtype, each.shape, each.tobytes()) for key, each in found.items()}


def _sealed(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, each in files.items():
            archive.writestr(zipfile.ZipInfo(name, FIRST_DAY), each, zipfile.ZIP_DEFLATED, compresslevel=9)
        archive.comment = LABEL + bytes(CRC_DIGITS)
    body = content.getvalue()[:-CRC_DIGITS]
    return body + _crc(body)


def _crc(content: bytes) -> bytes:
    return b"%08x" % zlib.crc32(content)


def _arrays(content: bytes) -> dict[str, NDArray[Any]] | None:
    """Return the arrays in the content of an .npz file; None if it is no such file, is damaged, or would run code."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    except Exception:  # noqa: BLE001 - whatever foreign parsers raise on damaged bytes
        return None


def write_manifest(folder: Path, known: Checksums) -> None:
    """Write `checksums.json`, which holds a checksum of itself."""
    files = {name: known[name] for name in sorted(known)}
    write_bytes(folder / MANIFEST, as_json({"files": files, "checksum": _own_checksum(files)}))


def _own_checksum(known: Checksums) -> str:
    return checksum(json.dumps(known, sort_keys=True).encode())


def _tell_once(folder: Path) -> None:
    if not _told:
        log.warning("%s has no %s: files of earlier versions are read without checksums", folder, MANIFEST)
        _told.append(folder)
