"""Digits: 1,797 handwritten digits of 8 x 8 (Alpaydin & Kaynak 1998), shipped inside scikit-learn.

There is no official test split: a fixed random fifth of each class is the test split (1,442 + 355 samples).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.domain import finite, positive
from fedbench.core.cache import FORMAT, cached_arrays
from fedbench.core.errors import DataMissing
from fedbench.core.progress import Report, silent
from fedbench.data.dataset import Availability, Dataset, DataSource, stratified_fifth

INSTALL = "pip install scikit-learn"


@dataclass(frozen=True)
class Digits(DataSource):
    """Ten digits, values 0..16; works without a network."""

    name: ClassVar[str] = "digits"

    model: str = "mlp"
    mean: tuple[float, ...] = finite((0.3050,))
    std: tuple[float, ...] = positive((0.3759,))

    def state(self) -> Availability:
        """Ready where scikit-learn is installed."""
        ready = importlib.util.find_spec("sklearn") is not None
        return Availability(ready, "scikit-learn" if ready else "", ("scikit-learn",), f"run `{INSTALL}`")

    def read(self, report: Report = silent) -> Dataset:
        """See `DataSource.read`. The arrays are cached because importing scikit-learn takes a second."""
        if not self.state().ready:
            raise DataMissing(
                f"data set 'digits' comes with scikit-learn, which is not here: run `{INSTALL}`"
            )
        version = importlib.metadata.version("scikit-learn")
        arrays = cached_arrays(f"digits-{version}-{FORMAT}", _shipped)
        count = int(arrays["num_train"][0])
        return Dataset("digits", arrays["x"], arrays["y"], count, 10, self.mean, self.std, scale=16.0)


def _shipped() -> Mapping[str, NDArray[Any]]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    test = stratified_fifth(labels, "digits")
    order = np.concatenate([np.flatnonzero(~test), np.flatnonzero(test)])
    x = images.astype(np.uint8).reshape(-1, 1, 8, 8)[order]
    return {"x": x, "y": labels.astype(np.int64)[order], "num_train": np.array([np.sum(~test)])}
