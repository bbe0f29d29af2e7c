"""EMNIST's MATLAB files: a struct `dataset` with `train` and `test`, each with `images` and `labels`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbench.core.errors import DataCorrupt

Split = tuple[NDArray[np.uint8], NDArray[np.int64]]


def read_emnist(path: Path, classes: int) -> tuple[Split, Split]:
    """(images [n, 1, 28, 28], labels [n]) of the training and the test split, pixels in the file's order.

    Raises:
        DataCorrupt: truncated, no MATLAB file, or one with other content.
    """
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["dataset"], squeeze_me=False)["dataset"]
        train, test = (_split(path, content[name][0, 0], classes) for name in ("train", "test"))
    except DataCorrupt:
        raise
    except Exception as error:  # a damaged file can fail in any way inside the reader
        raise DataCorrupt(f"{path} is truncated or no EMNIST file ({error}); fetch it again") from error
    return train, test


def _split(path: Path, struct: Any, classes: int) -> Split:
    images, labels = struct["images"][0, 0], struct["labels"][0, 0]
    if images.ndim != 2 or images.shape[1] != 28 * 28 or images.dtype != np.uint8:
        raise DataCorrupt(f"{path} holds images {images.dtype} {images.shape}, expected uint8 [n, 784]")
    if labels.shape != (len(images), 1) or not np.issubdtype(labels.dtype, np.integer):
        raise DataCorrupt(f"{path} holds labels {labels.dtype} {labels.shape}, expected [{len(images)}, 1]")
    if len(labels) and labels.max() >= classes:
        raise DataCorrupt(f"{path} holds label {labels.max()}, expected 0..{classes - 1}")
    return images.reshape(-1, 1, 28, 28), labels[:, 0].astype(np.int64)
