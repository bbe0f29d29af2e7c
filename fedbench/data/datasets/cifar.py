"""CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32 in six pickled batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.data.dataset import Dataset
from fedbench.data.files import FileSource
from fedbench.data.formats.pickles import read_batch

BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


@dataclass(frozen=True)
class Cifar10(FileSource):
    """Ten kinds of animals and vehicles, in the layout of the archive cifar-10-python.tar.gz."""

    name: ClassVar[str] = "cifar10"
    folders: ClassVar[tuple[str, ...]] = ("cifar-10-batches-py", "cifar10", "cifar10/cifar-10-batches-py")

    model: str = "lenet5"
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    std: tuple[float, ...] = (0.2470, 0.2435, 0.2616)

    def files(self, folder: Path) -> list[Path] | None:
        """Five training batches and the test batch."""
        paths = [folder / name for name in BATCHES]
        return paths if all(path.is_file() for path in paths) else None

    def fetch(self, root: Path) -> None:
        """Into cifar-10-batches-py, by torchvision, which verifies the archive's checksum."""
        from torchvision.datasets import CIFAR10

        CIFAR10(str(root), download=True)

    def parse(self, files: list[Path]) -> Mapping[str, NDArray[Any]]:
        """Images, labels and the number of training samples."""
        batches = [read_batch(file, labels="labels", classes=10) for file in files]
        x, y = (np.concatenate(part) for part in zip(*batches, strict=True))
        return {"x": x, "y": y, "num_train": np.array([len(y) - len(batches[-1][1])])}

    def read(self) -> Dataset:
        """See `DataSource.read`."""
        arrays = self.arrays()
        count = int(arrays["num_train"][0])
        return Dataset(self.name, arrays["x"], arrays["y"], count, 10, self.mean, self.std)
