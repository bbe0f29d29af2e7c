"""A folder of image files of one's own, `dataset=images`: see own.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedbench.config.domain import at_least
from fedbench.core.errors import DataCorrupt
from fedbench.core.progress import Report
from fedbench.data.datasets.own import OwnData, Parsed
from fedbench.data.formats.images import SUFFIXES, read_images


@dataclass(frozen=True)
class ImageFolder(OwnData):
    """CLASS/IMAGE files, or train/CLASS/IMAGE and test/CLASS/IMAGE; colour images, scaled to one size."""

    name: ClassVar[str] = "images"

    model: str = "lenet5"
    size: int = at_least(1, 32)  # pixels of a side

    @property
    def label(self) -> str:
        """The folder's name and the size."""
        return f"{super().label}-{self.size}px"

    @property
    def variant(self) -> str:
        """The size."""
        return f"-{self.size}"

    def files(self, path: Path) -> list[Path]:
        """Every image."""
        return [file for split in _splits(path) for label in _classes(split) for file in _images(label)]

    def parse(self, path: Path, report: Report) -> tuple[Parsed, Parsed | None]:
        """See `OwnData.parse`."""
        train, *test = [self._split(split, report) for split in _splits(path)]
        return train, test[0] if test else None

    def _split(self, folder: Path, report: Report) -> Parsed:
        files = [file for label in _classes(folder) for file in _images(label)]
        if not files:
            raise DataCorrupt(
                f"{folder} holds no images ({', '.join(SUFFIXES)}) in a folder for each class: CLASS/IMAGE"
            )
        x = read_images(files, self.size, resize=True, report=report)
        return {"x": x, "y": np.array([file.parent.name for file in files])}


def _splits(path: Path) -> list[Path]:
    named = [path / "train", path / "test"]
    return named if all(folder.is_dir() for folder in named) else [path]


def _classes(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


def _images(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
