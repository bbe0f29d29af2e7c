"""Data sets of one pixel, partitions of them, and small sets from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedbench.data.dataset import Dataset
from fedbench.data.datasets import DATASETS
from fedbench.data.files import FileSource
from fedbench.data.partitions import PARTITIONS

SEEDS = range(8)


def toy(per_class, test_per_class=0, name="toy"):
    """A data set of the given class sizes; images of one pixel."""
    train, test = (
        np.repeat(np.arange(len(c)), c) for c in (per_class, np.broadcast_to(test_per_class, len(per_class)))
    )
    y = np.concatenate([np.random.default_rng(0).permutation(part) for part in (train, test)])
    x = (np.arange(len(y)) % 251).astype(np.uint8).reshape(-1, 1, 1, 1)
    domain = np.arange(len(y)) * 7 % 3
    return Dataset(name, x, y, len(train), len(per_class), (0.5,), (0.5,), domain=domain)


TOY = toy([120] * 10, 20)
FASHION = toy([6000] * 10, 1000)  # Fashion-MNIST's class sizes
SPECS = {
    "homo": {"num_clients": 7},
    "dir": {"alpha": 0.3, "num_clients": 8},
    "dir_prior": {"num_clients": 9},
    "domain": {"clients_per_domain": 4},
    "fold": {"folds": 2, "num_clients": 6},
    "fold_code": {"folds": 2, "num_clients": 6, "size": 100},
    "groups_s": {"size": 45},
    "groups_fedrema": {"size": 25, "draw": None},
    "quantity": {"num_clients": 8},
    "homo_fedsac": {"draw": None},
    "dir_fedsac": {"alpha": 0.5, "draw": None},
    "pathological_fedsac": {"draw": None},
    "feature_shift_code": {"decay": 1.0, "draw": None},
    "concept_shift_code": {"decay": 1.0, "draw": None},
}


def build(name, **fields):
    return PARTITIONS.build({"name": name, **fields})


def small(name, **fields):
    """A partition of a few clients, that `TOY` has samples for."""
    return build(name, **{**SPECS.get(name, {}), **fields})


def data(train, test, classes, domain=None, size=1):
    """Samples whose labels go round; images of one grey level each."""
    n = train + test
    x = np.broadcast_to((np.arange(n) % 251).astype(np.uint8).reshape(-1, 1, 1, 1), (n, 1, size, size))
    return Dataset("toy", x, np.arange(n) % classes, train, classes, (0.5,), (0.5,), domain=domain)


def same(a, b):
    return all(
        np.array_equal(p, q)
        for name in ("train", "val", "test")
        for p, q in zip(getattr(a, name), getattr(b, name), strict=True)
    )


def file_source(name: str, root: Path, **options: Any) -> FileSource:
    """The data set called `name` under `root`, which may be a small one."""
    source = DATASETS.build({"name": name, "root": str(root), "partial": True, **options})
    assert isinstance(source, FileSource)
    return source


def load(name: str, root: Path, **options: Any) -> Dataset:
    """What `file_source` reads."""
    return file_source(name, root, **options).load()
