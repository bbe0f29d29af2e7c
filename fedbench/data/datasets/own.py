"""Data of one's own: `dataset=npz` reads an .npz file, `dataset=images` a folder of image files.

Labels of any kind are numbered in sorted order. Without a test split a fixed random fifth of each class is one, the
same on every machine. Without `mean` and `std` each channel's are taken over the training samples. In tables and
folders the data set is called what the file is called; a run's folder also holds a hash of the samples. What cannot
be meant is refused; what may be meant is said in a line.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
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

log = logging.getLogger("fedbench")

Parsed = Mapping[str, NDArray[Any]]
COLOURS = (1, 3)  # numbers of channels that are told from heights
SPLITS = ("training", "test")
KINDS = {"b": "booleans", "i": "integers", "u": "integers", "f": "floats"}  # numpy's letters for types of numbers
APART = 3.0  # times the deviation of the training samples at which test samples are on another scale
EXACT = 2**53  # whole numbers up to it are told apart as floats
PIXELS = 255  # whole numbers that span more are no pixels
MISSING = ("", "nan", "none")  # what a label that is missing becomes as a word


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
        """(training, test) samples as `x` [n, ...] and `y` [n]; no test samples: a fifth will be.

        `said`, if it is there, holds lines on what may be meant otherwise.
        """

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
        arrays = cached_arrays(self.stamp, lambda: _joined(path, *self.parse(path, report)))
        for line in arrays["said"].tolist():
            _say(f"{path}: {line}")
        return self._dataset(arrays)

    @property
    def stamp(self) -> str:
        files = self.files(Path(self.path or "").expanduser()) if self.state().ready else []
        return source_key(f"{self.name}{self.variant}-said3", files)

    def _dataset(self, arrays: Arrays) -> Dataset:
        x, y, count, classes = arrays["x"], arrays["y"], int(arrays["num_train"][0]), int(arrays["classes"][0])
        scale = 255.0 if x.dtype == np.uint8 else 1.0
        mean, std = (tuple(map(float, arrays[name] / scale)) for name in ("mean", "std"))
        return Dataset(self.label, x, y, count, classes, self.mean or mean, self.std or std, scale)


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
            raise DataCorrupt(
                f"{path} is no .npz of arrays, or a damaged one; write it with numpy.savez, and what is an array of "
                "Python objects, as labels from pandas are, as y.astype(str)"
            )
        names = {"x", "y"} | ({"x_test", "y_test"} if {"x_test", "y_test"} & set(arrays) else set())
        if names != set(arrays):
            raise DataCorrupt(
                f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; expected x and y, or x, y, x_test and y_test; "
                "for clients of your own use partition=file with the indices of each"
            )
        test = {name: arrays[f"{name}_test"] for name in ("x", "y")} if "x_test" in arrays else None
        return {"x": arrays["x"], "y": arrays["y"]}, test


@functools.cache
def _say(line: str) -> None:
    log.warning("%s", line)


def _joined(path: Path, train: Parsed, test: Parsed | None) -> Parsed:
    """The arrays that are kept: training samples first, labels numbered, each channel's mean and deviation.

    `said`: a line for each thing that a person may have meant otherwise.

    Raises:
        DataCorrupt: samples or labels that cannot be meant.
    """
    parts = [train] if test is None else [train, test]
    for split, part in zip(SPLITS, parts, strict=False):
        shape = part["y"].shape
        if shape[:1] == part["x"].shape[:1] == (0,):
            raise DataCorrupt(f"{path}: the {split} split is empty; leave it out, or put samples there")
        if len(shape) != 1 or shape != part["x"].shape[:1] or not part["y"].size:
            one = "a column take y.ravel()" if shape[1:] == (1,) else "one-hot labels take y.argmax(1)"
            hint = f"; of {one}" if len(shape) == 2 else ""
            raise DataCorrupt(
                f"{path}: labels must be a list as long as the samples, got {part['x'].shape} and {shape}{hint}"
            )
    count = len(train["y"])
    try:
        x = _samples([part["x"] for part in parts])
        labels, said = _labels([part["y"] for part in parts])
    except (ValueError, TypeError) as error:
        raise DataCorrupt(f"{path}: {error}") from error
    said += [line for part in parts for line in part.get("said", np.zeros(0, np.str_)).tolist()]
    said += _understood(train["x"])
    names, y = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise DataCorrupt(f"{path}: all labels are {names[0]}, so that any model is right; give two classes")
    y = y.astype(np.int64)
    said += _doubts(names, y, count)
    if train["x"].shape[1:] == x.shape[1:] and x.shape[3] < x.shape[1] and x.shape[1] not in COLOURS:
        said.append(f"samples {list(x.shape[1:])} were taken as [C, H, W]: {x.shape[1]} channels; transpose [H, W, C]")
    if test is None:
        held = stratified_fifth(y, "own")
        order = np.concatenate([np.flatnonzero(~held), np.flatnonzero(held)])
        x, y, count = x[order], y[order], int(np.sum(~held))
    seen = x[:count].astype(np.float64)
    mean, std = seen.mean((0, 2, 3)), seen.std((0, 2, 3))
    if test is not None:
        said += _scales(seen, x[count:])
    said += _copies(x, y, count)
    return {
        "x": x,
        "y": y,
        "num_train": np.array([count]),
        "classes": np.array([len(names)]),
        "mean": mean,
        "std": np.where(std > 0, std, 1.0),
        "said": np.array(said, dtype=np.str_),
    }


def _samples(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The samples of both splits as one array [n, C, H, W], uint8 or float32.

    Raises:
        ValueError: no shape of samples, no numbers, values that are not finite, or splits that differ in these.
    """
    read = [_images_first(part) for part in parts]
    kinds = ["uint8, pixels up to 255" if part.dtype == np.uint8 else KINDS[part.dtype.kind] for part in parts]
    shapes = [list(part.shape[1:]) for part in read]
    for what, found in (("are", kinds), ("have shape [C, H, W] =", shapes)):
        if found[0] != found[-1]:
            raise ValueError(f"training samples {what} {found[0]}, test samples {what} {found[-1]}; make them alike")
    for split, part in zip(SPLITS, read, strict=False):
        odd = np.flatnonzero(~np.isfinite(part).all((1, 2, 3)))
        if len(odd):
            raise ValueError(
                f"{len(odd)} of {len(part)} {split} samples, the first at {odd[0]}, hold nan, inf or a number that "
                "float32 does not; leave them out, or put a number there"
            )
    return np.concatenate(read)


