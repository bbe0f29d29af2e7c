"""Many runs as one tidy table: one row a finished run."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.core.errors import FedbenchError
from fedbench.results.run_files import CONFIG, RESULT, files_of

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("fedbench")

GROUPS = (
    "dataset",
    "partition",
    "model",
    "method",
    "protocol",
    "hardware",
)  # of a run's config that are columns
FURTHER = ("partition_seed", "reference_seed")  # columns, too, where any run has them


def collect(paths: Iterable[Path | str], config: bool = False) -> pd.DataFrame:
    """Result rows of all finished runs in or below `paths`, with their folder as `path`, in order of folder.

    Runs that are not finished are left out; a result that cannot be read is left out with a warning, and one
    that is reached twice counts once. Missing values are nan.

    Args:
        paths: run folders, or folders that hold some.
        config: add each run's config as flat columns (method.mu, protocol.optimizer.lr, ...). A column has one type:
            numbers where all runs have numbers, else text (JSON).

    Raises:
        FedbenchError: a path does not exist.
    """
    import pandas as pd

    files: set[Path] = set()
    for path in map(Path, paths):
        if not path.exists():
            raise FedbenchError(f"no runs at {path}: there is no such folder")
        files |= {path.resolve()} if path.is_file() else {file.resolve() for file in path.rglob(RESULT)}
    rows = [row for file in sorted(files) for row in _readable(file, config)]
    table: pd.DataFrame = pd.DataFrame(_one_type(rows) if config else rows)
    return table


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping with dotted keys; lists are kept."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _readable(file: Path, config: bool) -> list[dict[str, Any]]:
    """The row in `file`, or none and a warning."""
    try:
        row = {**files_of(file.parent).json(file.name), "path": str(file.parent)}
    except FedbenchError as error:
        log.warning("%s", error)
        return []
    return [{**row, **_config(file.parent)} if config else row]


def _config(folder: Path) -> dict[str, Any]:
    """The run's config as flat columns; nothing, and a warning, where it cannot be read."""
    import yaml

    try:
        content = yaml.safe_load(files_of(folder).read(CONFIG))
        kept = {group: content[group] for group in GROUPS if isinstance(content.get(group), Mapping)}
        return flat({**kept, **{key: content[key] for key in FURTHER if content.get(key) is not None}})
    except (FedbenchError, ValueError, AttributeError, yaml.YAMLError) as error:
        log.warning("%s has no readable config.yaml, its columns stay empty: %s", folder, error)
        return {}


def _one_type(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows whose columns hold one type each, as parquet wants: mixed ones and lists become JSON text."""
    names = dict.fromkeys(name for row in rows for name in row)
    for name in names:
        values = [row[name] for row in rows if row.get(name) is not None]
        kinds = {_kind(value) for value in values}
        if len(kinds) > 1 or "other" in kinds:
            for row in rows:
                if row.get(name) is not None and not isinstance(row[name], str):
                    row[name] = json.dumps(row[name])
    return [{name: row.get(name) for name in names} for row in rows]


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    return "text" if isinstance(value, str) else "other"
