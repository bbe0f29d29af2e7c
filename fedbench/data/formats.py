"""Readers of file formats that several data sets share: idx, CIFAR's pickles, images. A damaged file gives one line."""

from __future__ import annotations

import gzip
import io
import math
import os
import pickle
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.core.errors import DataCorrupt, Report, reason_of, silent

if TYPE_CHECKING:
    from PIL import Image

# The idx format of MNIST and its successors: magic, big-endian dimensions, then unsigned bytes.
#
# torchvision's reader asserts or raises whatever a damaged file leads to, naming neither the file nor the way out.

GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTES = 0x08
MOST_DIMENSIONS = 8
READ_AT_ONCE = 2**20  # bytes read at once
MNIST_STEMS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def idx_files(folder: Path, stems: tuple[str, ...] = MNIST_STEMS) -> list[Path] | None:
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
            return _idx_array(path, gzip.GzipFile(fileobj=plain) if zipped else plain)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataCorrupt(f"{path} is truncated or damaged ({error}); fetch it again") from error


def _idx_array(path: Path, stream: io.BufferedIOBase) -> NDArray[np.uint8]:
    """Return the array in `stream`; not more is read than the dimensions say."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:3] != bytes([0, 0, UNSIGNED_BYTES]) or not 0 < magic[3] <= MOST_DIMENSIONS:
        raise DataCorrupt(f"{path} is no idx file of unsigned bytes (it starts with {magic.hex()}); fetch it again")
    header = stream.read(4 * magic[3])
    if len(header) < 4 * magic[3]:
        raise DataCorrupt(f"{path} ends inside its header; fetch it again")
    dims = struct.unpack(f">{magic[3]}I", header)
    announced, content = math.prod(dims), bytearray()
    while chunk := stream.read(min(READ_AT_ONCE, announced + 1 - len(content))):
        content += chunk
    if len(content) != announced or not content:
        held = f"more than {announced}" if len(content) > announced else len(content)
        raise DataCorrupt(f"{path} holds {held} bytes, its header announces {announced}; fetch it again")
    return np.frombuffer(content, np.uint8).reshape(dims)


def read_pair(images: Path, labels: Path, size: int, classes: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Images [n, 1, size, size] and labels [n] of one split, checked against each other.

    Raises:
        DataCorrupt: wrong dimensions, numbers that differ, or a label outside 0..classes-1.
    """
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or x.shape[1:] != (size, size):
        raise DataCorrupt(f"{images} holds shape {x.shape}, expected [n, {size}, {size}]; fetch it again")
    if y.shape != (len(x),):
        raise DataCorrupt(f"{labels} holds shape {y.shape}, expected [{len(x)}] as in {images.name}; fetch it again")
    if len(y) and y.max() >= classes:
        raise DataCorrupt(f"{labels} holds label {y.max()}, expected 0..{classes - 1}; fetch it again")
    return x[:, None], y.astype(np.int64)


# CIFAR's batches: pickles of NumPy arrays, read without running anything that a pickle may ask for.
#
# torchvision gives the file to `pickle.load`, which runs whatever it asks for.


class _Bytes:
    """Replaces `numpy.dtype` and reads only unsigned bytes, because other types let NumPy follow any pointer."""

    def __init__(self, name: object, *_: object) -> None:
        if name not in ("u1", b"u1", "|u1", b"|u1"):
            raise pickle.UnpicklingError("it holds an array of another type, expected unsigned bytes")

    def __setstate__(self, state: object) -> None:
        """Accept byte order and alignment, which do not matter for single bytes."""


class _Array:
    """Replaces an array of unsigned bytes, which NumPy pickles as an empty array and then its state."""

    def __init__(self, *_: object) -> None:
        self.values: np.ndarray = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Bytes, bool, bytes]) -> None:
        """Accept version, shape, type, column order and content."""
        _, shape, kind, by_columns, raw = state
        if not isinstance(kind, _Bytes) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array is not of unsigned bytes")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _encode(text: str, _: object) -> bytes:
    """Decode bytes as Python 3 writes them into old pickles."""
    return text.encode("latin1")


ADMITTED_IN_PICKLES: dict[tuple[str, str], Any] = {  # as Python 2, NumPy 1 and NumPy 2 write it; never imported
    ("numpy", "ndarray"): "numpy.ndarray",
    ("numpy", "dtype"): _Bytes,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("_codecs", "encode"): _encode,
}


class _Restricted(pickle._Unpickler):
    """Python's unpickler with a list of allowed calls.

    It is the version in Python. The version in C reserves the memory that a damaged file announces, such as 16 GB for
    an index of four bytes.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED_IN_PICKLES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a data file does not need")
        return ADMITTED_IN_PICKLES[module, name]


def read_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary in a CIFAR batch file, keys as text, arrays as NumPy's.

    Raises:
        DataCorrupt: truncated, not a pickle of a dictionary, or a pickle of other things than arrays of bytes.
    """
    raw = path.read_bytes()
    try:
        content = dict(_Restricted(io.BytesIO(raw), encoding="bytes").load())
        named = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
    except Exception as error:  # a damaged pickle can fail in any way inside the unpickler
        raise DataCorrupt(f"{path} is truncated, damaged or unsafe ({reason_of(error)}); fetch it again") from error
    return {key: value.values if isinstance(value, _Array) else value for key, value in named.items()}


