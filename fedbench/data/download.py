"""Files from the network: resumed where they broke off, verified before anything else sees them.

pooch begins a broken download anew, knows one address a file, and does not look whether the disk has room.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from fedbench.core.errors import DataCorrupt, DataMissing
from fedbench.core.progress import Report, silent
from fedbench.core.version import __version__

BLOCK = 1 << 20  # bytes read at once
TIMEOUT = 60.0  # seconds without a byte
FRUITLESS = 3  # passes over all addresses without a new byte before giving up
PAUSE = 2.0  # seconds before an address is tried again
GONE = (401, 403, 404, 410)  # HTTP answers that trying again does not change


@dataclass(frozen=True)
class Remote:
    """A file to fetch: where it is, what it is called, and the checksum that says it is the published one."""

    urls: tuple[str, ...]  # the same file, in order of preference
    name: str
    md5: str  # of the whole file


def download(remote: Remote, folder: Path, report: Report = silent) -> Path:
    """The file in `folder`: there already, or fetched, going on from what an earlier attempt left behind.

    Raises:
        DataMissing: no address yields the whole file.
        DataCorrupt: the whole file is there, but is not the published one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target, part = folder / remote.name, folder / f"{remote.name}.part"
    with _alone(folder / f".{remote.name}.lock"):
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
            raise DataCorrupt(
                f"{remote.urls[0]} is not the published file: its md5 is {found}, expected {remote.md5}"
            )
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


def _fetch(remote: Remote, part: Path, report: Report) -> None:
    """Fill `part` to the announced length, in as many connections as it takes."""
    fruitless, reason = 0, "it has no address"
    urls = list(remote.urls)
    while urls and fruitless < FRUITLESS:
        before = _size(part)
        for url in list(urls):
            try:
                _transfer(url, part, remote.name, report)
            except (OSError, http.client.HTTPException) as problem:  # noqa: PERF203 - a connection takes longer
                reason = f"{url}: {(str(problem) or type(problem).__name__).splitlines()[0]}"
                if isinstance(problem, urllib.error.HTTPError):
                    problem.close()  # it is an open answer too
                    if problem.code in GONE:
                        urls.remove(url)
            else:
                return
        fruitless = 0 if _size(part) > before else fruitless + 1
        if urls and fruitless < FRUITLESS:
            time.sleep(PAUSE)
    kept = "; what came is kept, the same command goes on" if _size(part) else ""
    raise DataMissing(reason + kept)


def _transfer(url: str, part: Path, name: str, report: Report) -> None:
    """Append what is missing of `part` in one connection, or start over where the server cannot resume.

    Raises:
        OSError, HTTPException: no connection, or it broke off; `part` keeps what came.
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
        raise OSError(f"the connection broke off after {done:,} of {total:,} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process fetches the same file; not enforced where there are no file locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(FileLock(path, fallback_to_soft=False))
        yield
