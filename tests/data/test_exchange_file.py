"""A partition's hash, its statistics and the file it is saved in."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from fedbench.core.errors import DataCorrupt
from fedbench.data.partition import Partition
from tests.data.toys import same


def partition(**changes):
    ints = np.array
    fields = {
        "label": "toy",
        "seed": 3,
        "dataset": "toy-0",
        "classes": 3,
        "train": [ints([0, 2, 5]), ints([1])],
        "val": [ints([3]), np.zeros(0, np.int64)],
        "test": [ints([4]), ints([6])],
    }
    return Partition(**(fields | changes))


def test_the_hash_covers_samples_and_transforms_only():
    base = partition()
    changes = [
        {"train": [np.array([0, 2]), np.array([1, 5])]},  # the same samples, cut elsewhere
        {"val": base.test, "test": base.val},
        {"train": base.train[::-1], "val": base.val[::-1], "test": base.test[::-1]},
        {"dataset": "toy-1"},
        {"classes": 4},
        {"rotation": np.array([25.0, -25.0])},
        {"rotation": np.array([25.0, -25.0]), "corners": "edge"},
        {"label_map": np.array([[0, 1, 2], [2, 1, 0]])},
    ]
    assert len({base.hash, *(partition(**change).hash for change in changes)}) == len(changes) + 1
    assert partition(label="other", seed=4, corners="edge").hash == base.hash  # without a rotation, no corners


def test_statistics_count_what_the_client_sees():
    y = np.array([0, 1, 1, 2, 0, 2, 1])
    rows = partition(label_map=np.array([[0, 1, 2], [2, 1, 0]])).statistics(y)
    assert rows == [
        {"client": 0, "train": 3, "val": 1, "test": 1, "class_0": 1, "class_1": 1, "class_2": 2},
        {"client": 1, "train": 1, "val": 0, "test": 1, "class_0": 0, "class_1": 1, "class_2": 0},
    ]
    assert partition(label_map=np.array([[0, 1, 2], [2, 0, 1]])).label_counts(y)[1].tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    "transforms",
    [{}, {"rotation": np.array([25.0, -155.0]), "corners": "black", "label_map": np.eye(2, 3, dtype=int)}],
)
def test_a_saved_partition_comes_back(tmp_path, transforms):
    saved = partition(**transforms)
    saved.save(tmp_path / "split.npz")
    loaded = Partition.load(tmp_path / "split.npz")
    assert (loaded.label, loaded.seed, loaded.dataset, loaded.classes) == ("toy", 3, "toy-0", 3)
    assert same(saved, loaded)
    assert loaded.hash == saved.hash
    assert loaded.corners == saved.corners
    assert [path.name for path in tmp_path.iterdir()] == ["split.npz"]
    with np.load(tmp_path / "split.npz") as archive:  # the exchange form
        np.testing.assert_array_equal(archive["train_0"], [0, 2, 5])
        np.testing.assert_array_equal(archive["test_1"], [6])


def test_a_write_that_fails_leaves_what_was_there_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "split.npz"
    partition().save(path)
    before = path.read_bytes()
    monkeypatch.setattr(type(path), "replace", mock.Mock(side_effect=OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        partition(seed=4).save(path)
    assert [each.name for each in tmp_path.iterdir()] == ["split.npz"]
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_damaged_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "split.npz"
    partition().save(path)
    path.write_bytes(path.read_bytes()[:-30] if content is None else content)
    with pytest.raises(DataCorrupt, match=r"split\.npz"):
        Partition.load(path)
    np.savez(path, train_0=np.arange(3))
    with pytest.raises(DataCorrupt, match=r"split\.npz"):
        Partition.load(path)
