"""Data of one's own: `dataset=npz` reads an .npz file, `dataset=images` a folder of image files.

Labels of any kind are numbered in sorted order. Without a test split a fixed random fifth of each class is one, the
same on every machine. Without `mean` and `std` each channel's are taken over the training samples. In tables and
folders the data set is called what the file is called; a run's folder also holds a hash of the samples.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.fields import at_least, finite, positive
from fedbench.core.cache import Arrays, cached_arrays, source_key
from fedbench.core.errors import DataCorrupt, DataMissing, Report, silent
from fedbench.core.files import load_npz
from fedbench.data.dataset import Availability, Dataset, DataSource, stratified_fifth
from fedbench.data.formats import IMAGE_SUFFIXES, read_images

Parsed = Mapping[str, NDArray[Any]]
COLOURS = (1, 3)  # numbers of channels that are told from heights


@dataclass(frozen=True)
class OwnData(DataSource):
    """Samples at `path`, parsed once and kept in the cache until a file changes."""

    path: str | None = None
    mean: tuple[float, ...] | None = finite(None)  # a channel; null: of the training samples
    std: tuple[float, ...] | None = positive(None)

    @property
    def label(self) -> str:
        """The file's or folder's name."""
        stem = "" if self.path is None else Path(self.path).expanduser().resolve().stem
        return "-".join(str(part) for part in (self.name, stem, self.limit) if part)

    @abstractmethod
    def parse(self, path: Path, report: Report) -> tuple[Parsed, Parsed | None]:
        """(training, test) samples as `x` [n, ...] and `y` [n]; no test samples: a fifth will be."""

    @abstractmethod
    def files(self, path: Path) -> list[Path]:
        """What makes the samples: they are parsed again when one changes."""

    @property
    def variant(self) -> str:
        """The options that change what `parse` yields."""
        return ""

    def state(self) -> Availability:
        """Ready where there is something at `path`."""
        ready = self.path is not None and Path(self.path).expanduser().exists()
        where = str(self.path) if ready else ""
        return Availability(ready, where, (self.path or "dataset.path",), "set dataset.path to your data")

    def read(self, report: Report = silent) -> Dataset:
        if not self.state().ready:
            raise DataMissing(
                f"dataset={self.name}: "
                + (f"there is nothing at {self.path}" if self.path else "set dataset.path to your data")
            )
        path = Path(self.path or "").expanduser()
        return self._dataset(cached_arrays(self.stamp, lambda: _joined(path, *self.parse(path, report))))

    @property
    def stamp(self) -> str:
        files = self.files(Path(self.path or "").expanduser()) if self.state().ready else []
        return source_key(f"{self.name}{self.variant}", files)

    def _dataset(self, arrays: Arrays) -> Dataset:
        x, count = arrays["x"], int(arrays["num_train"][0])
        scale = 255.0 if x.dtype == np.uint8 else 1.0
        mean, std = arrays["mean"] / scale, arrays["std"] / scale
        return Dataset(
            self.label,
            x,
            arrays["y"],
            count,
            int(arrays["classes"][0]),
            self.mean or tuple(map(float, mean)),
            self.std or tuple(map(float, std)),
            scale,
        )


@dataclass(frozen=True)
class Npz(OwnData):
    """Arrays `x` and `y`, and `x_test` and `y_test` where there is a test split.

    `x` is [n, d], [n, H, W], [n, C, H, W] or [n, H, W, C]; uint8 means pixels up to 255, anything else is taken as it
    is, as float32.
    """

    name: ClassVar[str] = "npz"

    def files(self, path: Path) -> list[Path]:
        """The file."""
        return [path]

    def parse(self, path: Path, report: Report) -> tuple[Parsed, Parsed | None]:
        try:
            arrays = load_npz(path)
        except OSError as error:
            raise DataMissing(f"{path}: {error.strerror or error}") from error
        if arrays is None:
            raise DataCorrupt(f"{path} is no .npz of arrays, or a damaged one; write it with numpy.savez")
        names = {"x", "y"} | ({"x_test", "y_test"} if {"x_test", "y_test"} & set(arrays) else set())
        if names != set(arrays):
            raise DataCorrupt(
                f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; expected x and y, or x, y, x_test and y_test"
            )
        test = {name: arrays[f"{name}_test"] for name in ("x", "y")} if "x_test" in arrays else None
        return {"x": arrays["x"], "y": arrays["y"]}, test


def _joined(path: Path, train: Parsed, test: Parsed | None) -> Parsed:
    """The arrays that are kept: training samples first, labels numbered, each channel's mean and deviation."""
    parts = [train] if test is None else [train, test]
    for part in parts:
        if part["y"].ndim != 1 or len(part["y"]) != len(part["x"]) or not len(part["y"]):
            raise DataCorrupt(
                f"{path}: labels must be a list as long as the samples, got {part['x'].shape} and {part['y'].shape}"
            )
    try:
        x = np.concatenate([_images_first(part["x"]) for part in parts])
        names, y = np.unique(np.concatenate([part["y"] for part in parts]), return_inverse=True)
    except (ValueError, TypeError) as error:
        raise DataCorrupt(f"{path}: {error}") from error
    y = y.astype(np.int64)
    count = len(train["y"])
    if test is None:
        held = stratified_fifth(y, "own")
        order = np.concatenate([np.flatnonzero(~held), np.flatnonzero(held)])
        x, y, count = x[order], y[order], int(np.sum(~held))
    seen = x[:count].astype(np.float64)
    mean, std = seen.mean((0, 2, 3)), seen.std((0, 2, 3))
    return {
        "x": x,
        "y": y,
        "num_train": np.array([count]),
        "classes": np.array([len(names)]),
        "mean": mean,
        "std": np.where(std > 0, std, 1.0),
    }


def _images_first(x: NDArray[Any]) -> NDArray[Any]:
    """`x` as [n, C, H, W], uint8 or float32.

    Raises:
        ValueError: no shape of samples, or nothing that is a number.
    """
    if x.dtype.kind not in "buif":
        raise ValueError(f"samples must be numbers, got {x.dtype}")
    x = x if x.dtype == np.uint8 else x.astype(np.float32)
    if x.ndim == 2:
        return x[:, None, None, :]
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4:
        last = x.shape[3] in (*COLOURS, 4) and x.shape[1] not in COLOURS
        return x.transpose(0, 3, 1, 2) if last else x
    raise ValueError(f"samples must be [n, d], [n, H, W], [n, C, H, W] or [n, H, W, C], got {list(x.shape)}")


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
        train, *test = [self._split(split, report) for split in _splits(path)]
        return train, test[0] if test else None

    def _split(self, folder: Path, report: Report) -> Parsed:
        files = [file for label in _classes(folder) for file in _images(label)]
        if not files:
            raise DataCorrupt(
                f"{folder} holds no images ({', '.join(IMAGE_SUFFIXES)}) in a folder for each class: CLASS/IMAGE"
            )
        x = read_images(files, self.size, resize=True, report=report)
        return {"x": x, "y": np.array([file.parent.name for file in files])}


def _splits(path: Path) -> list[Path]:
    named = [path / "train", path / "test"]
    return named if all(folder.is_dir() for folder in named) else [path]


def _classes(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


def _images(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
