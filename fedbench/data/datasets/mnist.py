"""Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 grey images of 28 x 28 in four idx files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.data.dataset import Dataset
from fedbench.data.files import FileSource
from fedbench.data.formats.idx import idx_files, read_pair


@dataclass(frozen=True)
class FashionMnist(FileSource):
    """Ten kinds of clothing."""

    name: ClassVar[str] = "fashion_mnist"
    folders: ClassVar[tuple[str, ...]] = ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw")
    system: ClassVar[tuple[str, ...]] = ("/usr/share/datasets/fashion-mnist",)
    package: ClassVar[str] = "apt install dataset-fashion-mnist"

    model: str = "mlp"
    mean: tuple[float, ...] = (0.2860,)
    std: tuple[float, ...] = (0.3530,)

    def files(self, folder: Path) -> list[Path] | None:
        """The four idx files."""
        return idx_files(folder)

    def fetch(self, root: Path) -> None:
        """Into FashionMNIST/raw, by torchvision."""
        from torchvision.datasets import FashionMNIST

        FashionMNIST(str(root), download=True)

    def parse(self, files: list[Path]) -> Mapping[str, NDArray[Any]]:
        """Images, labels and the number of training samples."""
        train_x, train_y = read_pair(files[0], files[1], size=28, classes=10)
        test_x, test_y = read_pair(files[2], files[3], size=28, classes=10)
        x, y = np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y])
        return {"x": x, "y": y, "num_train": np.array([len(train_x)])}

    def read(self) -> Dataset:
        """See `DataSource.read`."""
        arrays = self.arrays()
        count = int(arrays["num_train"][0])
        return Dataset(self.name, arrays["x"], arrays["y"], count, 10, self.mean, self.std)
