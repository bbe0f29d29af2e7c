"""Ways to change the files of a data set."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.helpers.raw_files import write_image


def rewrite(pattern: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change the first file that fits."""

    def apply(root: Path) -> None:
        path = min(root.glob(pattern))
        path.write_bytes(change(path.read_bytes()))

    return apply


def edit(file: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    return rewrite(file, lambda content: change(content.decode()).encode())


def cut(pattern: str) -> Callable[[Path], None]:
    return rewrite(pattern, lambda content: content[: len(content) // 2])


def fill(pattern: str, content: bytes) -> Callable[[Path], None]:
    return rewrite(pattern, lambda _: content)


def remove(pattern: str) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        path = min(root.glob(pattern))
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return apply


def empty(pattern: str) -> Callable[[Path], None]:
    """Remove all files of the first folder that fits."""

    def apply(root: Path) -> None:
        for path in min(root.glob(pattern)).iterdir():
            path.unlink()

    return apply


def resized(pattern: str) -> Callable[[Path], None]:
    return lambda root: write_image(min(root.glob(pattern)), np.zeros((30, 40, 3), np.uint8))
