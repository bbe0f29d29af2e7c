"""CIFAR's batches: pickles of NumPy arrays, read without running anything that a pickle may ask for."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import DataCorrupt

# What pickled arrays need, under NumPy 1's and NumPy 2's module names: looked up here, never imported.
_RECONSTRUCT = np.empty(0).__reduce__()[0]


def _encode(text: str, encoding: str) -> bytes:
    """`_codecs.encode` as Python 3 uses it to put bytes into old pickles, and for nothing else."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding} is not admitted")
    return text.encode("latin1")


ADMITTED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("_codecs", "encode"): _encode,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data file needs")
        return ADMITTED[module, name]


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a CIFAR batch file, keys as text.

    Raises:
        DataCorrupt: truncated, not a pickle of a dictionary, or one that asks for anything but arrays.
    """
    try:
        content = _Restricted(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way inside the virtual machine
        raise DataCorrupt(f"{path} is truncated, damaged or unsafe ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise DataCorrupt(
            f"{path} holds a {type(content).__name__}, expected a dictionary of data and labels"
        )
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def read_batch(
    path: Path, labels: Mapping[str, int]
) -> tuple[NDArray[np.uint8], dict[str, NDArray[np.int64]]]:
    """Images [n, 3, 32, 32] of one CIFAR batch, and each kind of `labels` [n] (its key -> number of classes).

    Raises:
        DataCorrupt: keys missing, another shape or type, a label outside 0..classes-1.
    """
    content = read_pickle(path)
    x = content.get("data")
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3 * 32 * 32:
        raise DataCorrupt(f"{path}: 'data' is no uint8 array [n, 3072]")
    found = {key: _labels(path, key, content.get(key), len(x), count) for key, count in labels.items()}
    return x.reshape(-1, 3, 32, 32), found


def _labels(path: Path, key: str, listed: Any, samples: int, classes: int) -> NDArray[np.int64]:
    if not isinstance(listed, list) or len(listed) != samples or not all(type(v) is int for v in listed):
        raise DataCorrupt(f"{path}: '{key}' is no list of {samples} integers")
    y = np.array(listed, dtype=np.int64)
    if len(y) and not 0 <= y.min() <= y.max() < classes:
        raise DataCorrupt(f"{path}: {key} span {y.min()}..{y.max()}, expected 0..{classes - 1}")
    return y
