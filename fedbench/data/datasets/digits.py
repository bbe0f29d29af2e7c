"""Digits: 1,797 handwritten digits of 8 x 8 (Alpaydin & Kaynak 1998), shipped inside scikit-learn.

There is no official test split: a fixed random fifth of each class is the test split (1,442 + 355 samples).
scikit-learn's file does without the library too: in the data folder, as digits/digits.csv.gz.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.domain import finite, positive
from fedbench.core.cache import cached_arrays, source_key
from fedbench.core.errors import DataMissing
from fedbench.core.progress import Report, silent
from fedbench.data.dataset import Availability, Dataset, DataSource, stratified_fifth
from fedbench.data.file_source import data_dir

INSTALL = "pip install scikit-learn"
FILE = "digits.csv.gz"  # a line an image: 64 pixels and the label


@dataclass(frozen=True)
class Digits(DataSource):
    """Ten digits, values 0..16; works without a network."""

    name: ClassVar[str] = "digits"

    model: str = "mlp"
    mean: tuple[float, ...] = finite((0.3050,))
    std: tuple[float, ...] = positive((0.3759,))

    def state(self) -> Availability:
        """Ready where scikit-learn is installed, or its file is in the data folder."""
        file = digits_file()
        where = "" if file is None else "scikit-learn" if _packaged() == file else str(file.parent)
        return Availability(file is not None, where, ("scikit-learn",), f"run `{INSTALL}`")

    def read(self, report: Report = silent) -> Dataset:
        """See `DataSource.read`."""
        file = digits_file()
        if file is None:
            raise DataMissing(
                f"data set 'digits' comes with scikit-learn, which is not here: run `{INSTALL}`"
            )
        arrays = cached_arrays(source_key("digits", [file]), lambda: _parsed(file))
        count = int(arrays["num_train"][0])
        return Dataset("digits", arrays["x"], arrays["y"], count, 10, self.mean, self.std, scale=16.0)


def digits_file() -> Path | None:
    """scikit-learn's file of digits, in its package or in the data folder; None where there is none."""
    places = (data_dir() / "digits" / FILE, _packaged())
    return next((place for place in places if place is not None and place.is_file()), None)


def _packaged() -> Path | None:
    """Where the file lies in scikit-learn, which is not imported: that takes a second."""
    found = importlib.util.find_spec("sklearn")
    return Path(found.origin).parent / "datasets" / "data" / FILE if found and found.origin else None


def _parsed(file: Path) -> Mapping[str, NDArray[Any]]:
    lines = np.loadtxt(file, delimiter=",", dtype=np.int64)
    images, labels = lines[:, :-1], lines[:, -1]
    test = stratified_fifth(labels, "digits")
    order = np.concatenate([np.flatnonzero(~test), np.flatnonzero(test)])
    x = images.astype(np.uint8).reshape(-1, 1, 8, 8)[order]
    return {"x": x, "y": labels[order], "num_train": np.array([np.sum(~test)])}
