"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32 in pickled batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.domain import finite, one_of, positive
from fedbench.core.cache import Arrays
from fedbench.core.progress import Report
from fedbench.data.dataset import Dataset
from fedbench.data.download import Remote
from fedbench.data.file_source import FileSource, Part
from fedbench.data.formats.pickles import read_batch

BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
KINDS = {"fine": 100, "coarse": 20}  # CIFAR-100's labels -> classes


def _part(name: str, folder: str, md5: str) -> Part:
    """An archive of the author's page; checksums as printed there."""
    return Part(Remote((f"https://www.cs.toronto.edu/~kriz/{name}",), name, md5), folder)


@dataclass(frozen=True)
class Cifar10(FileSource):
    """Ten kinds of animals and vehicles, in the layout of the archive cifar-10-python.tar.gz."""

    name: ClassVar[str] = "cifar10"
    folders: ClassVar[tuple[str, ...]] = ("cifar-10-batches-py", "cifar10", "cifar10/cifar-10-batches-py")
    published: ClassVar[tuple[int, int]] = (50_000, 10_000)
    parts: ClassVar[tuple[Part, ...]] = (
        _part("cifar-10-python.tar.gz", "cifar-10-batches-py", "c58f30108f718f92721af3b95e74349a"),
    )

    model: str = "lenet5"
    mean: tuple[float, ...] = finite((0.4914, 0.4822, 0.4465))
    std: tuple[float, ...] = positive((0.2470, 0.2435, 0.2616))

    def files(self, folder: Path) -> list[Path] | None:
        """Five training batches and the test batch."""
        paths = [folder / name for name in BATCHES]
        return paths if all(path.is_file() for path in paths) else None

    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """Images, labels and the number of training samples."""
        batches = [read_batch(file, {"labels": 10}) for file in files]
        x = np.concatenate([images for images, _ in batches])
        y = np.concatenate([labels["labels"] for _, labels in batches])
        return {"x": x, "y": y, "num_train": np.array([len(y) - len(batches[-1][0])])}


@dataclass(frozen=True)
class Cifar100(FileSource):
    """A hundred kinds of things, or the twenty groups they fall into, in the layout of cifar-100-python.tar.gz."""

    name: ClassVar[str] = "cifar100"
    folders: ClassVar[tuple[str, ...]] = ("cifar-100-python", "cifar100", "cifar100/cifar-100-python")
    published: ClassVar[tuple[int, int]] = (50_000, 10_000)
    parts: ClassVar[tuple[Part, ...]] = (
        _part("cifar-100-python.tar.gz", "cifar-100-python", "eb9058c3a382ffc7106e4002c42a8d85"),
    )

    model: str = "lenet5"
    labels: str = one_of("fine", *KINDS)  # fine: 100 classes | coarse: 20 groups of five
    mean: tuple[float, ...] = finite((0.5071, 0.4865, 0.4409))
    std: tuple[float, ...] = positive((0.2673, 0.2564, 0.2762))

    @property
    def label(self) -> str:
        """See `DataSource.label`."""
        return super().label if self.labels == "fine" else f"{super().label}-{self.labels}"

    def files(self, folder: Path) -> list[Path] | None:
        """The training and the test batch; beside a `meta` file, since their names are everybody's."""
        paths = [folder / name for name in ("train", "test", "meta")]
        return paths if all(path.is_file() for path in paths) else None

    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """Images, both kinds of labels and the number of training samples."""
        keys = {f"{kind}_labels": classes for kind, classes in KINDS.items()}
        (train_x, train_y), (test_x, test_y) = (read_batch(file, keys) for file in files[:2])
        fine, coarse = (np.concatenate([train_y[key], test_y[key]]) for key in keys)
        x = np.concatenate([train_x, test_x])
        return {"x": x, "y": fine, "coarse": coarse, "num_train": np.array([len(train_x)])}

    def dataset(self, arrays: Arrays) -> Dataset:
        """See `FileSource.dataset`."""
        y = arrays["y" if self.labels == "fine" else "coarse"]
        count = int(arrays["num_train"][0])
        return Dataset(self.name, arrays["x"], y, count, KINDS[self.labels], self.mean, self.std)
