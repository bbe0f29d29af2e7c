"""Bytes of the file formats that data sets come in: idx, CIFAR's pickles, images, archives."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]


def images(n: int, shape: tuple[int, ...], seed: int = 0) -> Bytes:
    """Random bytes [n, *shape]."""
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def idx_bytes(array: Bytes) -> bytes:
    """An idx file of unsigned bytes."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def python2_batch(data: Bytes, labels: Sequence[int] | Mapping[bytes, Sequence[int]], key: bytes = b"labels") -> bytes:
    """A batch as Python 2 and NumPy 1 pickled it (protocol 2, byte strings): the format of the real archive."""

    def string(raw: bytes) -> bytes:
        return b"U" + bytes([len(raw)]) + raw if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)) + raw

    def integer(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    dtype = b"cnumpy\ndtype\n" + string(b"u1") + integer(0) + integer(1) + b"\x87R"
    dtype += b"(" + integer(3) + string(b"|") + b"NNN" + integer(-1) + integer(-1) + integer(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + integer(0) + b"\x85" + string(b"b")
    array += b"\x87R(" + integer(1) + integer(data.shape[0]) + integer(data.shape[1]) + b"\x86"
    array += dtype + b"\x89" + string(data.tobytes()) + b"tb"
    items = string(b"batch_label") + string(b"testing batch 1 of 1") + string(b"data") + array
    for name, values in (labels if isinstance(labels, Mapping) else {key: labels}).items():
        items += string(name) + b"](" + b"".join(map(integer, values)) + b"e"
    return b"\x80\x02}(" + items + b"u."


def encoded(image: Bytes, form: str = "PNG") -> bytes:
    """An image [H, W, 3] or [H, W] as a file; JPEG changes its pixels a little."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, form)
    return buffer.getvalue()


def write_image(path: Path, image: Bytes) -> None:
    """A file in the format that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(image, "PNG" if path.suffix == ".png" else "JPEG"))


def tar_of(folder: Path, path: Path, prefix: str) -> Path:
    """A gzipped tar of what is in `folder`, each name after `prefix`, folders included."""
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted(folder.rglob("*")):
            archive.add(file, f"{prefix}{file.relative_to(folder).as_posix()}", recursive=False)
    return path


def zip_of(folder: Path, path: Path, prefix: str) -> Path:
    """A zip of what is in `folder`, folders included."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, f"{prefix}{file.relative_to(folder).as_posix()}")
    return path
