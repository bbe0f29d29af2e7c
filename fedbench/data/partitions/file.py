"""file: a split made elsewhere, or by an earlier run, so that a comparison uses the same samples.

The exchange form is one .npz: integer arrays `train_<i>` and `test_<i>` for clients 0, 1, ... of indices into the train
split followed by the test split, or into a user's own data in their order. Of many clients it may have `train` end to
end, with `train_sizes`, the samples of each; and so on. Optional: `val_<i>`, and what a run of fedbench adds to its own
`partition.npz`:

- `dataset`, NAME-FINGERPRINT or the name alone, to refuse a split of other data. With a fingerprint indices are into
  the data set as it is kept, training samples first.
- `rotation`, `corners`, `label_map`, `looks`, which are applied again; `label`, `seed`, `classes`.

Without `test_<i>` the protocol holds out test samples, without `val_<i>` validation samples; a run that had none writes
them all empty, which counts as without.
A path "package:NAME.npz" is one that comes with the package (fedbench.data.authors).
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.core.checked import load_npz
from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing
from fedbench.data import authors
from fedbench.data.dataset import Ints
from fedbench.data.partitions.base import Assignment, PartitionSpec, Pool

PACKAGED = "package:"  # opens the path of a split that comes with the package
EXTRAS = {  # what else a file may hold: kinds of NumPy's types, and what that is called
    **dict.fromkeys(("label", "dataset", "corners"), ("U", "text")),
    **dict.fromkeys(("seed", "classes", "label_map"), ("iu", "whole numbers")),
    **dict.fromkeys(("rotation", "looks"), ("iuf", "numbers")),
}


@dataclass(frozen=True)
class FileSplit(PartitionSpec):
    """The clients of an .npz file; a sample in a training and a test set is refused."""

    name: ClassVar[str] = "file"
    fixes_test: ClassVar[bool] = True
    by_label: ClassVar[bool] = False

    path: str | None = None  # the .npz file
    shared: bool = False  # true: a sample may be on several clients (never in training and in test)

    @property
    def label(self) -> str:
        """The name with a hash of the file's content, so two splits are two partitions, independent of their paths."""
        return self.name if self.path is None else f"{self.name}-{_digest(self._file())}"

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        if self.path is None:
            raise ConfigError("partition=file needs partition.path=FILE.npz")
        arrays = read_arrays(self._file())
        name = pool.origin.rpartition("-")[0]
        made_for = str(arrays.get("dataset", name))
        if made_for not in (pool.origin, name):
            raise ConfigError(
                f"{self.path} divides {made_for}, this data set is {pool.origin} (its name and a hash of its samples); "
                "use that data set without a limit"
                + (", or write only the name into the array 'dataset'" if pool.rows is None else "")
            )
        sets = {name: _lists(arrays, name) for name in ("train", "val", "test")}
        if pool.rows is not None and made_for != pool.origin:  # else a run of fedbench wrote it
            sets = {name: lists and [_placed(each, pool.rows) for each in lists] for name, lists in sets.items()}
        test = sets["test"]
        clients = len(sets["train"] or ())
        for name in ("val", "test"):
            if sets[name] is not None and len(sets[name] or ()) != clients:
                raise DataCorrupt(f"{self.path} has {clients} training sets, but {len(sets[name] or ())} {name} sets")
        transforms = {name: arrays[name] for name in ("rotation", "label_map", "looks") if name in arrays}
        if self.shared and transforms:
            raise ConfigError("partition.shared=true: clients that see a sample differently cannot share it")
        return Assignment(
            clients=sets["train"] if test is None else None,
            train=None if test is None else sets["train"],
            val=sets["val"],
            test=test,
            corners=str(arrays.get("corners", "mean")),
            rotation=transforms.get("rotation"),
            label_map=transforms.get("label_map"),
            looks=transforms.get("looks"),
            shared=self.shared,
        )

    def _file(self) -> Path:
        path = self.path or ""
        if path.startswith(PACKAGED):
            return authors.FOLDER / path.removeprefix(PACKAGED)
        return Path(path).expanduser()


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of a split after a check of names and types.

    Raises:
        DataMissing: there is no such file.
        DataCorrupt: not a file of this form, or a damaged one.
    """
    try:
        arrays = load_npz(path)
    except OSError as error:
        raise DataMissing(f"partition.path={path}: {error.strerror or error}") from error
    if arrays is not None and "train_sizes" in arrays:
        arrays = _listed(path, arrays)
    if arrays is None:
        raise DataCorrupt(f"{path} is not a .npz of index arrays, or is damaged; write it with numpy.savez")
    for name, array in arrays.items():
        if not re.fullmatch(r"(train|val|test)_(0|[1-9][0-9]*)", name):
            if name not in EXTRAS:
                raise DataCorrupt(f"{path}: unknown array '{name}'; expected train_<i>, test_<i>, val_<i>")
            kinds, called = EXTRAS[name]
            if array.dtype.kind not in kinds:
                raise DataCorrupt(f"{path}: '{name}' must be {called}, got {array.dtype} {array.shape}")
        elif array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise DataCorrupt(f"{path}: '{name}' must be a list of integers, got {array.dtype} {array.shape}")
    if "train_0" not in arrays:
        raise DataCorrupt(f"{path} holds no 'train_0'")
    return arrays


def _listed(path: Path, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return `arrays` with `train_<i>` instead of `train` and `train_sizes`, and so on.

    Raises:
        DataCorrupt: the sizes are not those of the lists.
    """
    for name in [key for key in ("train", "val", "test") if key in arrays]:
        samples, sizes = arrays.pop(name), arrays.pop(f"{name}_sizes", np.zeros(0))
        if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 0).any() or sizes.sum() != samples.size:
            raise DataCorrupt(f"{path}: '{name}_sizes' must be {samples.size} in all, a whole number for each client")
        parts = np.split(samples, np.cumsum(sizes)[:-1])
        arrays |= {f"{name}_{client}": part for client, part in enumerate(parts)}
    return arrays


