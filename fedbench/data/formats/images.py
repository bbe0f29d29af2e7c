"""Image files to one array: decoded by Pillow in threads, brought to one size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbench.core.errors import DataCorrupt
from fedbench.core.progress import Report, silent

SUFFIXES = (".jpg", ".jpeg", ".png")
FORMATS = (
    "JPEG",
    "PNG",
    "GIF",
    "BMP",
    "WEBP",
)  # whatever the name says; others may run programs or hold several
MOST_PIXELS = 2**26  # of an image that is scaled: a damaged header may ask for any memory
CHUNK = 64  # images a thread decodes between reports
Images = NDArray[np.uint8]


def read_images(paths: Sequence[Path], size: int, *, resize: bool = False, report: Report = silent) -> Images:
    """The files as colour images [n, 3, size, size]; grey ones are repeated over the channels.

    Images of another size are scaled to it if `resize` (bilinear with antialiasing, the aspect is not kept), else
    refused.

    Raises:
        DataCorrupt: a file that is missing, truncated, no image, or of another size.
    """
    x = np.empty((len(paths), 3, size, size), dtype=np.uint8)

    def chunk(start: int) -> int:
        for i, path in enumerate(paths[start : start + CHUNK], start):
            x[i] = _read(path, size, resize).transpose(2, 0, 1)
        return start

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in pool.map(chunk, range(0, len(paths), CHUNK)):
            report("reading images", min(start + CHUNK, len(paths)), len(paths))
    return x


def _read(path: Path, size: int, resize: bool) -> Images:
    """One file [size, size, 3]."""
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if (width, height) != (size, size) and not (resize and width * height <= MOST_PIXELS):
                expected = f"{size} x {size}" if not resize else f"at most {MOST_PIXELS:,}"
                raise DataCorrupt(f"{path} has {width} x {height} pixels, expected {expected}")
            if image.mode == "P" and "transparency" in image.info:
                image = image.convert("RGBA")
            colour = image.convert("RGB")
            if resize and colour.size != (size, size):
                colour = colour.resize((size, size), Image.Resampling.BILINEAR)
    except FileNotFoundError as error:
        raise DataCorrupt(f"{path} is missing; fetch the data set again") from error
    except DataCorrupt:
        raise
    except Exception as error:  # a damaged image can fail in any way inside its decoder
        reason = " ".join(str(error).split())
        raise DataCorrupt(f"{path} is no image or a damaged one ({reason}); fetch it again") from error
    return np.asarray(colour)


def images_in(folder: Path) -> list[Path]:
    """The image files directly in `folder`, by name.

    Raises:
        DataCorrupt: the folder is missing or holds no image.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.name.lower().endswith(SUFFIXES))
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
