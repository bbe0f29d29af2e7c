"""MNIST, Fashion-MNIST and EMNIST: idx files wherever they lie, and what is said of missing ones."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import numpy as np
import pytest

from fedbench.config.schema import TestConfig as Protocol
from fedbench.core.errors import DataCorrupt, DataMissing
from fedbench.data.datasets import DATASETS
from fedbench.data.datasets.small_images import FashionMnist
from fedbench.data.formats import MNIST_STEMS, read_idx
from fedbench.data.partition import make_partition
from fedbench.data.partitions.label import Homogeneous
from tests.data.toys import file_source, load
from tests.helpers import real_formats
from tests.helpers.raw_files import idx_bytes
from tests.helpers.real_formats import write_fashion

pytestmark = pytest.mark.usefixtures("own_folders")


SYSTEM = Path("/usr/share/datasets/fashion-mnist")


needs_fashion = pytest.mark.skipif(not SYSTEM.is_dir(), reason="needs the Debian package dataset-fashion-mnist")


@pytest.mark.parametrize("folder", ["", "fashion_mnist", "FashionMNIST/raw"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_fashion_mnist_reads_idx_files_wherever_they_lie(tmp_path, folder, suffix):
    compress = gzip.compress if suffix else bytes
    train_x, train_y, test_x, test_y = write_fashion(tmp_path / "root" / folder, 30, 12, compress, suffix)
    for _ in ("parsed", "from the cache"):
        data = load("fashion_mnist", tmp_path / "root")
        assert data.num_train == 30
        assert data.shape == (1, 28, 28)
        assert data.x.dtype == np.uint8
        np.testing.assert_array_equal(data.x[:30, 0], train_x)
        np.testing.assert_array_equal(data.x[30:, 0], test_x)
        np.testing.assert_array_equal(data.y, np.concatenate([train_y, test_y]))


def test_the_root_of_the_config_comes_before_the_environment(tmp_path, caplog):
    """Files elsewhere are told of, as a root is meant."""
    write_fashion(tmp_path / "data" / "fashion_mnist", train=20)
    write_fashion(tmp_path / "root", train=30)
    assert load("fashion_mnist", tmp_path / "root").num_train == 30
    assert not caplog.records
    assert load("fashion_mnist", tmp_path / "nowhere").num_train == 20
    said = f"dataset.root={tmp_path / 'nowhere'} does not hold the files of fashion_mnist; those in {tmp_path / 'data'}"
    assert [record.getMessage() for record in caplog.records] == [f"{said}/fashion_mnist are used"]


def test_idx_of_any_rank(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "file").write_bytes(idx_bytes(array))
    np.testing.assert_array_equal(read_idx(tmp_path / "file"), array)


@needs_fashion
def test_fashion_mnist_from_the_system_is_the_published_data():
    data = DATASETS.build({"name": "fashion_mnist"}).load()
    assert (len(data), data.num_train, data.classes) == (70_000, 60_000, 10)
    np.testing.assert_array_equal(np.bincount(data.y), [7000] * 10)
    np.testing.assert_array_equal(np.bincount(data.y[:60_000]), [6000] * 10)
    # The first ten training labels as printed in the data set's own documentation.
    np.testing.assert_array_equal(data.y[:10], [9, 0, 0, 3, 0, 2, 7, 2, 5, 5])
    levels, weights = np.arange(256) / data.scale, np.bincount(data.x[:60_000].ravel(), minlength=256)
    mean = np.average(levels, weights=weights)
    assert data.mean == (pytest.approx(mean, abs=5e-5),)
    assert data.std == (pytest.approx(np.sqrt(np.average((levels - mean) ** 2, weights=weights)), abs=5e-5),)


@pytest.mark.slow
@needs_fashion
@pytest.mark.parametrize("prepared", [False, True], ids=["from the system's files", "prepared"])
def test_fashion_mnist_is_on_the_device_in_under_a_second(prepared):
    """Unpacked, checked and cached, or mapped from the cache; divided among 100 clients; the first batch drawn."""
    from fedbench.data.federation import Federation  # torch is imported before the clock starts

    source, homo = DATASETS.build({"name": "fashion_mnist"}), Homogeneous(num_clients=100)
    if prepared:
        source.load()
    start = time.process_time()  # so that other processes do not count
    data = source.load()
    federation = Federation(data, make_partition(homo, data, Protocol(), 0))
    x, _ = federation.gather(federation.indices("train", 0)[:32])
    assert time.process_time() - start < 1
    assert x.shape == (32, 1, 28, 28)


def test_a_missing_data_set_says_where_it_was_looked_for_and_what_fetches_it(tmp_path, monkeypatch):
    monkeypatch.setattr(FashionMnist, "system", (str(tmp_path / "system"),))
    source = file_source("fashion_mnist", tmp_path / "root")
    with pytest.raises(DataMissing) as caught:
        source.load()
    message = str(caught.value)
    for place in ("root", "data", "root/FashionMNIST/raw", "data/fashion_mnist", "system"):
        assert str(tmp_path / place) in message
    assert "python -m fedbench prepare fashion_mnist" in message
    assert "dataset.download=true" in message
    assert "apt install dataset-fashion-mnist" in message
    assert "\n" not in message
    state = source.state()
    assert not state.ready
    assert str(tmp_path / "root") in state.looked
    write_fashion(tmp_path / "system")
    assert source.state().ready
    assert source.state().where == str(tmp_path / "system")


def test_three_of_four_files_are_not_a_data_set(tmp_path, monkeypatch):
    monkeypatch.setattr(FashionMnist, "system", ())
    write_fashion(tmp_path / "root")
    (tmp_path / "root" / f"{MNIST_STEMS[2]}-ubyte.gz").unlink()
    with pytest.raises(DataMissing):
        load("fashion_mnist", tmp_path / "root")


def test_mnist_and_fashion_mnist_are_not_taken_for_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "root"
    arrays = real_formats.write_fashion(folder)
    labels = arrays[1].copy()
    for name, first in (
        ("mnist", (9, 0, 0, 3, 0, 2, 7, 2, 5, 5)),
        ("fashion_mnist", (5, 0, 4, 1, 9, 2, 1, 3, 1, 4)),
    ):
        labels[:10] = first
        (folder / "train-labels-idx1-ubyte.gz").write_bytes(idx_bytes(labels))
        with pytest.raises(DataCorrupt, match=f"not {name}"):
            load(name, folder)


def test_emnist_is_upright(tmp_path: Path) -> None:
    arrays = real_formats.write_emnist(tmp_path / "EMNIST" / "gzip")
    data = load("emnist", tmp_path)
    assert (data.shape, data.classes, data.num_train, len(data)) == ((1, 28, 28), 62, 130, 192)
    np.testing.assert_array_equal(data.y, np.concatenate([arrays[1], arrays[3]]))
    assert data.x[3, 0, 20, 5] == arrays[0][3, 5, 20], "files hold columns where rows belong"
    np.testing.assert_array_equal(data.x[130:, 0], arrays[2].transpose(0, 2, 1))