def _lists(arrays: dict[str, NDArray[Any]], name: str) -> list[Ints] | None:
    """Return the arrays `name`_0, `name`_1, ... in order; None without any, or if test or validation arrays are empty.

    Raises:
        DataCorrupt: a number is missing.
    """
    count = sum(key.startswith(f"{name}_") for key in arrays)
    for client in range(count):
        if f"{name}_{client}" not in arrays:
            raise DataCorrupt(f"partition.path has {count} arrays {name}_<i>, but no '{name}_{client}'")
    lists = [arrays[f"{name}_{client}"].astype(np.int64) for client in range(count)]
    return lists if name == "train" or any(map(len, lists)) else None


def _placed(samples: Ints, rows: Ints) -> Ints:
    """Return the numbers in the data set of samples that are given by their places in the user's data, `rows` [n].

    Raises:
        ConfigError: there is no such row, or dataset.limit leaves it out.
    """
    order = np.argsort(rows)
    found = np.searchsorted(rows, samples, sorter=order).clip(max=len(rows) - 1)
    placed: Ints = order[found]
    if lost := samples[rows[placed] != samples].tolist():
        raise ConfigError(f"partition=file names sample {lost[0]}, which the data set, of {len(rows)}, does not have")
    return placed


def _digest(path: Path) -> str:
    try:
        info = path.stat()
    except OSError as error:
        raise DataMissing(f"partition.path={path}: {error.strerror or error}") from error
    return _content_hash((path, info.st_size, info.st_mtime_ns, info.st_ctime_ns))


@functools.lru_cache(maxsize=16)
def _content_hash(stamp: tuple[Path, int, int, int]) -> str:
    """Return 8 hex digits over the arrays of a split; the file is given by (path, size, times of change)."""
    digest = hashlib.sha256()
    for name, array in sorted(read_arrays(stamp[0]).items()):
        if name not in ("label", "seed"):
            digest.update(f"|{name} {array.shape}".encode())
            content = array.astype("<i8") if array.dtype.kind in "iu" else array
            digest.update(np.ascontiguousarray(content).tobytes())
    return digest.hexdigest()[:8]
