"""The folder of a run: runs/<dataset>/<partition>/<method>/seed<k>-<key8>-<data6>/.

`result.json` is written last, after the checksums of all files. A run is finished if it exists.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

from fedbench.config.schema import ACCURACY
from fedbench.core.checked import MANIFEST, ChecksummedFolder
from fedbench.core.errors import FedbenchError, FolderInUse, Stale, warn_once
from fedbench.core.files import as_csv, as_json, as_npz, checksum, make_folder, sweep, write_bytes, write_text
from fedbench.core.locks import FolderLock
from fedbench.engine.history import History, Labels
from fedbench.metrics import Tally
from fedbench.runs import fingerprint
from fedbench.sample_metrics import METRICS, known

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from fedbench.data.partition import Partition
    from fedbench.runs.config import RunConfig


# The files of a run: their names, how each is written, and how they are read back.
#
# Every file is written atomically; those that are read back have checksums (fedbench.core.checked).

RESULT = "result.json"
CHECKPOINT = "checkpoint.safetensors"
MODEL = "model.safetensors"
FAILURE = "failure.txt"
CONFIG = "config.yaml"  # the resolved config
ENVIRONMENT = "environment.json"  # fedbench.runs.fingerprint
CODE = "code.txt"  # hashes of the code that began the run
LOST = f"{CODE}:lost"
ROUNDS = "rounds.csv"
NAME = "name"  # column of a client's name, where the data have one
CLIENTS = "clients.csv"  # one row a client (fedbench.runs.run.client_rows)
TALLIES = "tallies.npz"
PARTITION = "partition.csv"
ARRAYS = "arrays.npz"  # what the method found: before training (distances, coalitions), or in its course
COLLABORATION, MATRIX = "collaboration.npz", "collaboration.csv"


def files_of(folder: Path) -> ChecksummedFolder:
    """The files of a finished run."""
    return ChecksummedFolder(folder, f"make the run again after: rm -r {shlex.quote(str(folder))}")


def finished_below(place: Path) -> list[Path]:
    """The folders of finished runs at or below `place`, in order; a study's has a result and no config."""
    found = sorted(file.parent for file in place.rglob(RESULT))
    return [folder for folder in found if (folder / CONFIG).is_file() or (folder / ROUNDS).is_file()]


def numeric_rows(files: ChecksummedFolder, name: str, *columns: str) -> list[dict[str, str]]:
    """The rows of a CSV file whose values are numbers or empty, as text; at least one row, with all of `columns`.

    The column NAME may hold any text.

    Raises:
        Damaged: it is not as it was written.
    """
    rows = files.csv(name)
    try:
        for row in rows:
            for column, text in row.items():
                float("nan" if column == NAME else text or "nan")
    except ValueError as error:
        raise files.damaged(name, "it holds values that are not numbers") from error
    if not rows or not set(columns) <= set(rows[0]):
        raise files.damaged(name, "rows or columns are missing")
    return rows


Status = Literal["new", "partial", "finished"]


