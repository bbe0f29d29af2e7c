"""Which tables are being filled: each process that fills one leaves its command line below runs_dir while it does.

A folder there holds the arguments and a lock, which the kernel releases however the process ends.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedbench.core.errors import FedbenchError
from fedbench.core.files import write_text
from fedbench.core.lock import FolderLock

FOLDER, ARGUMENTS = ".tables", "arguments.json"


@contextlib.contextmanager
def told(runs_dir: Path | str, name: str, arguments: Sequence[str]) -> Iterator[None]:
    """Within it `commands` finds the table called `name`, which `arguments` of fedbench.reproduce fill."""
    place = Path(runs_dir) / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))
    lock = FolderLock(folder)
    try:
        lock.acquire()
        write_text(folder / ARGUMENTS, json.dumps(list(arguments)))
        yield
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another table is under way
            place.rmdir()


def commands(runs_dir: Path | str) -> list[list[str]]:
    """The arguments of each process that fills a table now, in order of the tables' names."""
    found = []
    for file in sorted((Path(runs_dir) / FOLDER).glob(f"*/{ARGUMENTS}")):
        lock = FolderLock(file.parent)
        try:
            lock.acquire()
        except FedbenchError:  # in use: its process lives
            with contextlib.suppress(OSError, ValueError):  # it just ended
                found.append(json.loads(file.read_text(encoding="utf-8")))
        else:
            lock.release()
            shutil.rmtree(file.parent, ignore_errors=True)
    return found
