"""CIFAR's batches: pickles of NumPy arrays, read without running anything that a pickle may ask for.

torchvision gives the file to `pickle.load`, which runs whatever it asks for.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.core.errors import DataCorrupt

# NumPy's own classes are not let in: a crafted pickle makes them read memory wherever it says. Nor are functions, whose
# attributes a pickle could set. What stands in for them builds arrays of bytes and nothing else.


class Stand:
    """A function that a pickle may call, and do nothing else with."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        """Run it."""
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        """Refuse."""
        raise pickle.UnpicklingError("it alters a function")


class Bytes:
    """The type of unsigned bytes, `numpy.dtype("u1")`."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment, which single bytes have not."""


class Array:
    """An array of unsigned bytes, as NumPy pickles it: made empty, then given its state."""

    __slots__ = ("values",)

    def __setstate__(self, state: tuple[int, tuple[int, ...], Bytes, bool, bytes]) -> None:
        """Version, shape, type, whether by columns, content."""
        _, shape, kind, by_columns, raw = state
        if not isinstance(kind, Bytes) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array is not of unsigned bytes")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _array(kind: object, *_: Any) -> Array:
    if kind is not NDARRAY:
        raise pickle.UnpicklingError("it asks for an array of another class")
    return Array()


def _dtype(name: object, *_: Any) -> Bytes:
    if name not in ("u1", b"u1", "|u1", b"|u1"):
        told = repr(name) if isinstance(name, (str, bytes)) else f"a {type(name).__name__}"
        raise pickle.UnpicklingError(f"it holds an array of {told}, expected unsigned bytes")
    return Bytes()


def _encode(text: str, encoding: str) -> bytes:
    """`_codecs.encode` as Python 3 uses it to put bytes into old pickles, and for nothing else."""
    if encoding != "latin1":
        raise pickle.UnpicklingError("it asks for an encoding other than latin1")
    return text.encode("latin1")


NDARRAY = "numpy.ndarray"  # the name alone: nothing can be done with it but naming it
ADMITTED: dict[tuple[str, str], Any] = {  # module and name, under NumPy 1 and NumPy 2; never imported
    ("numpy", "ndarray"): NDARRAY,
    ("numpy", "dtype"): Stand(_dtype),
    ("numpy.core.multiarray", "_reconstruct"): Stand(_array),
    ("numpy._core.multiarray", "_reconstruct"): Stand(_array),
    ("_codecs", "encode"): Stand(_encode),
}


# A buffer as long as the file announces, and sets, whose elements are hashed.
LEFT_OUT = (pickle.BYTEARRAY8, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET)


class _Restricted(pickle._Unpickler):
    """Python's own, as the one in C reserves as much memory as a damaged file announces.

    Keys are text: a tuple that holds twice a tuple that holds twice ... is a short file and takes 2^n steps to hash.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        code: load
        for code, load in pickle._Unpickler.dispatch.items()
        if code not in [each[0] for each in LEFT_OUT]
    }

    def _load_items(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        self._put(items[::2], items[1::2])

    def _load_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()  # type: ignore[attr-defined]
        self._put([key], [value])

    def _load_dict(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        self.append({})  # type: ignore[attr-defined]
        self._put(items[::2], items[1::2])

    def _put(self, keys: Sequence[object], values: Sequence[object]) -> None:
        """Into the dictionary on top of the stack."""
        if strange := [key for key in keys if not isinstance(key, (str, bytes))]:
            raise pickle.UnpicklingError(f"a key is a {type(strange[0]).__name__}, expected text")
        self.stack[-1].update(zip(keys, values, strict=True))  # type: ignore[attr-defined]

    dispatch |= {pickle.SETITEMS[0]: _load_items, pickle.SETITEM[0]: _load_item, pickle.DICT[0]: _load_dict}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data file needs")
        return ADMITTED[module, name]


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a CIFAR batch file, keys as text, arrays as NumPy's.

    Raises:
        DataCorrupt: truncated, not a pickle of a dictionary, or one that asks for anything but arrays of bytes.
    """
    try:
        content = _Restricted(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        if isinstance(content, dict):
            return {_text(key): _plain(value) for key, value in content.items()}
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way inside the virtual machine
        reason = " ".join(str(error).split())[:200]
        raise DataCorrupt(f"{path} is truncated, damaged or unsafe ({reason}); fetch it again") from error
    raise DataCorrupt(f"{path} holds a {type(content).__name__}, expected a dictionary of data and labels")


def _text(key: str | bytes) -> str:
    return key.decode() if isinstance(key, bytes) else key


def _plain(value: object) -> object:
    return value.values if isinstance(value, Array) else value


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