class RunFolder:
    """The folder of one run, from its start to its result. As a context manager it holds the folder's lock."""

    def __init__(
        self,
        runs_dir: Path | str,
        key: str,
        labels: Labels,
        data: str = "",
        origin: Mapping[str, Any] | None = None,
        today: str = "",
    ) -> None:
        """`key` is the hash of the configuration, `data` that of the samples ("" if they are not on this machine).

        `today`: hashes of the code that would make the run now (fedbench.runs.fingerprint.code_of).

        Without the samples it is the folder of the only run with this key, or, of several, of the last one made from
        the files that `origin`, the data set's config, names. Nothing is created before the folder is entered.
        """
        parts = (labels.dataset, labels.partition, labels.method)
        self.runs_dir = Path(runs_dir)
        place, name = self.runs_dir.joinpath(*map(_slug, parts)), f"seed{labels.seed}-{key[:8]}"
        there: list[Path] = []
        with contextlib.suppress(FileNotFoundError):  # another run leaves, and with it empty folders
            there = [] if data else sorted(place.glob(f"{name}-*"))
        there = there if len(there) < 2 else _last_of(there, origin or {})
        self.path = there[0] if there else place / (f"{name}-{data[:6]}" if data else name)
        self._checksums: dict[str, str] = {}  # of the files written so far
        self.key, self.data, self.today = key, data, today
        self.labels = labels
        self._lock = FolderLock(self.path)

    @property
    def checkpoint(self) -> Path:
        """File of the checkpoint (fedbench.engine.checkpoint)."""
        return self.path / CHECKPOINT

    def status(self) -> Status:
        """finished: has a result; partial: has a checkpoint to resume from; new: neither."""
        if (self.path / RESULT).is_file():
            return "finished"
        return "partial" if self.checkpoint.is_file() else "new"

    def __enter__(self) -> Self:
        """Create the folder, lock it and remove what a killed process left half-written.

        Raises:
            FolderInUse: another process runs in it.
        """
        self._lock.acquire()
        sweep(self.path)
        finished = self.status() == "finished"
        killed_just = CHECKPOINT if finished else MANIFEST  # after writing its result, or before
        (self.path / killed_just).unlink(missing_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unlock; remove a folder without files."""
        self._lock.release()
        folder = self.path
        while folder != self.runs_dir.parent:
            try:
                folder.rmdir()
            except OSError:  # not empty
                break
            folder = folder.parent

    @contextlib.contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Record the reason if the block fails with an error of the run itself; remove an earlier one.

        An interruption is no failure, because the run can resume. Nor is a folder that another process uses.
        """
        (self.path / FAILURE).unlink(missing_ok=True)
        try:
            yield
        except FolderInUse:
            raise
        except Exception as error:
            with contextlib.suppress(OSError):  # a full disk must not hide the error
                make_folder(self.path)
                write_text(self.path / FAILURE, f"{type(error).__name__}: {error}\n")
            raise

    def failure(self) -> str:
        """The reason why the last try of the run failed, on one line; "" if it did not."""
        try:
            return " ".join((self.path / FAILURE).read_text(encoding="utf-8").split())
        except OSError:
            return ""

    @property
    def code(self) -> str:
        """Hashes of the code that began the run, from `begin`; "" for a finished run without them.

        It is `LOST`, which no code has, if the run is unfinished and they are not as they were written.

        Raises:
            Damaged: the run is finished, and its row is not as it was written.
        """
        if self.status() == "finished":
            return str(files_of(self.path).json(RESULT).get("code") or "")
        try:
            text = (self.path / CODE).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return LOST
        return text.strip() if re.fullmatch(r"\w+:\w+( \w+:\w+)*\n", text) else LOST

    @property
    def changed(self) -> list[str]:
        """The parts of today's code that differ from the code that began the run; none for a new one.

        Raises:
            Damaged: see `code`.
        """
        return [] if self.status() == "new" else fingerprint.changed(self.code, self.today)

    def begin(self) -> None:
        """Write code.txt, the hashes of the code that begins the run."""
        write_text(self.path / CODE, f"{self.today}\n")

    def clear(self) -> None:
        """Remove the run's files, so that it starts anew."""
        for name in (CHECKPOINT, RESULT, MANIFEST, MODEL, CODE, ARRAYS, COLLABORATION, MATRIX):
            (self.path / name).unlink(missing_ok=True)

    def finish(self, result: Mapping[str, Any], model: Mapping[str, torch.Tensor] | None = None) -> None:
        """Write `model` if it is kept, then `result`, and remove the checkpoint: the run is finished."""
        if model is not None:
            from fedbench.engine import checkpoint

            checkpoint.write_checkpoint(self.path / MODEL, model, {}, key=self.key)
        files_of(self.path).write({RESULT: as_json({**result, "key": self.key})}, self._checksums)
        self.checkpoint.unlink(missing_ok=True)

    def result(self) -> dict[str, Any]:
        """The row of a finished run.

        Raises:
            Damaged: result.json is not as it was written.
            FedbenchError: it belongs to another configuration or to other samples.
        """
        row = files_of(self.path).json(RESULT)
        if row.get("key") != self.key:
            raise FedbenchError(f"{self.path} belongs to another configuration; delete the folder to run this one")
        if self.data and row.get("data", self.data) != self.data:
            raise FedbenchError(
                f"{self.path} was made with other samples; delete the folder to run with the current ones"
            )
        return row

    def environment(self) -> dict[str, Any]:
        """Software and machine of a finished run; empty for a study and before the end."""
        files = files_of(self.path)
        return files.json(ENVIRONMENT) if self.status() == "finished" and files.has(ENVIRONMENT) else {}

    def scores(self) -> dict[str, NDArray[np.float64]]:
        """Reported accuracies and metrics of scores [N] of a finished run, as fractions: Local's decide IPR and RSD.

        Raises:
            Damaged: clients.csv or result.json is not as it was written.
        """
        files = files_of(self.path)
        rows, result = numeric_rows(files, CLIENTS, ACCURACY), self.result()
        if len(rows) != result.get("of_clients", result.get("clients")):  # the latter in rows of earlier versions
            raise files.damaged(CLIENTS, f"it does not hold as many clients as {RESULT}")
        units = {ACCURACY: 100.0, **{name: METRICS[name].unit for name in known(rows[0])}}
        return {name: np.array([float(row[name] or "nan") for row in rows]) / unit for name, unit in units.items()}

    # ---- the files of a run, each with its checksum

    def write(self, name: str, content: bytes) -> None:
        """Write one of the files that are read back, see above."""
        write_bytes(self.path / name, content)
        self._checksums[name] = checksum(content)

    def write_partition(self, partition: Partition, statistics: Sequence[Mapping[str, Any]]) -> None:
        """Write partition.npz, each client's samples, and partition.csv, `statistics` with one row for each client."""
        path = self.path / "partition.npz"
        partition.save(path)
        self._checksums[path.name] = checksum(path.read_bytes())
        self.write(PARTITION, as_csv(statistics))

    def write_history(self, history: History, unseen: Mapping[str, Mapping[str, Tally]] | None = None) -> None:
        """Write rounds.csv, a row for each scored round, and tallies.npz, every client's counts in each of them.

        tallies.npz also has those of `unseen` clients, as `unseen/MOMENT/SET/correct` and `/total`.
        """
        self.write(ROUNDS, as_csv(history.rows()))
        counts = {
            f"unseen/{moment}/{name}": tally for moment, each in (unseen or {}).items() for name, tally in each.items()
        }
        parts = {
            f"{name}/{part}": getattr(tally, part) for name, tally in counts.items() for part in ("correct", "total")
        }
        self.write(TALLIES, as_npz({**history.arrays(), **parts}))

    def write_collaboration(self, matrix: NDArray[Any], names: Sequence[str] = ()) -> None:
        """Write collaboration.npz (W [N, N]) and .csv: row i has what client i gives to others, by `names`."""
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"a collaboration matrix is [N, N], got {matrix.shape}")
        self.write(COLLABORATION, as_npz({"W": matrix}))
        clients = (names or [*map(str, range(len(matrix)))])[: len(matrix)]  # unseen clients come last
        rows = [{"client": clients[i]} | dict(zip(clients, row, strict=True)) for i, row in enumerate(matrix.tolist())]
        self.write(MATRIX, as_csv(rows))


