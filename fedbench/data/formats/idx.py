"""The idx format of MNIST and its successors: magic, big-endian dimensions, then unsigned bytes.

torchvision's reader asserts or raises whatever a damaged file leads to, naming neither the file nor the way out.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench.core.errors import DataCorrupt

GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTES = 0x08
MOST_DIMENSIONS = 8
CHUNK = 2**20  # bytes read at once
STEMS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def idx_files(folder: Path, stems: tuple[str, ...] = STEMS) -> list[Path] | None:
    """Training images, labels, test images, labels in `folder`, raw or .gz; None unless all are there."""
    found = []
    for stem in stems:
        names = (f"{stem}-ubyte", f"{stem}-ubyte.gz", f"{stem.replace('-idx', '.idx')}-ubyte")
        file = next((folder / name for name in names if (folder / name).is_file()), None)
        if file is None:
            return None
        found.append(file)
    return found


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes, plain or gzipped.

    Raises:
        DataCorrupt: damaged compression, another magic, or a length that the dimensions contradict.
    """
    try:
        with path.open("rb") as plain:
            zipped = plain.read(2) == GZIP_MAGIC
            plain.seek(0)
            return _array(path, gzip.GzipFile(fileobj=plain) if zipped else plain)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataCorrupt(f"{path} is truncated or damaged ({error}); fetch it again") from error


def _array(path: Path, stream: io.BufferedIOBase) -> NDArray[np.uint8]:
    """The array in `stream`, of which no more is read than the dimensions say."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:3] != bytes([0, 0, UNSIGNED_BYTES]) or not 0 < magic[3] <= MOST_DIMENSIONS:
        raise DataCorrupt(f"{path} is no idx file of unsigned bytes (it starts with {magic.hex()})")
    header = stream.read(4 * magic[3])
    if len(header) < 4 * magic[3]:
        raise DataCorrupt(f"{path} ends inside its header")
    dims = struct.unpack(f">{magic[3]}I", header)
    announced, content = math.prod(dims), bytearray()
    while chunk := stream.read(min(CHUNK, announced + 1 - len(content))):
        content += chunk
    if len(content) != announced or not content:
        held = f"more than {announced}" if len(content) > announced else len(content)
        raise DataCorrupt(f"{path} holds {held} bytes, its header announces {announced}")
    return np.frombuffer(content, np.uint8).reshape(dims)


def read_pair(images: Path, labels: Path, size: int, classes: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Images [n, 1, size, size] and labels [n] of one split, checked against each other.

    Raises:
        DataCorrupt: wrong dimensions, numbers that differ, or a label outside 0..classes-1.
    """
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or x.shape[1:] != (size, size):
        raise DataCorrupt(f"{images} holds shape {x.shape}, expected [n, {size}, {size}]")
    if y.shape != (len(x),):
        raise DataCorrupt(f"{labels} holds shape {y.shape}, expected [{len(x)}] as in {images.name}")
    if len(y) and y.max() >= classes:
        raise DataCorrupt(f"{labels} holds label {y.max()}, expected 0..{classes - 1}")
    return x[:, None], y.astype(np.int64)