def _labels(parts: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], list[str]]:
    """The labels of both splits as one list of integers or words, and what was understood.

    Raises:
        ValueError: labels that name no classes, or numbers in one split and words in the other.
    """
    kinds = {"U": "words", "S": "words", "b": "booleans"}
    words = [kinds.get(part.dtype.kind, "numbers") for part in parts]
    if words[0] != words[-1]:
        raise ValueError(f"training labels are {words[0]}, test labels {words[-1]}; write both in one way")
    if words[0] == "words":
        return np.concatenate(parts), []
    whole = []
    for split, part in zip(SPLITS, parts, strict=False):
        if part.dtype.kind not in KINDS:
            raise ValueError(f"labels must be numbers or words, got {part.dtype}")
        floats = part if part.dtype.kind == "f" else np.zeros(0)
        odd = np.flatnonzero(~(np.abs(floats) <= EXACT) | (np.trunc(floats) != floats))
        if len(odd):
            raise ValueError(
                f"{len(odd)} of {len(part)} {split} labels, the first {part[odd[0]]:g} at {odd[0]}, name no class; "
                "a label is a whole number or a word"
            )
        if part.dtype.kind == "u" and part.max() > np.iinfo(np.int64).max:
            raise ValueError(f"{split} labels do not fit into int64; number the classes")
        whole.append(part.astype(np.int64))
    labels = np.concatenate(whole)
    taken = f"labels are floats; as they are whole they were taken for {len(np.unique(labels))} classes"
    told = [split for split, part in zip(SPLITS, parts, strict=False) if part.dtype.kind == "f"]
    return labels, [f"{split} {taken}, a quantity is not predicted here" for split in told]


def _understood(x: NDArray[Any]) -> list[str]:
    """What training samples as they are in the file were taken for, where they may be meant otherwise."""
    said = []
    if x.dtype.kind in "iu" and x.dtype != np.uint8 and int(x.max()) - int(x.min()) > PIXELS:
        said.append(
            f"samples are integers from {x.min()} to {x.max()}, taken for quantities; no network here reads numbers of "
            "tokens, so give an embedding of such"
        )
    if x.ndim == 3 and x.shape[1] != x.shape[2]:
        rows, columns = x.shape[1:]
        said.append(
            f"samples [{rows}, {columns}] were taken for grey images; give a series of {rows} channels as "
            f"[n, {rows}, 1, {columns}]"
        )
    return said