def _last_of(folders: Sequence[Path], origin: Mapping[str, Any]) -> list[Path]:
    """The folder of the run that finished last, preferably one made from the files that `origin` names; or none."""
    finished = [folder for folder in folders if (folder / RESULT).is_file()]
    alike = [folder for folder in finished if _files_of_data(_dataset_of(folder)) == _files_of_data(origin)]
    return sorted(alike or finished, key=lambda folder: (folder / RESULT).stat().st_mtime)[-1:]


def _files_of_data(dataset: Mapping[str, Any]) -> list[Path]:
    return [Path(str(dataset[name])).expanduser().resolve() for name in ("root", "path") if dataset.get(name)]


def _dataset_of(folder: Path) -> Mapping[str, Any]:
    """The data set's config of a finished run; nothing if it cannot be read."""
    try:
        return dict(yaml.safe_load(files_of(folder).read(CONFIG))["dataset"])
    except (FedbenchError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return {}


def _slug(name: str) -> str:
    """`name` as a folder name on any system: letters, digits and . _ + = , - only, no leading dot."""
    return re.sub(r"[^A-Za-z0-9._+=,-]", "_", name)[:80].lstrip(".") or "_"


# Where the files of a configured run are, and whether what is there may be used: it may be of other code.


def folder_of(run: RunConfig) -> RunFolder:
    """Return the run's folder, which knows the run's key, labels, samples and today's code."""
    try:
        data = fingerprint.content(run.dataset)
    except FedbenchError:  # raised again where samples are needed; what was found with them may still be shown
        data = ""
    today = fingerprint.code_of(run)
    return RunFolder(run.settings.runs_dir, run.key, labels_of(run), data, run.plain["dataset"], today)


def labels_of(run: RunConfig) -> Labels:
    """Return the run's names; a protocol's includes its differences from the preset."""
    names = {group: run.labels[group] for group in ("dataset", "partition", "method")}
    protocol = run.labels["protocol"] + (f" ({run.protocol_changes})" if run.protocol_changes else "")
    return Labels(**names, model=run.model.label, protocol=protocol, seed=run.seed)


def run_status(run: RunConfig, folder: RunFolder, *, tell: bool = True) -> Status:
    """Return `folder.status()`, where a result or checkpoint of other code counts as `run.settings.stale` says.

    `tell`: warn of a result of other code.

    Raises:
        Stale: there is one of other code, and stale=error.
    """
    status = folder.status()
    if not (parts := folder.changed):
        return status
    if run.settings.stale == "rerun":
        return "new"
    what = "was made" if status == "finished" else "was begun"
    reason = f"{folder.path} {what} by other code ({', '.join(parts)} changed since)"
    if run.settings.stale == "error":
        raise Stale(f"{reason}; stale=rerun makes it again, stale=show keeps it")
    if tell:
        warn_once(f"{reason}; stale=rerun makes it again")
    return status
