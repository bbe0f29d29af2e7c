"""CIFAR's batches: pickles of NumPy arrays, read without running anything that a pickle may ask for.

torchvision gives the file to `pickle.load`, which runs whatever it asks for.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench.core.errors import DataCorrupt


class _Bytes:
    """Stands for `numpy.dtype`, of which only unsigned bytes are read: other types let NumPy follow any pointer."""

    def __init__(self, name: object, *_: object) -> None:
        if name not in ("u1", b"u1", "|u1", b"|u1"):
            raise pickle.UnpicklingError("it holds an array of another type, expected unsigned bytes")

    def __setstate__(self, state: object) -> None:
        """Take byte order and alignment, which single bytes do not have."""


class _Array:
    """Stands for an array of unsigned bytes, which NumPy pickles as an empty one and then its state."""

    def __init__(self, *_: object) -> None:
        self.values: np.ndarray = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Bytes, bool, bytes]) -> None:
        """Take version, shape, type, whether it goes by columns, and content."""
        _, shape, kind, by_columns, raw = state
        if not isinstance(kind, _Bytes) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array is not of unsigned bytes")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _encode(text: str, _: object) -> bytes:
    """Undo what Python 3 does to put bytes into old pickles."""
    return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Any] = {  # as Python 2, NumPy 1 and NumPy 2 write it; never imported
    ("numpy", "ndarray"): "numpy.ndarray",
    ("numpy", "dtype"): _Bytes,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("_codecs", "encode"): _encode,
}


class _Restricted(pickle._Unpickler):
    """Python's unpickler with a list of what may be called.

    It is the one written in Python, as the one in C reserves the memory that a damaged file announces: 16 GB for an
    index of four bytes.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data file needs")
        return ADMITTED[module, name]


def read_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary in a CIFAR batch file, keys as text, arrays as NumPy's.

    Raises:
        DataCorrupt: truncated, not a pickle of a dictionary, or one that asks for anything but arrays of bytes.
    """
    raw = path.read_bytes()
    try:
        content = dict(_Restricted(io.BytesIO(raw), encoding="bytes").load())
        named = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
    except Exception as error:  # a damaged pickle can fail in any way inside the unpickler
        reason = " ".join(str(error).split())[:200]
        raise DataCorrupt(f"{path} is truncated, damaged or unsafe ({reason}); fetch it again") from error
    return {key: value.values if isinstance(value, _Array) else value for key, value in named.items()}


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
