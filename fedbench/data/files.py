"""Data sets that come as files: found in folders or downloaded, unpacked, parsed once and cached."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fedbench.config.fields import finite, positive
from fedbench.core.cache import Arrays, cache_dir, cached_arrays, is_cached, source_key
from fedbench.core.errors import DataCorrupt, DataMissing, Report, reason_of, silent, warn_once
from fedbench.core.files import make_folder, settle
from fedbench.core.version import __version__
from fedbench.data.dataset import Availability, Dataset, DataSource

# Files from the network: resumed where they broke off, verified before anything else sees them.
#
# pooch begins a broken download anew, knows one address a file, and does not look whether the disk has room.

BLOCK = 1 << 20  # bytes read at once
TIMEOUT = 60.0  # seconds without a byte
FRUITLESS = 3  # passes over all addresses without a new byte before giving up
PAUSE = 2.0  # seconds before an address is tried again
GONE = (401, 403, 404, 410)  # HTTP answers that trying again does not change


def download(remote: Part, folder: Path, report: Report = silent) -> Path:
    """Return the file in `folder`; if it is not there, fetch it and resume an earlier attempt.

    Raises:
        DataMissing: no address yields the whole file.
        DataCorrupt: the file is complete but not the published one.
    """
    target, part = folder / remote.name, folder / f"{remote.name}.part"
    if target.is_file() and md5_of(target, report) == remote.md5:
        return target
    resumed = part.is_file()
    _fetch(remote, part, report)
    if resumed and md5_of(part, report) != remote.md5:  # the earlier bytes may be of another version
        part.unlink()
        _fetch(remote, part, report)
    found = md5_of(part, report)
    if found != remote.md5:
        part.unlink()
        raise DataCorrupt(f"{remote.urls[0]} is not the published file: its md5 is {found}, expected {remote.md5}")
    part.replace(target)
    return target


def md5_of(path: Path, report: Report = silent) -> str:
    """The md5 of a file, as published beside data sets; it guards against accidents, not against forgery."""
    digest = hashlib.md5(usedforsecurity=False)
    done, size = 0, path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            done += len(block)
            report(f"verifying {path.name.removesuffix('.part')}", done, size)
    return digest.hexdigest()


def _fetch(remote: Part, part: Path, report: Report) -> None:
    """Fill `part` to the announced length, with as many connections as needed."""
    fruitless, reason = 0, "it has no address"
    urls = list(remote.urls)
    while urls and fruitless < FRUITLESS:
        before = _size(part)
        for url in list(urls):
            try:
                _transfer(url, part, remote.name, report)
            except (OSError, http.client.HTTPException) as problem:  # noqa: PERF203 - a connection takes longer
                reason = f"{url}: {reason_of(problem)}"
                if isinstance(problem, urllib.error.HTTPError):
                    problem.close()  # it is an open answer too
                    if problem.code in GONE:
                        urls.remove(url)
            else:
                return
        fruitless = 0 if _size(part) > before else fruitless + 1
        if urls and fruitless < FRUITLESS:
            time.sleep(PAUSE)
    kept = "; the part that came is kept, the same command resumes" if _size(part) else ""
    raise DataMissing(reason + kept)


def _transfer(url: str, part: Path, name: str, report: Report) -> None:
    """Append the missing rest of `part` in one connection, or start over if the server cannot resume.

    Raises:
        OSError, HTTPException: no connection, or it broke; `part` keeps the received bytes.
        DataMissing: no other connection can help.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise DataMissing(f"{url}: only http and https addresses are fetched")
    have = _size(part)
    headers = {"User-Agent": f"fedbench/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except ValueError as error:
        raise DataMissing(f"{url}: {error}") from error
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        if (error.headers.get("Content-Range") or "").rpartition("/")[2] != str(have):  # "bytes */10"
            part.unlink()
            raise
        error.close()
        return  # nothing is missing
    with answer:
        resumes = (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-")  # "bytes 5-9/10"
        done = have if answer.status == 206 and resumes else 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        needed, free = (total or 0) - have, shutil.disk_usage(part.parent).free
        if needed > free:
            raise DataMissing(f"{url}: {needed:,} bytes are needed in {part.parent}, {free:,} are free")
        with part.open("ab" if done else "wb") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                done += len(block)
                report(f"downloading {name}", done, total)
    if total is not None and done != total:
        raise OSError(f"the connection broke after {done:,} of {total:,} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process fetches the same file; without file locks this is not enforced."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(FileLock(path, fallback_to_soft=False))
        yield


# Unpacking: whole or not at all, and only the files that are read. `shutil.unpack_archive` knows neither.

Wanted = Callable[[str], bool]


def unpack(archive: Path, target: Path, wanted: Wanted | None = None, report: Report = silent) -> None:
    """Unpack `archive`, a zip or tar file, as the folder `target`; only the files that `wanted` picks.

    If the archive has all files in one folder with the name of `target`, that level is dropped.

    Raises:
        DataCorrupt: damaged; nothing is left behind.
        FileExistsError: `target` exists already.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists already; move it away to unpack {archive.name} again")
    make_folder(target.parent)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    settle(staging)
    try:
        _extract(archive, staging, wanted, report)
        for path in staging.rglob("*"):
            settle(path)
        entries = list(staging.iterdir())
        single = len(entries) == 1 and entries[0].is_dir() and entries[0].name == target.name
        (entries[0] if single else staging).rename(target)
    except Exception as error:  # a damaged archive can fail in any way inside its reader
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataCorrupt(f"{archive} is damaged ({reason_of(error)}); fetch it again") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _extract(archive: Path, staging: Path, wanted: Wanted | None, report: Report) -> None:
    size = archive.stat().st_size
    with archive.open("rb") as raw:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(raw) as packed:
                for info in packed.infolist():
                    if not info.is_dir() and (wanted is None or wanted(info.filename)):
                        packed.extract(info, staging)
                        report(f"unpacking {archive.name}", raw.tell(), size)
            return
        with tarfile.open(fileobj=raw) as tape:
            tape.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)  # as its docs say
            for member in tape:
                if member.isfile() and (wanted is None or wanted(member.name)):
                    tape.extract(member, staging)
                    report(f"unpacking {archive.name}", raw.tell(), size)


DATA_VARIABLE = "FEDBENCH_DATA"
DOWNLOADS = "downloads"  # folder of a root that holds archives until they are unpacked


def data_dir() -> Path:
    """The folder for downloads unless `root` is set: FEDBENCH_DATA, else a folder of the cache."""
    given = os.environ.get(DATA_VARIABLE)
    return Path(given).expanduser() if given else cache_dir() / "data"


@dataclass(frozen=True)
class Part:
    """A published file of a data set, and its place below a root."""

    urls: tuple[str, ...]  # the same file, in order of preference
    name: str
    md5: str  # of the whole file
    to: str  # name of the file, or of the folder that it is unpacked to; an existing one is not fetched again
    archive: bool = True  # true: unpack it
    wanted: Wanted | None = None  # which files of the archive; None: all

    def fetch(self, root: Path, report: Report) -> None:
        """Download the file; unpack an archive and then remove it; one process at a time."""
        folder, target = root / DOWNLOADS, root / self.to
        make_folder(folder)
        with _alone(folder / f".{self.name}.lock"):
            if target.exists():  # another process has fetched it meanwhile
                return
            for leftover in target.parent.glob(f".{target.name}.*"):  # of an unpacking that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            path = download(self, folder, report)
            if self.archive:
                unpack(path, target, self.wanted, report)
                path.unlink()
            else:
                make_folder(target.parent)
                path.replace(target)
                settle(target)


def content_of(arrays: Mapping[str, NDArray[Any]]) -> tuple[str, int]:
    """Return (16 hex digits over images and labels, independent of the order within a split; the number of copies).

    A sample's hash is the sum of its bytes, eight at a time, times odd numbers, so a change of any eight bytes shows.
    """
    words = np.ascontiguousarray(arrays["x"]).reshape(len(arrays["x"]), -1).view("<u8")
    split = np.arange(len(words)) < int(arrays["num_train"][0])
    factors = np.random.RandomState(0).randint(2**63, size=words.shape[1] + 2).astype(np.uint64) | np.uint64(1)
    own = np.stack([arrays["y"], split], axis=1).astype(np.uint64)
    sums = np.sort(words @ factors[:-2] + own @ factors[-2:])
    return hashlib.sha256(sums.astype("<u8").tobytes()).hexdigest()[:16], len(sums) - len(np.unique(sums))


@dataclass(frozen=True)
class FileSource(DataSource):
    """A data set in files. Subclasses define its files, how to fetch them and how to parse them."""

    folders: ClassVar[tuple[str, ...]]  # where under a root the files may lie, besides the root itself
    system: ClassVar[tuple[str, ...]] = ()  # folders that packages of the operating system fill
    package: ClassVar[str] = ""  # the command that installs such a package
    parts: ClassVar[tuple[Part, ...]] = ()  # what is downloaded
    published: ClassVar[tuple[int, int]] = (0, 0)  # (training, test) samples of the whole data set
    label_count: ClassVar[int] = 10
    content: ClassVar[str] = ""  # `content_of` the whole data set; "" if it is unknown

    root: str | None = None  # folder of the files, or for their download
    download: bool = False  # true: fetch the files if they are not found; false: use no network
    partial: bool = False  # true: accept files with fewer samples than published
    mean: tuple[float, ...] = finite((0.5,))  # mean of each channel, of pixels divided by 255
    std: tuple[float, ...] = positive((0.5,))

    @abstractmethod
    def files(self, folder: Path) -> list[Path] | None:
        """The files (or folders of images) of the data set in `folder`, in a fixed order; None if one is missing.

        If one of them changes, the prepared arrays are made again. Large data sets name folders, not every image.
        """

    @abstractmethod
    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """The arrays of the data set: `x`, `y`, `num_train` [1], and others that it needs."""

    @property
    def variant(self) -> str:
        """The options that change what `parse` yields, as a suffix of the cache's key."""
        return ""

    @property
    def by_hand(self) -> str:
        """How to fetch by hand what the download lacks; "" for most data sets."""
        return ""

    def read(self, report: Report = silent) -> Dataset:
        return self.dataset(self.arrays(report))

    def dataset(self, arrays: Arrays) -> Dataset:
        """The data set from the prepared arrays."""
        count = int(arrays["num_train"][0])
        x, y = arrays["x"], arrays["y"]
        return Dataset(self.name, x, y, count, self.label_count, self.mean, self.std)

    def places(self) -> list[Path]:
        """All folders that are searched, in order."""
        roots = [Path(self.root).expanduser()] if self.root else []
        roots.append(data_dir())
        under = [root / folder for root in roots for folder in ("", *self.folders)]
        return list(dict.fromkeys([*under, *map(Path, self.system)]))

    def locate(self) -> list[Path] | None:
        """The files in the first folder that has all of them."""
        found = (self.files(place) for place in self.places())
        return next((files for files in found if files is not None), None)

    def state(self) -> Availability:
        files = self.locate()
        how = f"run `python -m fedbench prepare {self.name}`, or add dataset.download=true to a run"
        how += f", or `{self.package}`" if self.package else ""
        how += f"; {self.by_hand}" if self.by_hand else ""
        where = "" if files is None else str(files[0].parent)
        prepared = files is not None and is_cached(self._key(files))
        return Availability(files is not None, where, tuple(map(str, self.places())), how, prepared)

    def arrays(self, report: Report = silent) -> Arrays:
        """The parsed files, from the cache if possible; downloaded if `download` is set.

        Raises:
            DataMissing: the files are not found, or the download failed.
            DataCorrupt: a file is damaged or of another format.
        """
        files = self.locate()
        if files is None and self.download:
            self.fetch(report)
            files = self.locate()
        if files is None:
            state = self.state()
            looked = ", ".join(state.looked)
            raise DataMissing(f"data set '{self.name}' is in none of these folders: {looked}; to get it, {state.how}")
        if self.root and not files[0].is_relative_to(Path(self.root).expanduser()):
            warn_once(
                f"dataset.root={self.root} does not hold the files of {self.name}; those in {files[0].parent} are used"
            )
        return cached_arrays(self._key(files), lambda: self._checked(files, report))

    @property
    def stamp(self) -> str:
        files = self.locate()
        return "" if files is None else self._key(files)

    def _key(self, files: list[Path]) -> str:
        return source_key(self.name + self.variant + ("-partial" if self.partial else ""), files)

    def _checked(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        report("reading files", 0, None)
        arrays = self.parse(files, report)
        train = int(arrays["num_train"][0])
        self.check(files[0].parent, train, len(arrays["y"]) - train)
        if self.content and not self.partial:
            found, copies = content_of(arrays)
            if found != self.content:
                often = f"; {copies:,} samples are there more than once" if copies else ""
                raise DataCorrupt(
                    f"{files[0].parent} holds other images or labels than {self.name} as published{often}; fetch it "
                    "again, or read data of your own by dataset=images or dataset=npz"
                )
        return arrays

    def check(self, where: Path, train: int, test: int) -> None:
        """Check the number of parsed samples.

        Raises:
            DataCorrupt: other numbers than published, unless `partial`.
        """
        if not self.partial and (train, test) != self.published:
            raise DataCorrupt(
                f"{where} holds {train:,} + {test:,} samples of {self.name}, published are "
                f"{self.published[0]:,} + {self.published[1]:,}; fetch it again, or set dataset.partial=true"
            )

    def fetch(self, report: Report = silent) -> None:
        """Download the parts into `root`, verify and unpack them.

        Raises:
            DataMissing: no network, no space.
            DataCorrupt: the downloaded file is not the published one.
        """
        root = Path(self.root).expanduser() if self.root else data_dir()
        try:
            for part in self.parts:
                if not (root / part.to).exists():
                    part.fetch(root, report)
        except (OSError, DataMissing) as error:
            raise DataMissing(
                f"data set '{self.name}' could not be downloaded to {root}: {reason_of(error)}"
            ) from error
