"""Tiny-ImageNet (Stanford CS231n, 2015): 200 classes, 100,000 + 10,000 colour images of 64 x 64.

The published test images have no labels: the validation images are the test split, as in the papers.
"""

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
from fedbench.data.formats.images import images_in, lines_of, read_images


def _wanted(name: str) -> bool:
    """All but the unlabelled test images."""
    return "/test/" not in name


@dataclass(frozen=True)
class TinyImageNet(FileSource):
    """200 classes of ImageNet; labels are ranks among the sorted WordNet identifiers."""

    name: ClassVar[str] = "tiny_imagenet"
    folders: ClassVar[tuple[str, ...]] = (
        "tiny-imagenet-200",
        "tiny_imagenet",
        "tiny_imagenet/tiny-imagenet-200",
    )
    published: ClassVar[tuple[int, int]] = (100_000, 10_000)
    label_count: ClassVar[int] = 200
    parts: ClassVar[tuple[Part, ...]] = (
        Part(
            Remote(
                ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                "tiny-imagenet-200.zip",
                "90528d7ca1a48142e341f4ef8d21d0de",
            ),
            "tiny-imagenet-200",
            wanted=_wanted,
        ),
    )

    model: str = "lenet5"
    mean: tuple[float, ...] = finite((0.4802, 0.4481, 0.3975))
    std: tuple[float, ...] = positive((0.2770, 0.2691, 0.2821))

    def files(self, folder: Path) -> list[Path] | None:
        """The list of classes, the validation annotations and the folders of training images."""
        index = [folder / "wnids.txt", folder / "val" / "val_annotations.txt"]
        if not all(path.is_file() for path in index):
            return None
        return [*index, *sorted((folder / "train").glob("*/images"))]

    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """Images and labels, the training images class by class."""
        folder = files[0].parent
        classes = sorted(lines_of(files[0]))
        if len(classes) != self.label_count or len(set(classes)) != len(classes):
            raise DataCorrupt(f"{files[0]} lists {len(classes)} classes, expected {self.label_count}")
        if any(Path(name).name != name for name in classes):
            raise DataCorrupt(f"{files[0]} names a folder outside the data set; fetch it again")
        found = [images_in(folder / "train" / name / "images") for name in classes]
        train = [(path, label) for label, paths in enumerate(found) for path in paths]
        test = _annotated(files[1], {name: label for label, name in enumerate(classes)})
        x = read_images([path for path, _ in [*train, *test]], 64, report=report)
        y = np.array([label for _, label in [*train, *test]])
        return {"x": x, "y": y, "num_train": np.array([len(train)])}


def _annotated(path: Path, labels: Mapping[str, int]) -> list[tuple[Path, int]]:
    """(file, label) of each validation image: lines of name, class and bounding box, divided by tabs.

    Raises:
        DataCorrupt: a line of another form, or a class that is not listed.
    """
    found = []
    for line in lines_of(path):
        name, *rest = line.split("\t")
        if not rest or rest[0] not in labels or Path(name).name != name:
            raise DataCorrupt(f"{path} has the line '{line[:60]}', expected an image and one of the classes")
        found.append((path.parent / "images" / name, labels[rest[0]]))
    return found