def read_batch(path: Path, labels: Mapping[str, int]) -> tuple[NDArray[np.uint8], dict[str, NDArray[np.int64]]]:
    """Images [n, 3, 32, 32] of one CIFAR batch, and each kind of `labels` [n] (its key -> number of classes).

    Raises:
        DataCorrupt: keys missing, another shape or type, a label outside 0..classes-1.
    """
    content = read_pickle(path)
    x = content.get("data")
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3 * 32 * 32:
        raise DataCorrupt(f"{path}: 'data' is no uint8 array [n, 3072]; fetch it again")
    found = {key: _batch_labels(path, key, content.get(key), len(x), count) for key, count in labels.items()}
    return x.reshape(-1, 3, 32, 32), found


def _batch_labels(path: Path, key: str, listed: Any, samples: int, classes: int) -> NDArray[np.int64]:
    if not isinstance(listed, list) or len(listed) != samples or not all(type(v) is int for v in listed):
        raise DataCorrupt(f"{path}: '{key}' is no list of {samples} integers; fetch it again")
    y = np.array(listed, dtype=np.int64)
    if len(y) and not 0 <= y.min() <= y.max() < classes:
        raise DataCorrupt(f"{path}: {key} span {y.min()}..{y.max()}, expected 0..{classes - 1}; fetch it again")
    return y


# Image files to one array: decoded by Pillow in threads, brought to one size.

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
IMAGE_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")  # whatever the name says; others may run programs or hold several
MOST_PIXELS = 2**26  # of an image that is scaled: a damaged header may ask for any memory
WITH_ALPHA = ("RGBA", "LA", "PA")  # Pillow's modes
SHALLOW = 2**12  # above the brightest grey of a sensor of 12 bits
SQUEEZED = 2  # times as long as wide: what is scaled to a square is hardly the same thing
DECODED_AT_ONCE = 64  # images a thread decodes between reports
Images = NDArray[np.uint8]


def read_images(
    paths: Sequence[Path],
    size: int,
    *,
    resize: bool = False,
    upright: bool = False,
    report: Report = silent,
    doubts: dict[str, list[Path]] | None = None,
) -> Images:
    """The files as colour images [n, 3, size, size]; grey ones are repeated over the channels.

    With `resize` images of another size are scaled (bilinear with antialiasing, without keeping the aspect ratio), else
    refused. With `upright` images that a camera marked as turned (EXIF) are turned back; benchmarks are read as stored,
    as in torchvision. `doubts` collects what scaling loses, in words, and the files that it concerns.

    Raises:
        DataCorrupt: a file that is missing, truncated, no image, or of another size.
    """
    x = np.empty((len(paths), 3, size, size), dtype=np.uint8)

    def chunk(start: int) -> int:
        for i, path in enumerate(paths[start : start + DECODED_AT_ONCE], start):
            x[i] = _read_image(path, size, resize, upright, {} if doubts is None else doubts).transpose(2, 0, 1)
        return start

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in pool.map(chunk, range(0, len(paths), DECODED_AT_ONCE)):
            report("reading images", min(start + DECODED_AT_ONCE, len(paths)), len(paths))
    return x


def _read_image(path: Path, size: int, resize: bool, upright: bool, doubts: dict[str, list[Path]]) -> Images:
    """One file [size, size, 3]; `doubts` as `read_images` has them."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path, formats=IMAGE_FORMATS) as image:
            width, height = image.size
            if (width, height) != (size, size) and not (resize and width * height <= MOST_PIXELS):
                expected = f"{size} x {size}" if not resize else f"at most {MOST_PIXELS:,}"
                raise DataCorrupt(f"{path} has {width} x {height} pixels, expected {expected}")
            for doubt in _lost(image):
                doubts.setdefault(doubt, []).append(path)
            turned = ImageOps.exif_transpose(image) if upright else image
            if turned.mode.startswith("I"):  # 16 bits of grey: the upper eight, as of 16 bits of colour
                colour = Image.fromarray((np.asarray(turned) >> 8).astype(np.uint8)).convert("RGB")
            else:
                transparent = turned.mode == "P" and "transparency" in turned.info
                colour = (turned.convert("RGBA") if transparent else turned).convert("RGB")
            if resize and colour.size != (size, size):
                colour = colour.resize((size, size), Image.Resampling.BILINEAR)
    except FileNotFoundError as error:
        raise DataCorrupt(f"{path} is missing; fetch the data set again") from error
    except DataCorrupt:
        raise
    except Exception as error:  # a damaged image can fail in any way inside its decoder
        raise DataCorrupt(f"{path} is no image or a damaged one ({reason_of(error)}); fetch it again") from error
    return np.asarray(colour)


def _lost(image: Image.Image) -> Iterator[str]:
    """Yield what is lost when `image` becomes a square of colours, and what to do about it."""
    if max(image.size) > SQUEEZED * min(image.size):
        yield f"are over {SQUEEZED} times as long as wide and squeezed to a square; crop or pad them"
    if image.mode.startswith("I") and np.asarray(image).max() < SHALLOW:
        yield f"have 16 bits, of which the upper eight are read, and no grey above {SHALLOW - 1}; scale them to 65535"
    clear = image.mode in WITH_ALPHA or "transparency" in image.info
    if clear and image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
        yield "are transparent, which is left out; put them on a background"


def images_in(folder: Path) -> list[Path]:
    """The image files directly in `folder`, by name.

    Raises:
        DataCorrupt: the folder is missing or holds no image.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.name.lower().endswith(IMAGE_SUFFIXES))
    except OSError as error:
        raise DataCorrupt(f"{folder} is missing; fetch the data set again") from error
    if not names:
        raise DataCorrupt(f"{folder} holds no image; fetch the data set again")
    return [folder / name for name in names]


def lines_of(path: Path) -> list[str]:
    """The non-empty lines of an index file, without surrounding space.

    Raises:
        DataCorrupt: not a text file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataCorrupt(f"{path} is no text file ({error.reason}); fetch it again") from error
    return [line for line in map(str.strip, text.splitlines()) if line]
