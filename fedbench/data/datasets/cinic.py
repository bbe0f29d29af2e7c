"""CINIC-10 (Darlow et al. 2018): three times 90,000 colour images of 32 x 32, CIFAR-10's classes from two sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.domain import finite, positive
from fedbench.core.cache import Arrays
from fedbench.core.progress import Report
from fedbench.data.dataset import Dataset
from fedbench.data.download import Remote
from fedbench.data.file_source import FileSource, Part
from fedbench.data.formats.images import images_in, read_images

SPLITS = ("train", "valid", "test")
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Cinic10(FileSource):
    """Ten kinds of animals and vehicles, a folder a split and class."""

    name: ClassVar[str] = "cinic10"
    folders: ClassVar[tuple[str, ...]] = ("CINIC-10", "cinic10", "cinic-10")
    published: ClassVar[tuple[int, int]] = (180_000, 90_000)
    parts: ClassVar[tuple[Part, ...]] = (
        Part(
            Remote(
                (
                    "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                    "https://datashare.is.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                ),
                "CINIC-10.tar.gz",
                "6ee4d0c996905fe93221de577967a372",
            ),
            "CINIC-10",
        ),
    )

    model: str = "lenet5"
    valid: bool = (
        True  # the validation images join the training split (180,000 images), else they are left out
    )
    mean: tuple[float, ...] = finite((0.4789, 0.4723, 0.4305))
    std: tuple[float, ...] = positive((0.2421, 0.2383, 0.2587))

    def files(self, folder: Path) -> list[Path] | None:
        """The folders of images; all three splits must be there."""
        if not all((folder / split / NAMES[0]).is_dir() for split in SPLITS):
            return None
        return [
            folder / split / name for split in SPLITS for name in NAMES if (folder / split / name).is_dir()
        ]

    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """All images: training, validation, test; each split class by class."""
        folder = files[0].parents[1]
        paths, labels, counts = [], [], []
        for split in SPLITS:
            found = [images_in(folder / split / name) for name in NAMES]
            counts.append(sum(map(len, found)))
            paths += [path for each in found for path in each]
            labels += [label for label, each in enumerate(found) for _ in each]
        x = read_images(paths, 32, report=report)
        numbers = {"num_train": counts[0] + counts[1], "num_valid": counts[1]}
        return {"x": x, "y": np.array(labels), **{name: np.array([n]) for name, n in numbers.items()}}

    def dataset(self, arrays: Arrays) -> Dataset:
        """See `FileSource.dataset`."""
        whole = super().dataset(arrays)
        if self.valid:
            return whole
        first = whole.num_train - int(arrays["num_valid"][0])
        x, y = (np.concatenate([a[:first], a[whole.num_train :]]) for a in (whole.x, whole.y))
        return Dataset(self.name, x, y, first, self.label_count, self.mean, self.std)
