"""CIFAR's pickles: read as published, and nothing that a pickle could run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from fedbench.core.errors import DataCorrupt, UnknownName
from fedbench.data.formats import read_pickle
from tests.data.toys import file_source, load
from tests.helpers import real_formats
from tests.helpers.raw_files import images, python2_batch
from tests.helpers.real_formats import write_cifar

pytestmark = pytest.mark.usefixtures("own_folders")


def python3_batch(data, labels):
    return pickle.dumps({b"data": data, b"labels": labels, b"filenames": [b"a.png"]}, protocol=2)


@pytest.mark.parametrize("write", [python2_batch, python3_batch])
def test_cifar10_reads_batches_as_they_are_published(tmp_path, write):
    content = write_cifar(tmp_path / "root", write=write)
    data = load("cifar10", tmp_path / "root")
    assert data.shape == (3, 32, 32)
    assert (len(data), data.num_train) == (36, 30)
    np.testing.assert_array_equal(data.y, np.concatenate([y for _, y in content]))
    # Rows hold 1024 red, then green, then blue values, row by row.
    x, _ = content[1]
    assert data.x[6 + 2, 1, 4, 7] == x[2, 1024 + 4 * 32 + 7]
    np.testing.assert_array_equal(data.x[30:].reshape(6, -1), content[5][0])


def test_the_hand_made_batch_is_what_an_ordinary_unpickler_reads(tmp_path):
    x, y = images(3, (3072,)), [1, 2, 3]
    ordinary = pickle.loads(python2_batch(x, y), encoding="bytes")
    np.testing.assert_array_equal(ordinary[b"data"], x)
    assert ordinary[b"labels"] == y


class Exploit:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path):
    mark = tmp_path / "mark"
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": Exploit(mark)}, protocol=2))
    with pytest.raises(DataCorrupt, match="system"):
        read_pickle(path)
    assert not mark.exists()
    for evil in (
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy\nndarray\n(I1\ntR.",  # an array over memory that the file names
        b"cnumpy\nndarray\n)\x81.",
        b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.",  # pointers
        b"cnumpy\ndtype\n(S'V8'\nI0\nI1\ntR.",
        b"c_codecs\nencode\n(NI1\ntb.",  # sets a function's attributes
    ):
        path.write_bytes(evil)
        with pytest.raises(DataCorrupt):
            read_pickle(path)


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        ("pointers", np.array([None, "x"], dtype=object)),
        ("floats", np.zeros(3)),
        ("records", np.zeros(3, dtype=[("a", "u1"), ("b", "u1")])),
        ("signed", np.zeros(3, dtype=np.int8)),
    ],
)
def test_arrays_of_anything_but_bytes_are_not_even_built(tmp_path, kind, array):
    """A crafted dtype or an array of objects lets NumPy itself read any address."""
    path = tmp_path / kind
    path.write_bytes(pickle.dumps({"data": array}, protocol=2))
    with pytest.raises(DataCorrupt, match="expected unsigned bytes"):
        read_pickle(path)


def test_arrays_keep_their_order_and_must_fill_their_shape(tmp_path):
    x = np.arange(12, dtype=np.uint8).reshape(3, 4)
    path = tmp_path / "batch"
    for array in (x, np.asfortranarray(x)):
        path.write_bytes(pickle.dumps({"data": array}, protocol=2))
        np.testing.assert_array_equal(read_pickle(path)["data"], array)
    path.write_bytes(pickle.dumps({"data": x}, protocol=2).replace(b"K\x03K\x04", b"K\x03K\x05"))
    with pytest.raises(DataCorrupt, match="cannot reshape"):
        read_pickle(path)


def test_cifar100_has_both_kinds_of_labels(tmp_path: Path) -> None:
    (train, fine, coarse), (test, *_) = real_formats.write_cifar100(tmp_path / "root")
    data = load("cifar100", tmp_path / "root")
    assert (data.classes, data.num_train, data.shape) == (100, 200, (3, 32, 32))
    np.testing.assert_array_equal(data.y[:200], fine)
    np.testing.assert_array_equal(data.x[0].ravel(), train[0])
    np.testing.assert_array_equal(data.x[200:].reshape(len(test), -1), test)
    grouped = load("cifar100", tmp_path / "root", labels="coarse")
    assert grouped.classes == 20
    np.testing.assert_array_equal(grouped.y[:200], coarse)
    assert file_source("cifar100", tmp_path, labels="coarse").label == "cifar100-coarse"
    with pytest.raises(UnknownName, match="coarse"):
        file_source("cifar100", tmp_path, labels="course")
