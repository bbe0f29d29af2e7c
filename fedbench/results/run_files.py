"""The files of a run: their names, how each is written, and how they are read back.

Every file is written atomically; those that are read back have checksums (fedbench.core.sealed).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from fedbench.core.checksum import checksum
from fedbench.core.files import as_csv, as_json, as_npz, write_bytes, write_text
from fedbench.core.sealed import Sealed
from fedbench.results.history import History

RESULT = "result.json"
CHECKPOINT = "checkpoint.safetensors"
MODEL = "model.safetensors"
MEMORY = "memory.rows"  # what clients keep between rounds, where it is too large for a checkpoint
FAILURE = "failure.txt"
CONFIG = "config.yaml"
CODE = "code.txt"  # hashes of the code that began the run
LOST = f"{CODE}:lost"
ROUNDS = "rounds.csv"
CLIENTS = "clients.csv"
TALLIES = "tallies.npz"
PARTITION = "partition.csv"
ARRAYS = "arrays.npz"
COLLABORATION = "collaboration.npz"


class Savable(Protocol):
    """A partition, as far as its files are concerned."""

    def save(self, path: Path) -> object:
        """Write the client indices to `path` (.npz), atomically."""


class RunFiles:
    """Writes the files of one run below `path`, and keeps their checksums."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checksums: dict[str, str] = {}  # of the files written so far

    def write_config(self, yaml: str) -> None:
        """config.yaml: the resolved config."""
        self._write(CONFIG, yaml.encode())

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """environment.json (fedbench.results.environment)."""
        self._write("environment.json", as_json(environment))

    def write_partition(self, partition: Savable, statistics: Sequence[Mapping[str, Any]]) -> None:
        """partition.npz: who has which sample; partition.csv: `statistics`, one row a client."""
        path = self.path / "partition.npz"
        partition.save(path)
        self._checksums[path.name] = checksum(path.read_bytes())
        self._write(PARTITION, as_csv(statistics))

    def write_figure(self, name: str, svg: str) -> None:
        """`name`.svg: a figure (fedbench.plots)."""
        write_text(self.path / f"{name}.svg", svg)

    def write_history(self, history: History) -> None:
        """rounds.csv: one row a scored round; tallies.npz: every client's counts in each of them."""
        self._write(ROUNDS, as_csv(history.rows()))
        self._write(TALLIES, as_npz(history.arrays()))

    def write_clients(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """clients.csv: one row a client (fedbench.results.summary.client_rows)."""
        self._write(CLIENTS, as_csv(rows))

    def write_collaboration(self, matrix: NDArray[Any]) -> None:
        """collaboration.npz (array W) and .csv: row i holds the weights [N, N] client i gives to the others."""
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"a collaboration matrix is [N, N], got {matrix.shape}")
        self._write(COLLABORATION, as_npz({"W": matrix}))
        rows = [
            {"client": index} | {str(column): float(value) for column, value in enumerate(weights)}
            for index, weights in enumerate(matrix)
        ]
        self._write("collaboration.csv", as_csv(rows))

    def write_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """arrays.npz: what the method found: before training (distances, coalitions), or in its course."""
        self._write(ARRAYS, as_npz(arrays))

    def _write(self, name: str, content: bytes) -> None:
        write_bytes(self.path / name, content)
        self._checksums[name] = checksum(content)


def files_of(folder: Path) -> Sealed:
    """The files of a finished run."""
    return Sealed(folder, f"make the run again after: rm -r {shlex.quote(str(folder))}")


def numeric_rows(files: Sealed, name: str, *columns: str) -> list[dict[str, str]]:
    """The rows of a CSV file of numbers, as text that is empty or a number; at least one, with all of `columns`.

    Raises:
        Damaged: it is not as it was written.
    """
    rows = files.csv(name)
    try:
        for row in rows:
            for text in row.values():
                float(text or "nan")
    except ValueError as error:
        raise files.damaged(name, "it holds something else than numbers") from error
    if not rows or not set(columns) <= set(rows[0]):
        raise files.damaged(name, "rows or columns are missing")
    return rows
