"""Folders whose files are read back: `checksums.json` holds a checksum of each, so that damage is refused, never read.

The checksums guard against accidents (a failing disk, a copy that was cut off, an edit by mistake), not against
somebody who writes new ones. A folder without `checksums.json` was made by a version that wrote none: its files are
taken as they are, and a line of the log says so, once a process.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.core.checksum import checksum, checksum_of
from fedbench.core.errors import Damaged
from fedbench.core.files import as_json, write_bytes

if TYPE_CHECKING:
    import pandas as pd

MANIFEST = "checksums.json"
Checksums = Mapping[str, tuple[str, ...]]  # file name -> what it may have: two while it is replaced

log = logging.getLogger("fedbench")
_told: list[Path] = []  # the folder without checksums that was told of


class Sealed:
    """The files of one folder. One process writes to it at a time."""

    def __init__(self, folder: Path, repair: str) -> None:
        """`repair` ends the message about a damaged file: the command that brings it back."""
        self.folder = folder
        self._repair = repair

    # ---- writing

    def write(self, files: Mapping[str, bytes], written: Mapping[str, str] | None = None) -> None:
        """Replace `files`, each atomically; after a kill each is the old or the new one, and whole.

        Args:
            files: name -> content.
            written: name -> `checksum` of files that are there already and get their seal now.
        """
        before = {**(self._known() or {}), **{name: (given,) for name, given in (written or {}).items()}}
        after = {**before, **{name: (checksum(content),) for name, content in files.items()}}
        between = {name: tuple(dict.fromkeys((*before.get(name, ()), *after[name]))) for name in after}
        write_manifest(self.folder, between)
        for name, content in files.items():
            write_bytes(self.folder / name, content)
        if between != after:
            write_manifest(self.folder, after)

    def adopt(self, *names: str) -> None:
        """Seal those of the files `names` that are there, if the folder was made before there were seals."""
        if self._known() is None:
            there = [name for name in names if (self.folder / name).is_file()]
            write_manifest(self.folder, {name: (checksum_of(self.folder / name),) for name in there})

    # ---- reading

    def has(self, name: str) -> bool:
        """Whether there is such a file, or should be: then reading it raises."""
        return (self.folder / name).is_file() or name in (self._known() or {})

    def read(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            Damaged: it is missing, unreadable, or not what was written.
        """
        for _ in range(2):  # again, as it may just have been replaced
            try:
                content = (self.folder / name).read_bytes()
            except OSError as error:
                raise self.damaged(name, (error.strerror or "unreadable").lower()) from error
            known = self._known()
            if known is None:
                _tell_once(self.folder)
                return content
            if checksum(content) in known.get(name, ()):
                return content
        raise self.damaged(name, f"its checksum is not the one in {MANIFEST}")

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

    def frame(self, name: str) -> pd.DataFrame:
        """The rows of a CSV file, numbers as such. Raises Damaged as `csv`."""
        import pandas as pd

        self.csv(name)
        frame: pd.DataFrame = pd.read_csv(io.BytesIO(self.read(name)))
        return frame

    def npz(self, name: str) -> dict[str, NDArray[Any]]:
        """The arrays of an .npz file. Raises Damaged as `read`."""
        arrays = _arrays(self.read(name))
        if arrays is None:
            raise self.damaged(name, "it is no .npz of arrays")
        return arrays

    def damaged(self, name: str, why: str) -> Damaged:
        """The error for a file of the folder that cannot be used."""
        return Damaged(f"{self.folder / name} is damaged ({why}); {self._repair}")

    def _known(self) -> Checksums | None:
        try:
            return manifest(self.folder)
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
    """The arrays of an .npz file that may come from elsewhere; None if it is none, or damaged. Raises OSError.

    A folder's checksums count if they name the file.
    """
    content = path.read_bytes()
    try:
        known = manifest(path.parent) or {}
    except ValueError:
        return None
    return _arrays(content) if checksum(content) in known.get(path.name, (checksum(content),)) else None


def _arrays(content: bytes) -> dict[str, NDArray[Any]] | None:
    """The arrays in the content of an .npz file; None if it is none, or a damaged one, or would run code."""
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
        log.warning("%s has no %s: damage to what earlier versions wrote is not noticed", folder, MANIFEST)
        _told.append(folder)
