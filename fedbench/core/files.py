"""Safe files: atomic writes, a lock on a folder, checksums of files that are read back.

Files that are read back are in a `ChecksummedFolder`, or together in one `Archive`. If a writer is killed, a reader
sees the whole previous version of a file or the whole new one. Files get the permissions of their folder,
independent of the umask, so a group that shares the folder can read and continue them.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import functools
import io
import json
import logging
import math
import os
import platform
import re
import secrets
import stat
import threading
import time
import weakref
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from filelock import FileLock, SoftFileLock, Timeout
from numpy.typing import NDArray

from fedbench.core.errors import Damaged, FedbenchError, FolderInUse

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


def _cell(value: Any) -> Any:
    return repr(float(value)) if isinstance(value, float) else value


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


# One process a folder: an advisory lock that the kernel releases when its holder dies, however it dies.

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
                link = "it is a symbolic link; remove it" if self._path.is_symlink() else error.strerror
                nowhere = next((each for each in self._path.parents if each.is_symlink() and not each.exists()), None)
                if nowhere:
                    link = f"{nowhere} is a link to {nowhere.readlink()}, where there is nothing; remove it"
                raise FedbenchError(f"cannot lock {self._path}: {link}") from error
            self._path.unlink(missing_ok=True)
            self._path = self._folder / ".held"
            self._lock = SoftFileLock(self._path, thread_local=False)
            _tell_of_no_locks()
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


@functools.cache
def _tell_of_no_locks() -> None:
    log.warning("this disk has no locks (flock); a file .held replaces them, see docs/hardware.md")


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


# Folders whose files are read back: `checksums.json` holds a checksum of each, so that damage is refused, never read.
#
# The checksums guard against accidents (a failing disk, a copy that was cut off, an edit by mistake), not against
# somebody who writes new ones. A folder without `checksums.json` was made by a version that wrote none: its files are
# taken as they are, and a line of the log says so, once a process.

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
        if (after := {**before, **files}) != before:
            write_bytes(self.place, _sealed(after))

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
