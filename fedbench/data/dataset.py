"""A loaded data set, and the base class of data sets."""

from __future__ import annotations

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.fields import Component, at_least
from fedbench.config.schema import TASKS
from fedbench.core.cache import release
from fedbench.core.errors import DataCorrupt, Report, silent
from fedbench.core.rng import numpy_rng

Ints = NDArray[np.int64]
PARTS = ("train", "val", "test")  # of a client's samples


@dataclass(frozen=True, eq=False)
class Dataset:
    """A loaded data set: the training samples first, then the test samples.

    Construction checks that the arrays fit each other.

    Raises:
        DataCorrupt: shapes, types, label range or values that cannot be right.
    """

    name: str
    x: NDArray[Any]  # uint8 or float32 [n, C, H, W]; may be a read-only memory map
    y: Ints  # [n], in [0, classes)
    num_train: int  # x[:num_train] is the official training split, the rest the test split
    classes: int
    mean: tuple[float, ...]  # of each channel, in units of x / scale
    std: tuple[float, ...]
    scale: float = 255.0  # model input = (x / scale - mean) / std
    domain: Ints | None = None  # [n], for data sets made of several domains, or of clients' own samples
    names: tuple[str, ...] = ()  # of the domains, if each is a client
    part: NDArray[np.int8] | None = None  # [n], place in PARTS of each sample, if the data give it
    rows: Ints | None = None  # [n], of a user's own data: the place of each sample there
    # of a table, whose x is raw, may be float64 and hold nan: the categories of each column, from 0; (): a numeric one
    columns: tuple[tuple[str, ...], ...] = ()
    inputs: tuple[str, ...] = ()  # names of its columns
    estimates: bool = False  # true: mean and std are computed from the samples that clients train on
    encode: Callable[[Any], NDArray[np.float32]] | None = None  # maps rows of the user's table to rows of x
    tokens: int = 0  # x holds token ids below this number, 0 for padding
    text: NDArray[np.int32] | None = None  # [n, captions, words] token ids: 0 padding, 1 an unknown word
    vocabulary: tuple[str, ...] = ()  # the word of each token number
    target: NDArray[np.float64] | None = None  # [n], of regression: the quantity to predict; classes is then 1
    target_unit: tuple[float, float] = (0.0, 1.0)  # (zero, one): networks predict (target - zero) / one

    def __post_init__(self) -> None:
        for reason in self._faults():
            raise DataCorrupt(f"data set '{self.name}': {reason}")

    def _faults(self) -> list[str]:
        n = len(self.x)
        if self.x.ndim != 4 or 0 in self.x.shape:
            return [f"images must be a non-empty [n, C, H, W], got shape {self.x.shape}"]
        faults = []
        if self.x.dtype not in (np.uint8, np.float32) and not (self.columns and self.x.dtype == np.float64):
            faults.append(f"images must be uint8 or float32, got {self.x.dtype}")
        if self.y.shape != (n,) or self.y.dtype != np.int64:
            faults.append(f"labels must be int64 [{n}], got {self.y.dtype} {self.y.shape}")
        elif self.y.min() < 0 or self.y.max() >= self.classes:
            faults.append(f"labels span {self.y.min()}..{self.y.max()}, expected 0..{self.classes - 1}")
        if not 0 < self.num_train <= n:
            faults.append(f"num_train is {self.num_train} of {n} samples")
        if self.x.dtype == np.float32 and not self.columns and not np.isfinite(self.x).all():
            faults.append("images hold values that are not finite")
        if self.domain is not None and self.domain.shape != (n,):
            faults.append(f"domains must have shape [{n}], got {self.domain.shape}")
        return faults + self._scaling_faults() + self._text_faults() + self._target_faults()

    def _scaling_faults(self) -> list[str]:
        faults, channels = list[str](), self.x.shape[1]
        if len(self.mean) != channels or len(self.std) != channels:
            faults.append(
                f"dataset.mean and dataset.std need a value for each of {channels} channels, got {len(self.mean)} and "
                f"{len(self.std)}"
            )
        if not (np.isfinite([*self.mean, *self.std]).all() and min([*self.std, self.scale]) > 0):
            faults.append(f"mean {self.mean} must be finite, std {self.std} and scale {self.scale} positive")
        if self.x.dtype == np.uint8 and self.scale == 255 and max((*self.mean, *self.std), default=0) > 1:
            faults.append(
                f"dataset.mean={list(self.mean)} and dataset.std={list(self.std)} are of pixels divided by 255; divide "
                "what is above 1"
            )
        return faults

    def _text_faults(self) -> list[str]:
        if self.text is None:
            return []
        if self.text.ndim != 3 or len(self.text) != len(self.x) or self.text.dtype != np.int32:
            return [f"text must be int32 [{len(self.x)}, captions, words], got {self.text.dtype} {self.text.shape}"]
        if self.text.min() < 0 or self.text.max() >= len(self.vocabulary):
            return [f"tokens span {self.text.min()}..{self.text.max()}, the vocabulary has {len(self.vocabulary)}"]
        return []

    def _target_faults(self) -> list[str]:
        if self.target is None:
            return ["there is one class, so that any model is right"] if self.classes < 2 else []
        n = len(self.x)
        if self.classes > 1 or self.target.shape != (n,) or self.target.dtype != np.float64:
            return [f"targets must be float64 [{n}] and of one class, got {self.target.dtype} {self.target.shape}"]
        return [] if np.isfinite(self.target).all() else ["targets hold values that are not finite"]

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one sample."""
        channels, height, width = self.x.shape[1:]
        return channels, height, width

    @cached_property
    def fingerprint(self) -> str:
        """12 hex digits over the shape, every label and 64 spread images, which distinguish data sets."""
        digest = hashlib.sha256(f"{self.name} {self.x.shape} {self.x.dtype} {self.num_train}".encode())
        for labels in (self.y, self.target):
            digest.update(b"" if labels is None else np.ascontiguousarray(labels).tobytes())
        for samples in (self.x, self.text):
            if samples is not None:
                chosen = samples[spread(len(self), min(64, len(self)))]
                digest.update(np.ascontiguousarray(chosen).tobytes())
        return digest.hexdigest()[:12]

    @cached_property
    def content(self) -> str:
        """12 hex digits over every sample and label, which distinguish data sets of one name."""
        digest = hashlib.sha256(f"{self.num_train} {self.classes}".encode())
        for array in (self.x, self.y, self.domain, self.text, self.part, self.target):
            if array is not None:
                digest.update(f"{array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
                release(array)
        if any(found := (self.names, self.columns, self.inputs, self.tokens, self.estimates)):
            digest.update(repr(found).encode())
        return digest.hexdigest()[:12]


def spread(n: int, count: int) -> Ints:
    """`count` indices evenly spread over range(n), so that a sorted data set keeps all its classes."""
    return np.arange(count, dtype=np.int64) * n // count


def stratified_fifth(labels: NDArray[Any], name: str) -> NDArray[np.bool_]:
    """A mask of 20 % of each class, the same for one `name` on every machine: a test split.

    The number is rounded down, but is one for a class of two to four samples; a class of a single sample is not tested.
    """
    rng = numpy_rng(0, name, "test split")
    mask = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        mask[rng.permutation(members)[: max(len(members) // 5, min(1, len(members) - 1))]] = True
    return mask


def reduced(data: Dataset, limit: int) -> Dataset:
    """At most `limit` evenly spread training samples, and the same share of the test samples.

    They are spread over the samples in the order of their labels if at least half of the classes would be lost
    otherwise, such as by taking every tenth of the labels 0, ..., 9, 0, ...
    """
    if limit >= data.num_train:
        return data
    tests = len(data) - data.num_train
    kept = min(tests, max(1, tests * limit // data.num_train))
    order, trained = np.arange(len(data)), data.y[: data.num_train]
    if 2 * len(np.unique(trained[spread(data.num_train, limit)])) <= len(np.unique(trained)) <= limit:
        order = np.lexsort((data.y, order >= data.num_train))
    index = np.sort(order[np.concatenate([spread(data.num_train, limit), data.num_train + spread(tests, kept)])])
    fields = {name: getattr(data, name) for name in ("x", "y", "domain", "part", "rows", "text", "target")}
    kept_rows = {name: rows[index] for name, rows in fields.items() if rows is not None}
    return dataclasses.replace(data, num_train=limit, **kept_rows)


@dataclass(frozen=True)
class Availability:
    """Whether a data set can be loaded on this machine."""

    ready: bool
    where: str  # the folder or package it comes from; "" if missing
    looked: tuple[str, ...]  # every place looked at, in order
    how: str  # one line: how to get it
    prepared: bool = True  # False: the first run reads its files, which may take minutes


@dataclass(frozen=True)
class DataSource(Component, ABC):
    """Describes a data set; the fields are its options in YAML. Subclasses implement `read` and `state`."""

    section: ClassVar[str] = "dataset"
    name: ClassVar[str]

    model: str = "mlp"  # the model that fits by default (model=auto)
    # largest number of training samples; test samples are cut by the same share
    limit: int | None = at_least(1, None)

    @property
    def label(self) -> str:
        """The name in tables and run folders."""
        return self.name if self.limit is None else f"{self.name}-{self.limit}"

    @property
    def stamp(self) -> str:
        """Changes when the files of the data set change; "" without files."""
        return ""

    @property
    def owned(self) -> bool:
        """Whether the samples name their clients, so that partition=natural is the default."""
        return False

    @property
    def task(self) -> str:
        """What is predicted: a class (classification), or a quantity (regression)."""
        return TASKS[0]

    def network(self) -> dict[str, Any]:
        """The model that model=auto takes: its name, and fields that depend on the samples."""
        return {"name": self.model}

    def load(self, report: Report = silent) -> Dataset:
        """The data set, reduced to `limit`.

        Raises:
            DataMissing: it is not on this machine.
            DataCorrupt: a file is truncated, altered or of another format.
        """
        data = self.read(report)
        return data if self.limit is None else reduced(data, self.limit)

    @abstractmethod
    def read(self, report: Report = silent) -> Dataset:
        """The whole data set: x uint8 or float32 [n, C, H, W], y int64 [n], training samples first, and their number.

        `report` shows the progress of long work.
        """

    @abstractmethod
    def state(self) -> Availability:
        """Whether the data are present, where, and how to get them; it reads no sample."""
