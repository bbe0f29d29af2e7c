"""EMNIST's MATLAB files: a struct `dataset` with `train` and `test`, each with `images` and `labels`.

Version 5 of the format (The MathWorks, "MAT-File Format"), and of it only what these files hold: structs and real
numbers, compressed or not. SciPy's reader reads more, but some damaged files end the process in it.
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedbench.core.errors import DataCorrupt

Split = tuple[NDArray[np.uint8], NDArray[np.int64]]
Order = Literal["little", "big"]

HEADER = 128  # bytes; the last two say the byte order
ORDERS: dict[bytes, Order] = {b"IM": "little", b"MI": "big"}
MATRIX, COMPRESSED = 14, 15  # types of elements
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
STRUCT, NUMERIC, COMPLEX = 2, range(6, 16), 0x800  # classes of matrices, and a flag
PADDING = 8  # elements are padded to multiples of this


def read_emnist(path: Path, classes: int) -> tuple[Split, Split]:
    """(images [n, 1, 28, 28], labels [n]) of the training and the test split, pixels in the file's order.

    Raises:
        DataCorrupt: truncated, no MATLAB file, or one with other content.
    """
    try:
        content = _variable(memoryview(path.read_bytes()), "dataset")
        train, test = (_split(path, content[name], classes) for name in ("train", "test"))
    except (ValueError, TypeError, LookupError, RecursionError, zlib.error) as error:
        raise DataCorrupt(f"{path} is truncated or no EMNIST file ({error}); fetch it again") from error
    return train, test


def _split(path: Path, struct: Any, classes: int) -> Split:
    images, labels = struct["images"], struct["labels"]
    if images.ndim != 2 or images.shape[1] != 28 * 28 or images.dtype != np.uint8:
        raise DataCorrupt(f"{path} holds images {images.dtype} {images.shape}, expected uint8 [n, 784]")
    if labels.shape != (len(images), 1) or not np.issubdtype(labels.dtype, np.integer):
        raise DataCorrupt(f"{path} holds labels {labels.dtype} {labels.shape}, expected [{len(images)}, 1]")
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise DataCorrupt(f"{path} holds label {wrong}, expected 0..{classes - 1}")
    return images.reshape(-1, 1, 28, 28), labels[:, 0].astype(np.int64)


def _variable(content: memoryview, name: str) -> Any:
    """The variable `name` of a file: a struct as a dictionary, numbers as an array. Raises ValueError, zlib.error."""
    order = ORDERS.get(bytes(content[HEADER - 2 : HEADER]))
    if order is None:
        raise ValueError("no MATLAB 5 file")
    rest = content[HEADER:]
    while len(rest):
        kind, element, rest = _element(rest, order)
        if kind == COMPRESSED:
            kind, element, _ = _element(_inflated(element, order), order)
        if kind == MATRIX:
            found, value = _matrix(element, order)
            if found == name:
                return value
    raise ValueError(f"no variable '{name}'")


def _element(content: memoryview, order: Order) -> tuple[int, memoryview, memoryview]:
    """(type, content, what follows) of the first element in `content`."""
    kind = int.from_bytes(content[:4], order)
    size, start = int.from_bytes(content[4:8], order), 8
    if kind >> 16:  # up to four bytes stand in the tag itself
        kind, size, start = kind & 0xFFFF, kind >> 16, 4
    end = start + size
    if end > len(content) or (start == 4 and size > 4):
        raise ValueError("it ends inside an element")
    padded = end if kind == COMPRESSED else end + -end % PADDING
    return kind, content[start:end], content[padded:]


def _inflated(content: memoryview, order: Order) -> memoryview:
    """The element in a compressed one, of no more bytes than it says itself; zlib checks them."""
    size = 8 + int.from_bytes(zlib.decompressobj().decompress(content, 8)[4:], order)
    stream = zlib.decompressobj()
    whole = stream.decompress(content, size + PADDING)
    if not stream.eof:
        raise ValueError("a compressed element is truncated, or larger than it says")
    return memoryview(whole)


def _matrix(content: memoryview, order: Order) -> tuple[str, Any]:
    """(name, value) of a matrix; None for one of a class that is not read."""
    _, flags, rest = _element(content, order)
    _, sizes, rest = _element(rest, order)
    _, name, rest = _element(rest, order)
    word = int.from_bytes(flags[:4], order)
    shape = np.frombuffer(sizes, _dtype("i4", order)).tolist()
    value: Any = None
    if word & 0xFF == STRUCT:
        value = _struct(rest, shape, order)
    elif word & 0xFF in NUMERIC and not word & COMPLEX:
        kind, numbers, _ = _element(rest, order)
        value = np.frombuffer(numbers, _dtype(NUMBERS[kind], order)).reshape(shape, order="F")
    return bytes(name).decode("ascii"), value


def _struct(content: memoryview, shape: list[int], order: Order) -> dict[str, Any]:
    """The fields of a single struct."""
    _, width, rest = _element(content, order)
    _, names, rest = _element(rest, order)
    each = int.from_bytes(width, order)
    if math.prod(shape) != 1 or each == 0:
        raise ValueError("it holds an array of structs")
    fields = {}
    for start in range(0, len(names), each):
        _, field, rest = _element(rest, order)
        label = bytes(names[start : start + each]).partition(b"\0")[0].decode("ascii")
        fields[label] = _matrix(field, order)[1] if len(field) else None
    return fields


def _dtype(name: str, order: Order) -> np.dtype[Any]:
    return np.dtype(f"{'<' if order == 'little' else '>'}{name}")