def _doubts(names: NDArray[Any], y: NDArray[np.int64], count: int) -> list[str]:
    """What is odd about the classes called `names` of samples labelled `y`, of which `count` are for training."""
    said = []
    if len(names) > max(2, len(y) // 2):
        said.append(f"{len(y)} samples have {len(names)} different labels, each taken for a class")
    if lost := [str(name) for name in names.tolist() if str(name).lower() in MISSING]:
        said.append(f"labels {lost} were taken for classes; leave out samples whose label is missing")
    if unseen := names[np.setdiff1d(y[count:], y[:count])].tolist():
        more = ", ..." if len(unseen) > 5 else ""
        said.append(f"no training sample has a label that test samples have: {', '.join(map(str, unseen[:5]))}{more}")
    return said


def _copies(x: NDArray[Any], y: NDArray[np.int64], count: int) -> list[str]:
    """What to say where a sample is there more than once with its label, the first `count` being for training."""
    digests = [hashlib.blake2b(x[i].tobytes() + b"%d" % label).digest() for i, label in enumerate(y.tolist())]
    copies, trained = len(digests) - len({*digests}), {*digests[:count]}
    if not copies:
        return []
    leaked = sum(digest in trained for digest in digests[count:])
    told = f"{copies} of {len(y)} samples are copies of others, {leaked} test samples are of training samples"
    return [f"{told}: models may be tested on what they were trained on; leave copies out, or use partition=file"]


def _scales(seen: NDArray[np.float64], test: NDArray[Any]) -> list[str]:
    """What to say where test samples are on another scale than the training samples `seen`, as 0..255 beside 0..1."""
    mean, std = float(seen.mean()), float(seen.std())
    off, spread = abs(float(test.mean(dtype=np.float64)) - mean), float(test.std(dtype=np.float64))
    if off <= APART * std and std <= APART * spread and spread <= APART * std:
        return []
    first, second = (f"{part.min():g} to {part.max():g}" for part in (seen, test))
    return [f"training samples span {first}, test samples {second}: other scales, taken as they are"]


def _images_first(x: NDArray[Any]) -> NDArray[Any]:
    """`x` as [n, C, H, W], uint8 or float32; inf where a number is too large for it.

    Raises:
        ValueError: no shape of samples, or nothing that is a number.
    """
    if x.dtype.kind not in KINDS:
        raise ValueError(f"samples must be numbers, got {x.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        x = x if x.dtype == np.uint8 else x.astype(np.float32)
    if 0 in x.shape:
        raise ValueError(f"samples must not be empty, got {list(x.shape)}")
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
        """The size, that 16 bits of grey are scaled, in older copies clipped, and that turned images are upright."""
        return f"-{self.size}-deep-upright"

    def read(self, report: Report = silent) -> Dataset:
        for line in _left_out(Path(self.path or "").expanduser()):
            _say(line)
        return super().read(report)

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
        doubts: dict[str, list[Path]] = {}
        x = read_images(files, self.size, resize=True, upright=True, report=report, doubts=doubts)
        said = [
            f"{len(found)} of {len(files)} images, the first {min(found).relative_to(folder)}, {doubt}"
            for doubt, found in sorted(doubts.items())
        ]
        return {"x": x, "y": np.array([file.parent.name for file in files]), "said": np.array(said, dtype=np.str_)}


def _splits(path: Path) -> list[Path]:
    named = [path / "train", path / "test"]
    return named if all(folder.is_dir() for folder in named) else [path]


def _classes(folder: Path) -> list[Path]:
    return [entry for entry in _shown(folder) if entry.is_dir()]


def _images(folder: Path) -> list[Path]:
    return [file for file in _shown(folder) if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()]


def _shown(folder: Path) -> list[Path]:
    """What is in a folder but for what begins with a dot, as .ipynb_checkpoints."""
    return sorted(each for each in folder.iterdir() if not each.name.startswith(".")) if folder.is_dir() else []


def _left_out(path: Path) -> Iterator[str]:
    """Yield what of a folder of images is not read, which may have been meant to be."""
    splits, suffixes = _splits(path), ", ".join(IMAGE_SUFFIXES)
    if beside := [each.name for each in _classes(path) if len(splits) > 1 and each not in splits]:
        yield f"{path}: only train and test are read, not {', '.join(beside)}"
    for label in (each for split in splits for each in _classes(split)):
        images = {*_images(label)}
        if not images:
            yield f"{label} holds no image ({suffixes}) and is no class"
        elif others := [each.name for each in _shown(label) if each not in images]:
            more = f" and {len(others) - 1} more" * (len(others) > 1)
            yield f"{label}: {others[0]}{more} left out, no image ({suffixes})"
