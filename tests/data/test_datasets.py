"""Data sets as arrays: what may be in them, what tells them apart, those that need no file, requests."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fedbench.cli.prepare import parse_request
from fedbench.core.errors import ConfigError, DataCorrupt, FedbenchError, UnknownName
from fedbench.data.dataset import Dataset, reduced, spread
from fedbench.data.datasets import DATASETS
from tests.helpers.raw_files import images

pytestmark = pytest.mark.usefixtures("own_folders")


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


def test_unknown_names_and_keys_come_with_the_nearest():
    with pytest.raises(UnknownName, match="fashion_mnist"):
        DATASETS.build({"name": "fashion-mnist"})
    with pytest.raises(UnknownName, match="root"):
        DATASETS.build({"name": "fashion_mnist", "rot": "x"})
    with pytest.raises(FedbenchError):
        DATASETS.build({"name": "digits", "limit": "many"})


def test_no_data_set_but_a_download_imports_torch():
    code = (
        "import sys; from fedbench.data.datasets import DATASETS; import fedbench.data.partition\n"
        "[DATASETS.build({'name': n}).state() for n in DATASETS]; DATASETS.build({'name': 'synthetic'}).load()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
