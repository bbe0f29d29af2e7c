"""Data sets: real formats in, checked arrays out; damaged files, missing files and damaged caches."""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedbench.config.schema import TestConfig as Protocol
from fedbench.core import cache
from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing, FedbenchError, UnknownName
from fedbench.data.dataset import Dataset, reduced, spread
from fedbench.data.datasets import DATASETS
from fedbench.data.datasets.mnist import FashionMnist
from fedbench.data.formats.idx import STEMS, read_idx
from fedbench.data.formats.pickles import read_pickle
from fedbench.data.partitions.homo import Homogeneous
from fedbench.data.prepare import parse_request
from fedbench.data.split import make_partition
from tests.helpers.real_formats import idx_bytes, images, python2_batch, write_cifar, write_fashion

CONF = Path(__file__).parents[2] / "conf"
SYSTEM = Path("/usr/share/datasets/fashion-mnist")
needs_fashion = pytest.mark.skipif(
    not SYSTEM.is_dir(), reason="needs the Debian package dataset-fashion-mnist"
)


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """Every test has a cache and a data folder of its own."""
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "data"))


# --- idx


def fashion(root, **options):
    return DATASETS.build({"name": "fashion_mnist", "root": str(root), "partial": True, **options})


@pytest.mark.parametrize("folder", ["", "fashion_mnist", "FashionMNIST/raw"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_fashion_mnist_reads_idx_files_wherever_they_lie(tmp_path, folder, suffix):
    compress = gzip.compress if suffix else bytes
    train_x, train_y, test_x, test_y = write_fashion(tmp_path / "root" / folder, 30, 12, compress, suffix)
    for _ in ("parsed", "from the cache"):
        data = fashion(tmp_path / "root").load()
        assert data.num_train == 30
        assert data.shape == (1, 28, 28)
        assert data.x.dtype == np.uint8
        np.testing.assert_array_equal(data.x[:30, 0], train_x)
        np.testing.assert_array_equal(data.x[30:, 0], test_x)
        np.testing.assert_array_equal(data.y, np.concatenate([train_y, test_y]))


def test_the_root_of_the_config_comes_before_the_environment(tmp_path):
    write_fashion(tmp_path / "data" / "fashion_mnist", train=20)
    write_fashion(tmp_path / "root", train=30)
    assert fashion(tmp_path / "root").load().num_train == 30
    assert fashion(tmp_path / "nowhere").load().num_train == 20


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


# --- missing and downloaded


def test_a_missing_data_set_says_where_it_was_looked_for_and_what_fetches_it(tmp_path, monkeypatch):
    monkeypatch.setattr(FashionMnist, "system", (str(tmp_path / "system"),))
    source = fashion(tmp_path / "root")
    with pytest.raises(DataMissing) as caught:
        source.load()
    message = str(caught.value)
    for place in ("root", "data", "root/FashionMNIST/raw", "data/fashion_mnist", "system"):
        assert str(tmp_path / place) in message
    assert "python -m fedbench.prepare fashion_mnist" in message
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
    (tmp_path / "root" / f"{STEMS[2]}-ubyte.gz").unlink()
    with pytest.raises(DataMissing):
        fashion(tmp_path / "root").load()


# --- CIFAR's pickles


def cifar(root):
    return DATASETS.build({"name": "cifar10", "root": str(root), "partial": True})


def python3_batch(data, labels):
    return pickle.dumps({b"data": data, b"labels": labels, b"filenames": [b"a.png"]}, protocol=2)


@pytest.mark.parametrize("write", [python2_batch, python3_batch])
def test_cifar10_reads_batches_as_they_are_published(tmp_path, write):
    content = write_cifar(tmp_path / "root", write=write)
    data = cifar(tmp_path / "root").load()
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
        b"c_codecs\nencode\n(Vx\nVbz2\ntR.",
        b"cnumpy\nndarray\n(I1\ntR.",  # an array over memory that the file names
        b"cnumpy\nndarray\n)\x81.",
        b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.",  # pointers
        b"cnumpy\ndtype\n(S'V8'\nI0\nI1\ntR.",
        b"c_codecs\nencode\n(NI1\ntb.",  # sets a function's attributes
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(I0\ntS'b'\ntR.",
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


DOUBLING = b")" + b"2\x86" * 60  # a tuple of 2^60 empty ones, in 121 bytes


@pytest.mark.parametrize(
    "evil",
    [
        b"\x80\x02}%sK\x01s.",  # {doubling: 1}, item by item
        b"\x80\x02}(%sK\x01u.",  # several at once
        b"\x80\x02(%sK\x01d.",
        b"\x80\x04\x8f(%s\x90.",  # a set
        b"\x80\x04(%s\x91.",
        b"\x80\x02cnumpy\ndtype\n%s\x85R.",  # where a message would print it
        b"\x80\x02c_codecs\nencode\nVx\n%s\x86R.",
    ],
)
def test_a_tuple_that_takes_forever_to_hash_is_refused_at_once(tmp_path, evil):
    path = tmp_path / "batch"
    path.write_bytes(evil % DOUBLING)
    begin = time.monotonic()
    with pytest.raises(DataCorrupt) as refused:
        read_pickle(path)
    assert time.monotonic() - begin < 1
    assert "\n" not in str(refused.value)


def test_arrays_keep_their_order_and_must_fill_their_shape(tmp_path):
    x = np.arange(12, dtype=np.uint8).reshape(3, 4)
    path = tmp_path / "batch"
    for array in (x, np.asfortranarray(x)):
        path.write_bytes(pickle.dumps({"data": array}, protocol=2))
        np.testing.assert_array_equal(read_pickle(path)["data"], array)
    path.write_bytes(pickle.dumps({"data": x}, protocol=2).replace(b"K\x03K\x04", b"K\x03K\x05"))
    with pytest.raises(DataCorrupt, match="cannot reshape"):
        read_pickle(path)


# --- digits and synthetic


def test_digits_has_a_fixed_stratified_test_split():
    from sklearn.datasets import load_digits

    data = DATASETS.build({"name": "digits"}).load()
    shipped = load_digits()
    totals = np.bincount(shipped.target)
    np.testing.assert_array_equal(np.bincount(data.y), totals)
    np.testing.assert_array_equal(np.bincount(data.y[data.num_train :]), totals // 5)
    ours = sorted((int(label), image.tobytes()) for label, image in zip(data.y, data.x[:, 0], strict=True))
    theirs = shipped.images.astype(np.uint8)
    assert ours == sorted((int(c), image.tobytes()) for c, image in zip(shipped.target, theirs, strict=True))
    assert data.x.max() == data.scale == 16
    pixels = data.x[: data.num_train] / data.scale
    assert data.mean == (pytest.approx(pixels.mean(), abs=5e-5),)
    assert data.std == (pytest.approx(pixels.std(), abs=5e-5),)
    assert DATASETS.build({"name": "digits"}).load().fingerprint == data.fingerprint


def synthetic(**options):
    return DATASETS.build({"name": "synthetic", **options}).load()


def nearest_mean_accuracy(data):
    """Accuracy of the classifier that knows only each class's mean training image."""
    x, cut = data.x.reshape(len(data), -1).astype(float), data.num_train
    means = np.stack([x[:cut][data.y[:cut] == label].mean(0) for label in range(data.classes)])
    distance = ((x[cut:, None] - means) ** 2).sum(2)
    return (distance.argmin(1) == data.y[cut:]).mean()


def test_synthetic_is_what_was_asked_for_and_a_function_of_its_seed():
    options = {"classes": 7, "channels": 3, "size": 12, "train": 70, "test": 21}
    data = synthetic(**options)
    assert (data.shape, len(data), data.num_train, data.classes) == ((3, 12, 12), 91, 70, 7)
    np.testing.assert_array_equal(np.bincount(data.y[:70]), [10] * 7)
    np.testing.assert_array_equal(np.bincount(data.y[70:]), [3] * 7)
    np.testing.assert_array_equal(synthetic(**options).x, data.x)
    assert (synthetic(**options, seed=1).x != data.x).mean() > 0.9
    pixels = data.x[:70] / 255
    np.testing.assert_allclose(data.mean, pixels.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(data.std, pixels.std((0, 2, 3)), rtol=1e-12)


def test_difficulty_goes_from_trivial_to_hopeless():
    easy, medium, hard = (nearest_mean_accuracy(synthetic(difficulty=d)) for d in (0.5, 5, 1000))
    assert easy > 0.85
    assert hard < 0.2
    assert hard + 0.1 < medium < easy - 0.1


IMPOSSIBLE = {
    "synthetic": ["classes=0", "size=0", "train=0", "difficulty=-1", "limit=0"],
    "domainnet": ["ratio=0", "ratio=1.1", "num_classes=1", "size=0", "classes=[one]"],
    "cub": ["size=0", "words=0"],
}


@pytest.mark.parametrize("request_", [f"{name} {bad}" for name in IMPOSSIBLE for bad in IMPOSSIBLE[name]])
def test_impossible_options_are_refused(request_):
    with pytest.raises(ConfigError):
        DATASETS.build(*parse_request(request_.split()))


# --- the container


def arrays(**changes):
    fields = {
        "name": "toy",
        "x": images(6, (1, 2, 2)),
        "y": np.array([0, 1, 2, 0, 1, 2]),
        "num_train": 4,
        "classes": 3,
        "mean": (0.5,),
        "std": (0.5,),
    }
    return fields | changes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"x": images(6, (2, 2))}, "C, H, W"),
        ({"x": images(0, (1, 2, 2))}, "non-empty"),
        ({"x": images(6, (1, 2, 2)).astype(np.float64)}, "float64"),
        ({"x": np.full((6, 1, 2, 2), np.nan, np.float32)}, "not finite"),
        ({"y": np.zeros(5, np.int64)}, "labels must be"),
        ({"y": np.zeros(6, np.int32)}, "int32"),
        ({"y": np.array([0, 1, 2, 3, 0, 0])}, "0..2"),
        ({"y": np.array([0, 1, 2, -1, 0, 0])}, "-1..2"),
        ({"num_train": 7}, "num_train"),
        ({"num_train": 0}, "num_train"),
        ({"mean": (0.5, 0.5)}, "need 1 values"),
        ({"std": (0.0,)}, "positive"),
        ({"mean": (float("nan"),)}, "finite"),
        ({"domain": np.zeros(3, np.int64)}, "domains"),
        ({"text": np.zeros((6, 2), np.int32), "vocabulary": ("a",)}, "captions, words"),
        ({"text": np.zeros((6, 2, 3), np.int64), "vocabulary": ("a",)}, "int64"),
        ({"text": np.ones((6, 2, 3), np.int32), "vocabulary": ("a",)}, "tokens span 1..1"),
        ({"text": np.full((6, 2, 3), -1, np.int32), "vocabulary": ("a",)}, "tokens span -1"),
    ],
)
def test_arrays_that_cannot_be_right_are_refused(changes, reason):
    with pytest.raises(DataCorrupt, match=reason):
        Dataset(**arrays(**changes))


def test_the_fingerprint_tells_data_sets_apart():
    base = Dataset(**arrays())
    others = [
        {"name": "other"},
        {"x": images(6, (1, 2, 2), 1)},
        {"y": np.array([0, 1, 2, 0, 2, 1])},
        {"num_train": 5},
        {"text": np.zeros((6, 1, 1), np.int32), "vocabulary": ("a", "b")},
        {"text": np.ones((6, 1, 1), np.int32), "vocabulary": ("a", "b")},
    ]
    prints = {base.fingerprint, *(Dataset(**arrays(**change)).fingerprint for change in others)}
    assert len(prints) == 7
    assert Dataset(**arrays()).fingerprint == base.fingerprint


def test_limit_keeps_evenly_spread_samples_of_both_splits():
    np.testing.assert_array_equal(spread(10, 4), [0, 2, 5, 7])
    x = np.arange(15, dtype=np.uint8).reshape(15, 1, 1, 1)
    text = np.arange(15, dtype=np.int32).reshape(15, 1, 1)
    options = {"domain": np.arange(15), "text": text, "vocabulary": tuple(map(str, range(15)))}
    data = Dataset("toy", x, np.arange(15) % 3, 10, 3, (0.5,), (0.5,), **options)
    small = reduced(data, 4)
    np.testing.assert_array_equal(small.x.ravel(), [0, 2, 5, 7, 10, 12])
    np.testing.assert_array_equal(small.y, data.y[[0, 2, 5, 7, 10, 12]])
    np.testing.assert_array_equal(small.domain, [0, 2, 5, 7, 10, 12])
    np.testing.assert_array_equal(small.text.ravel(), [0, 2, 5, 7, 10, 12])
    assert small.num_train == 4
    assert reduced(data, 99) is data
    source = DATASETS.build({"name": "digits", "limit": 100})
    assert source.load().num_train == 100
    assert source.label == "digits-100"


# --- the cache


def build_counter(values):
    calls = []

    def build():
        calls.append(1)
        return {"x": values, "y": np.arange(len(values))}

    return build, calls


def test_the_cache_builds_once_and_maps_after():
    values = images(50, (3,))
    build, calls = build_counter(values)
    for _ in range(3):
        found = cache.cached_arrays("toy", build)
        np.testing.assert_array_equal(found["x"], values)
        assert isinstance(found["x"], np.memmap)
        assert not found["x"].flags.writeable
    assert len(calls) == 1


@pytest.mark.parametrize(
    "kind", ["cut", "altered", "no header", "missing array", "bad meta", "wrong meta", "no meta"]
)
def test_a_damaged_cache_entry_is_rebuilt(tmp_path, kind):
    values = images(50, (3,))
    build, calls = build_counter(values)
    cache.cached_arrays("toy", build)
    folder = tmp_path / "cache" / "prepared" / "toy"
    file, meta = folder / "x.npy", folder / "checksums.json"
    content = bytearray(file.read_bytes())
    if kind == "cut":
        file.write_bytes(bytes(content[:-10]))
    elif kind == "altered":
        content[-5] ^= 1
        file.write_bytes(bytes(content))
    elif kind == "no header":
        file.write_bytes(b"")
    elif kind == "missing array":
        file.unlink()
    elif kind == "no meta":
        meta.unlink()
    else:
        meta.write_text("{" if kind == "bad meta" else "[1, 2]")
    np.testing.assert_array_equal(cache.cached_arrays("toy", build)["x"], values)
    assert len(calls) == 2
    assert isinstance(cache.cached_arrays("toy", build)["x"], np.memmap)
    assert len(calls) == 2
    assert [path.name for path in folder.parent.iterdir()] == ["toy"]


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "file"))
    values = images(5, (3,))
    build, calls = build_counter(values)
    for _ in range(2):
        np.testing.assert_array_equal(cache.cached_arrays("toy", build)["x"], values)
    assert len(calls) == 2


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    build, _ = build_counter(images(5, (3,)))
    monkeypatch.setattr(np, "save", full)
    assert len(cache.cached_arrays("toy", build)["x"]) == 5
    assert list((tmp_path / "cache" / "prepared").iterdir()) == []


