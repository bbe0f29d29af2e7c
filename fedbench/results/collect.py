"""Many runs as one tidy table: one row a finished run."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.results.folder import RESULT, read_result

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("fedbench")


def collect(paths: Iterable[Path | str]) -> pd.DataFrame:
    """Result rows of all finished runs in or below `paths`, with their folder as `path`, in order of folder.

    Runs that are not finished are left out; a result that cannot be read is left out with a warning, and one
    that is reached twice counts once. Missing values are nan.

    Raises:
        FedbenchError: a path does not exist.
    """
    import pandas as pd

    files: set[Path] = set()
    for path in map(Path, paths):
        if not path.exists():
            raise FedbenchError(f"no runs at {path}: there is no such folder")
        files |= {path.resolve()} if path.is_file() else {file.resolve() for file in path.rglob(RESULT)}
    table: pd.DataFrame = pd.DataFrame([row for file in sorted(files) for row in _readable(file)])
    return table


def _readable(file: Path) -> list[dict[str, Any]]:
    """The row in `file`, or none and a warning."""
    try:
        return [{**read_result(file), "path": str(file.parent)}]
    except FedbenchError as error:
        log.warning("%s", error)
        return []
