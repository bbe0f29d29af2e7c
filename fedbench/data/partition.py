"""Which samples each client trains, validates and tests on, as a value with a hash and a file form."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.errors import ConfigError, DataCorrupt
from fedbench.core.files import as_npz, write_bytes
from fedbench.data.dataset import Ints
from fedbench.data.partitions.file import read_arrays

SETS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Partition:
    """Which samples each client trains, validates and tests on: sorted, into train followed by test."""

    label: str
    seed: int
    dataset: str  # name-fingerprint of the data set
    classes: int
    train: list[Ints]  # of each client, never empty
    val: list[Ints]
    test: list[Ints]  # empty where only the global test set is scored, or where a client has a single sample
    rotation: np.ndarray | None = None  # float64 [N], degrees, counter-clockwise
    corners: str = "mean"  # what a rotation puts where no pixel lands (fedbench.data.rotation)
    label_map: Ints | None = None  # [N, classes]: a client sees label y as label_map[client, y]

    def __len__(self) -> int:
        return len(self.train)

    def repeated(self, times: int) -> Partition:
        """The clients `times` over, each time with the same samples.

        Raises:
            ConfigError: clients alter their samples, which none but they hold.
        """
        if self.rotation is not None or self.label_map is not None:
            raise ConfigError(f"partition {self.label} alters samples, so a sample can be on one client only")
        return replace(self, **{name: getattr(self, name) * times for name in SETS})

    @cached_property
    def hash(self) -> str:
        """12 hex digits over the data set, every client's samples and transforms; not over label and seed.

        So a split that was made elsewhere and read from a file has the hash of the same split made here.
        """
        digest = hashlib.sha256(f"{self.dataset} {self.classes} {len(self)}".encode())
        for name in SETS:
            for samples in getattr(self, name):
                digest.update(f"|{len(samples)}:".encode() + np.asarray(samples, dtype="<i8").tobytes())
        for name in ("rotation", "label_map"):
            value = getattr(self, name)
            digest.update(b"|none" if value is None else f"|{value.dtype.str}".encode() + value.tobytes())
        digest.update(b"" if self.rotation is None else f"|{self.corners}".encode())
        return digest.hexdigest()[:12]

    def label_counts(self, y: Ints) -> Ints:
        """Training and validation samples of each label, as the client sees it: int64 [N, classes]."""
        counts = np.zeros((len(self), self.classes), dtype=np.int64)
        for client, parts in enumerate(zip(self.train, self.val, strict=True)):
            labels = y[np.concatenate(parts)]
            if self.label_map is not None:
                labels = self.label_map[client][labels]
            counts[client] = np.bincount(labels, minlength=self.classes)
        return counts

    def statistics(self, y: Ints) -> list[dict[str, int]]:
        """One row a client: samples of each set, and of each class (`class_<c>`, training and validation)."""
        return [
            {"client": client}
            | {name: len(getattr(self, name)[client]) for name in SETS}
            | {f"class_{label}": int(count) for label, count in enumerate(counts)}
            for client, counts in enumerate(self.label_counts(y))
        ]

    def save(self, path: Path) -> None:
        """Write the exchange form, atomically: `train_<i>`, `val_<i>`, `test_<i>` of each client, and their origin."""
        arrays: dict[str, Any] = {
            f"{name}_{i}": samples for name in SETS for i, samples in enumerate(getattr(self, name))
        }
        names = ("label", "seed", "dataset", "classes", "rotation", "label_map")
        for name in (*names, *(() if self.rotation is None else ("corners",))):
            if getattr(self, name) is not None:
                arrays[name] = np.array(getattr(self, name))
        write_bytes(path, as_npz(arrays))

    @classmethod
    def load(cls, path: Path) -> Partition:
        """Read what `save` wrote.

        Raises:
            DataMissing: there is no such file.
            DataCorrupt: not a file of this form, or a damaged one.
        """
        try:
            arrays = read_arrays(path)
            clients = range(sum(name.startswith("train_") for name in arrays))
            sets = {name: [arrays[f"{name}_{i}"].astype(np.int64) for i in clients] for name in SETS}
            return cls(
                label=str(arrays["label"]),
                seed=int(arrays["seed"]),
                dataset=str(arrays["dataset"]),
                classes=int(arrays["classes"]),
                rotation=arrays.get("rotation"),
                corners=str(arrays.get("corners", "mean")),
                label_map=arrays.get("label_map"),
                **sets,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataCorrupt(f"{path} is no partition written by fedbench ({error})") from error