def test_the_cache_follows_the_source_files(tmp_path):
    write_fashion(tmp_path / "root", train=30)
    assert fashion(tmp_path / "root").load().num_train == 30
    shutil.rmtree(tmp_path / "root")
    write_fashion(tmp_path / "root", train=31)
    assert fashion(tmp_path / "root").load().num_train == 31


def test_a_build_that_fails_stores_nothing(tmp_path):
    def build():
        raise DataCorrupt("bad")

    with pytest.raises(DataCorrupt):
        cache.cached_arrays("toy", build)
    assert not (tmp_path / "cache" / "prepared" / "toy").exists()


# --- configuration


def test_unknown_names_and_keys_come_with_the_nearest():
    with pytest.raises(UnknownName, match="fashion_mnist"):
        DATASETS.build({"name": "fashion-mnist"})
    with pytest.raises(UnknownName, match="root"):
        DATASETS.build({"name": "fashion_mnist", "rot": "x"})
    with pytest.raises(FedbenchError):
        DATASETS.build({"name": "digits", "limit": "many"})


def test_no_data_set_but_a_download_imports_torch():
    code = (
        "import sys; from fedbench.data.datasets import DATASETS; import fedbench.data.split\n"
        "[DATASETS.build({'name': n}).state() for n in DATASETS]; DATASETS.build({'name': 'synthetic'}).load()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
