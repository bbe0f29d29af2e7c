"""EMNIST, split "byclass" (Cohen et al. 2017): 697,932 + 116,323 handwritten digits and letters, grey, 28 x 28.

The files hold the images with rows and columns exchanged, as MATLAB stores them; here they are upright, like MNIST's.
Labels: 0-9 digits, 10-35 capital, 36-61 small letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.domain import finite, positive
from fedbench.core.progress import Report
from fedbench.data.download import Remote
from fedbench.data.file_source import FileSource, Part
from fedbench.data.formats.idx import idx_files, read_pair

SPLIT = "emnist-byclass"
STEMS = tuple(
    f"{SPLIT}-{part}-{kind}" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
)


def _wanted(name: str) -> bool:
    """The archive holds five more splits."""
    return SPLIT in name


@dataclass(frozen=True)
class Emnist(FileSource):
    """62 digits and letters in four idx files (gzip.zip)."""

    name: ClassVar[str] = "emnist"
    folders: ClassVar[tuple[str, ...]] = ("emnist", "EMNIST/raw", "EMNIST/gzip", "gzip")
    published: ClassVar[tuple[int, int]] = (697_932, 116_323)
    label_count: ClassVar[int] = 62
    parts: ClassVar[tuple[Part, ...]] = (
        Part(  # address and checksum as in torchvision
            Remote(
                ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
                "emnist-gzip.zip",
                "58c8d27c78d21e728a6bc7b3cc06412e",
            ),
            "EMNIST/gzip",
            wanted=_wanted,
        ),
    )

    model: str = "lenet5"
    mean: tuple[float, ...] = finite((0.1736,))
    std: tuple[float, ...] = positive((0.3317,))

    def files(self, folder: Path) -> list[Path] | None:
        """The four idx files."""
        return idx_files(folder, STEMS)

    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """Images, labels and the number of training samples."""
        train_x, train_y = read_pair(files[0], files[1], size=28, classes=self.label_count)
        test_x, test_y = read_pair(files[2], files[3], size=28, classes=self.label_count)
        x, y = np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y])
        return {"x": np.ascontiguousarray(x.swapaxes(2, 3)), "y": y, "num_train": np.array([len(train_x)])}
