"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 grey images of 28 x 28, idx files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.domain import finite, positive
from fedbench.core.errors import DataCorrupt
from fedbench.core.progress import Report
from fedbench.data.download import Remote
from fedbench.data.file_source import FileSource, Part
from fedbench.data.formats.idx import STEMS, idx_files, read_pair

# The two share their file names; their first training labels, as published, tell them apart.
FIRST_LABELS = {
    "mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    "fashion_mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
}


def _parts(folder: str, mirrors: tuple[str, ...], md5: tuple[str, str, str, str]) -> tuple[Part, ...]:
    """The four gzipped idx files; checksums in the order of STEMS, as torchvision lists them."""
    names = [f"{stem}-ubyte.gz" for stem in STEMS]
    return tuple(
        Part(Remote(tuple(m + name for m in mirrors), name, digest), f"{folder}/{name}", archive=False)
        for name, digest in zip(names, md5, strict=True)
    )


@dataclass(frozen=True)
class Mnist(FileSource):
    """Ten handwritten digits."""

    name: ClassVar[str] = "mnist"
    folders: ClassVar[tuple[str, ...]] = ("mnist", "MNIST/raw")
    published: ClassVar[tuple[int, int]] = (60_000, 10_000)
    parts: ClassVar[tuple[Part, ...]] = _parts(
        "MNIST/raw",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    )

    model: str = "mlp"
    mean: tuple[float, ...] = finite((0.1307,))
    std: tuple[float, ...] = positive((0.3081,))

    def files(self, folder: Path) -> list[Path] | None:
        """The four idx files."""
        return idx_files(folder, STEMS)

    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """Images, labels and the number of training samples."""
        train_x, train_y = read_pair(files[0], files[1], size=28, classes=10)
        test_x, test_y = read_pair(files[2], files[3], size=28, classes=10)
        for name, labels in FIRST_LABELS.items():
            if name != self.name and tuple(train_y[:10]) == labels:
                raise DataCorrupt(
                    f"{files[1].parent} holds {name}, not {self.name}; the two share their file names"
                )
        x, y = np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y])
        return {"x": x, "y": y, "num_train": np.array([len(train_x)])}


@dataclass(frozen=True)
class FashionMnist(Mnist):
    """Ten kinds of clothing, in MNIST's format."""

    name: ClassVar[str] = "fashion_mnist"
    folders: ClassVar[tuple[str, ...]] = ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw")
    system: ClassVar[tuple[str, ...]] = ("/usr/share/datasets/fashion-mnist",)
    package: ClassVar[str] = "apt install dataset-fashion-mnist"
    parts: ClassVar[tuple[Part, ...]] = _parts(
        "FashionMNIST/raw",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    )

    mean: tuple[float, ...] = finite((0.2860,))
    std: tuple[float, ...] = positive((0.3530,))
