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
            problem = _attempt(url, part, remote.name, report)
            if problem is None:
                return
            reason = f"{url}: {_reason(problem)}"
            if getattr(problem, "code", None) in GONE:
                urls.remove(url)
        fruitless = 0 if _size(part) > before else fruitless + 1
        if urls and fruitless < FRUITLESS:
            time.sleep(PAUSE)
    kept = "; what came is kept, the same command goes on" if _size(part) else ""
    raise DataMissing(reason + kept)


def _attempt(url: str, part: Path, name: str, report: Report) -> Exception | None:
    """One connection; what went wrong, where another may go right."""
    try:
        _transfer(url, part, name, report)
    except (_NoSpace, ValueError) as problem:
        raise DataMissing(f"{url}: {problem}") from problem
    except urllib.error.HTTPError as problem:
        problem.close()  # it is an open answer too
        return problem
    except (OSError, http.client.HTTPException) as problem:
        return problem
    return None


class _NoSpace(OSError):
    """The disk cannot take the file: no other address helps."""


def _transfer(url: str, part: Path, name: str, report: Report) -> None:
    """One connection: append what is missing of `part`, or start over where the server cannot resume.

    Raises:
        OSError: no connection, or it broke off; `part` keeps what came.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("only http and https addresses are fetched")
    have = _size(part)
    headers = {"User-Agent": f"fedbench/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        if _total(error.headers.get("Content-Range")) != have:
            part.unlink()
            raise
        error.close()
        return  # nothing is missing
    with answer:
        offset = have if answer.status == 206 and _start(answer.headers.get("Content-Range")) == have else 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else offset + int(length)
        _check_space(part, (total or 0) - have)
        with part.open("ab" if offset else "wb") as file:
            done = offset
            while block := answer.read(BLOCK):
                file.write(block)
                done += len(block)
                report(f"downloading {name}", done, total)
    if total is not None and done != total:
        raise OSError(f"the connection broke off after {done:,} of {total:,} bytes")


def _check_space(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise _NoSpace(f"{needed:,} bytes are needed in {part.parent}, {free:,} are free")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _start(content_range: str | None) -> int | None:
    """5 from "bytes 5-9/10"."""
    first = (content_range or "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdigit() else None


def _total(content_range: str | None) -> int | None:
    """10 from "bytes */10"."""
    last = (content_range or "").rpartition("/")[2]
    return int(last) if last.isdigit() else None


def _reason(error: BaseException) -> str:
    inner = getattr(error, "reason", None)  # URLError wraps the real one
    text = str(inner if isinstance(inner, OSError) else error)
    return text.splitlines()[0] if text else type(error).__name__


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process fetches the same file; not enforced where there are no file locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(FileLock(path, fallback_to_soft=False))
        yield
