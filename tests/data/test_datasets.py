"""Data sets as arrays: what may be in them, what tells them apart, those that need no file, requests."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedbench
from fedbench.cli import program
from fedbench.cli.prepare import parse_request
from fedbench.cli.runs import distinct_names, find_folders
from fedbench.core.cache import source_key
from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing, FedbenchError, UnknownName, warn_once
from fedbench.data.dataset import Dataset, reduced, spread
from fedbench.data.datasets import DATASETS, own
from fedbench.data.datasets.own import ImageFolder, Npz
from fedbench.data.datasets.synthetic import Captioned, Synthetic
from fedbench.runs.run import Run
from tests.data.toys import build
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
    "synthetic": ["classes=1", "size=0", "train=0", "difficulty=-1", "limit=0"],
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
        ({"mean": (0.5, 0.5)}, "each of 1 channels, got 2 and 1"),
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


def test_limit_keeps_the_classes_of_labels_that_go_round():
    """Every fifth of 0, 1, ..., 9, 0, 1, ... is 0 or 5; sorted by label it is the first and sixth of each ten."""
    x = np.arange(120, dtype=np.uint8).reshape(120, 1, 1, 1)
    data = Dataset("toy", x, np.arange(120) % 10, 100, 10, (0.5,), (0.5,))
    small = reduced(data, 20)
    assert small.num_train == 20
    # Of the test samples in the order 100, 110, 101, 111, ... every fifth: 100, 112, 105, 117.
    np.testing.assert_array_equal(small.x.ravel(), [*range(10), *range(50, 60), 100, 105, 112, 117])
    np.testing.assert_array_equal(small.y, small.x.ravel() % 10)
    fewer = reduced(data, 5)  # than classes: as evenly spread as ever
    np.testing.assert_array_equal(fewer.x.ravel(), [0, 20, 40, 60, 80, 100])
    y = np.arange(120) // 25
    y[75] = 0  # so that class 3 is lost, one of four by chance
    chance = reduced(Dataset("toy", x, y, 100, 5, (0.5,), (0.5,)), 4)
    np.testing.assert_array_equal(chance.x.ravel(), [0, 25, 50, 75, 100])


def test_unknown_names_and_keys_come_with_the_nearest():
    with pytest.raises(UnknownName, match="fashion_mnist"):
        DATASETS.build({"name": "fashion-mnist"})
    with pytest.raises(UnknownName, match="root"):
        DATASETS.build({"name": "fashion_mnist", "rot": "x"})
    with pytest.raises(FedbenchError):
        DATASETS.build({"name": "digits", "limit": "many"})


@pytest.mark.slow
def test_no_data_set_but_a_download_imports_torch():
    code = (
        "import sys; from fedbench.data.datasets import DATASETS; import fedbench.data.partition\n"
        "[DATASETS.build({'name': n}).state() for n in DATASETS]; DATASETS.build({'name': 'synthetic'}).load()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


Y = np.repeat(["cat", "dog"], 10)
X = (np.arange(40).reshape(20, 2) % 10 + np.arange(20)[:, None] / 100).astype(np.float32)  # no two alike


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))


def saved(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.parametrize(
    ("shape", "read"),
    [
        ((20, 6), (1, 1, 6)),
        ((20, 5, 5), (1, 5, 5)),
        ((20, 4, 5), (4, 1, 5)),
        ((20, 4, 5, 3), (3, 4, 5)),
        ((20, 3, 4, 5), (3, 4, 5)),
    ],
)
def test_npz_shapes(shape: tuple[int, ...], read: tuple[int, ...], tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    data = Npz(path=saved(tmp_path / "mine.npz", x=x, y=Y)).load()
    assert data.shape == read
    assert data.x.dtype == np.float32
    assert (data.classes, data.num_train, len(data)) == (2, 16, 20)
    assert list(np.bincount(data.y[16:])) == [2, 2]  # a fifth of each class
    seen = data.x[:16].transpose(1, 0, 2, 3).reshape(read[0], -1)
    np.testing.assert_allclose(data.mean, seen.mean(1), rtol=1e-5)
    np.testing.assert_allclose(data.std, seen.std(1), rtol=1e-5)


def test_npz_channels_last_keep_their_pixels(tmp_path: Path) -> None:
    x = np.arange(20 * 4 * 5 * 3).reshape(20, 4, 5, 3).astype(np.uint8)
    data = Npz(path=saved(tmp_path / "a.npz", x=x, y=Y, x_test=x[:5], y_test=Y[:5])).load()
    assert (data.num_train, len(data), data.scale) == (20, 25, 255)
    np.testing.assert_array_equal(data.x[:20], x.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.y[20:], 0)
    np.testing.assert_allclose(data.mean, x.mean((0, 1, 2)) / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": np.zeros((3, 2))}, "expected x and y"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2)}, "as long as the samples"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3), "x_test": np.zeros((1, 2))}, "x, y, x_test and y_test"),
        ({"x": np.array(["a", "b"]), "y": np.zeros(2)}, "must be numbers"),
        ({"x": np.zeros(3), "y": np.zeros(3)}, r"got \[3\]"),
        ({"x": np.full((9, 2), np.nan), "y": np.zeros(9)}, "9 of 9 training samples, the first at 0, hold nan"),
        (
            {"x": np.zeros((3, 2)), "y": np.zeros(3), "x_test": np.zeros((1, 4)), "y_test": np.zeros(1)},
            r"have shape \[C, H, W\] = \[1, 1, 2\], test samples have .*\[1, 1, 4\]",
        ),
        ({"x": X, "y": np.where(Y == "cat", np.nan, 1.0)}, r"10 of 20 training labels, the first nan at 0, are not"),
        ({"x": X, "y": np.linspace(0, 1, 20)}, "18 of 20 training labels, the first 0.0526316 at 1"),
        ({"x": X, "y": Y, "x_test": X, "y_test": np.arange(20) % 2}, "training labels are words, test labels numbers"),
        ({"x": X, "y": Y, "x_test": X.astype(np.uint8), "y_test": Y}, "floats, test samples are uint8, pixels up to"),
        ({"x": X, "y": Y, "x_test": np.where(X > 8, np.inf, X), "y_test": Y}, "test samples, the first at .* hold nan"),
        ({"x": X.astype(np.float64) + 1e300, "y": Y}, "20 of 20 training samples"),
        ({"x": X, "y": np.arange(20, dtype=np.uint64) + 2**63}, "do not fit into int64"),
        ({"x": X, "y": np.zeros(20, dtype="datetime64[s]")}, "numbers or words, got datetime64"),
        ({"x": np.zeros((2, 0)), "y": np.zeros(2)}, "must not be empty"),
        ({"x": X, "y": Y, "x_test": X[:0], "y_test": Y[:0]}, "the test split is empty"),
        ({"x": X, "y": np.eye(20)}, r"as long as the samples, .*; of one-hot labels take y\.argmax\(1\)"),
        ({"x": X, "y": (np.arange(20) % 2)[:, None]}, r"as long as the samples, .*; of a column take y\.ravel\(\)"),
        ({"x": X, "y": np.zeros(20, dtype=int)}, "all labels are 0, so any model is right"),
        ({"x": X, "y": Y == "cat", "x_test": X, "y_test": np.arange(20) % 2}, "labels are booleans, test labels numb"),
    ],
)
def test_npz_refusals(arrays: dict[str, np.ndarray], reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match=reason):
        Npz(path=saved(tmp_path / "bad.npz", **arrays)).load()


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_mean_and_deviation_of_own_data_are_the_configs(kind: type, tmp_path: Path) -> None:
    path = saved(tmp_path / "own.npz", x=(X * 20).astype(kind), y=Y)
    given = {"name": "npz", "path": path, "mean": [0.25], "std": [0.5]}
    source = DATASETS.build(given)
    assert (source.load().mean, source.load().std) == ((0.25,), (0.5,))
    assert hash(source) == hash(DATASETS.build(given))
    with pytest.raises(DataCorrupt, match=r"a value for each of 1 channels, got 2 and 1$"):
        DATASETS.build({**given, "mean": [0.25, 0.5]}).load()
    larger = DATASETS.build({**given, "mean": [125.3]})
    if kind is np.uint8:
        with pytest.raises(DataCorrupt, match=r"dataset.mean=\[125.3\] and .* pixels divided by 255; divide what is"):
            larger.load()
    else:
        assert larger.load().mean == (125.3,)


DEEP = np.arange(1.0, 2561).reshape(20, 8, 8, 2) / 999


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"y": np.arange(20) % 2.0}, "training labels are floats; as they are whole they were taken for 2 classes"),
        ({"y": np.arange(20), "x_test": X[:10] + 0.5, "y_test": np.arange(10)}, "30 samples have 20 differ"),
        ({"y_test": np.repeat(["cat", "eel"], 10)}, "no training sample has a label that test samples have: eel"),
        ({"y": np.where(np.arange(20) % 4, Y, "nan")}, r"labels \['nan'\] were taken for classes"),
        ({"x": DEEP, "x_test": 3 - DEEP}, r"samples \[8, 8, 2\] were .*: 8 channels"),
        (
            {"x_test": X * 255 + 1},
            r"training samples span 0 to 9\.19, test samples 1 to 2344.*: other scales, taken as",
        ),
        ({"x_test": X}, r"20 of 40 samples are copies of others, 20 test samples are of training samples"),
        ({"x": np.concatenate([X[:1], X[:-1]])}, r"1 of 40 samples are copies of others, 0 test samples are of train"),
    ],
)
def test_npz_that_may_be_meant_is_taken_with_a_word_each_time(
    changed: dict[str, np.ndarray], line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = {"x": X, "y": Y, "x_test": X + 0.5, "y_test": Y, **changed}
    if changed.get("y") is not None and "y_test" not in changed:
        arrays["y_test"] = arrays["y"].astype(np.int64) if arrays["y"].dtype.kind == "f" else arrays["y"]
    path = saved(tmp_path / "odd.npz", **arrays)
    for _ in range(2):  # the second time out of the cache
        warn_once.cache_clear()  # as another process
        caplog.clear()
        Npz(path=path).load()
        (said,) = (text for text in map(logging.LogRecord.getMessage, caplog.records) if "are the labels" not in text)
        assert re.search(line, said)


@pytest.mark.parametrize("rare", [1, 2, 3, 4, 5, 9, 10])
def test_a_class_of_two_samples_is_tested(rare: int, tmp_path: Path) -> None:
    """A fifth of fewer than five is none; a single sample is trained on."""
    x, y = np.random.default_rng(0).normal(size=(56 + rare, 5)), np.array([0] * 56 + [1] * rare)
    data = Npz(path=saved(tmp_path / "rare.npz", x=x, y=y)).load()
    tested = np.bincount(data.y[data.num_train :], minlength=2)
    assert tested.tolist() == [11, {1: 0, 9: 1, 10: 2}.get(rare, 1)]


def test_no_file(tmp_path: Path) -> None:
    for path, reason in (
        (None, "set dataset.path to your data"),
        (tmp_path / "none.npz", f"nothing at {tmp_path / 'none.npz'}"),
    ):
        with pytest.raises(DataMissing, match=f"dataset=npz: .*{reason}$"):
            Npz(path=path and str(path)).load()
    (tmp_path / "text.npz").write_text("x,y")
    np.savez(tmp_path / "objects.npz", x=np.zeros((2, 3)), y=np.array(["a", "b"], dtype=object))
    for name in ("text", "objects"):
        with pytest.raises(DataCorrupt, match=r"not a .npz of arrays.*Python objects.*astype"):
            Npz(path=str(tmp_path / f"{name}.npz")).load()


def test_other_samples_are_another_run(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    y = np.arange(60) % 3
    chosen = ("dataset=npz", "method=local", "partition=homo", "partition.num_clients=2", "protocol.rounds=1")
    first = fedbench.run(*chosen, f"dataset.path={saved(tmp_path / 'a.npz', x=x, y=y)}", runs_dir=tmp_path)
    second = fedbench.run(*chosen, f"dataset.path={saved(tmp_path / 'a.npz', x=x + 1, y=y)}", runs_dir=tmp_path)
    assert first.row["dataset"] == second.row["dataset"] == "npz-a"
    assert first.row["key"] == second.row["key"]
    assert first.folder != second.folder


@pytest.mark.slow
def test_two_files_of_one_name_stay_two_in_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the table on the terminal, in the files of the sweep and as lines of a figure."""
    monkeypatch.chdir(tmp_path)
    for name, shift in (("A", 0), ("B", 3)):
        Path(name).mkdir()
        saved(Path(name) / "d.npz", x=np.eye(6, dtype=np.float32)[np.arange(60) % 6] + shift, y=np.arange(60) % 3)
    common = ["dataset=npz", "partition=homo", "partition.num_clients=2", "protocol.rounds=1", "method=local"]
    sweep = ["-m", *common, "sweep.name=mine", "progress=none"]
    assert program.main([*sweep, "dataset.path=A/d.npz,B/d.npz", "seed=0,1"]) == 0
    said = capsys.readouterr().out
    assert [line.split("│")[2].strip() for line in said.splitlines() if "d.npz" in line] == ["2", "2"]
    folders, _ = find_folders(["runs"])
    names = distinct_names([Run(folder).row for folder in folders])
    assert len(folders) == 4
    assert len(set(names)) == 2
    assert program.main([*sweep, "dataset.path=A/d.npz", "seed=0,1"]) == 0
    assert "held another sweep" not in capsys.readouterr().out, "it holds the same runs, and more"
    Path("C").mkdir()
    saved(Path("C/d.npz"), x=np.eye(6, dtype=np.float32)[np.arange(60) % 6] - 1, y=np.arange(60) % 3)
    assert program.main([*sweep, "dataset.path=C/d.npz", "seed=0,1"]) == 0
    assert "held another sweep" in capsys.readouterr().out, "of other samples"


def drawn(folder: Path, names: tuple[str, ...], count: int) -> None:
    for value, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            Image.new("RGB", (10, 8), (50 * value, index, 7)).save(folder / name / f"{index}.png")


def test_image_folders(tmp_path: Path) -> None:
    drawn(tmp_path / "pets", ("cat", "dog"), 5)
    data = ImageFolder(path=str(tmp_path / "pets"), size=6).load()
    assert (data.shape, data.num_train, len(data), data.classes) == ((3, 6, 6), 8, 10, 2)
    assert data.name == "images-pets-6px"
    clipped = source_key("images-6-said2", ImageFolder().files(tmp_path / "pets"))  # what was kept of 16 bits before
    assert ImageFolder(path=str(tmp_path / "pets"), size=6).stamp != clipped
    for image, label in zip(data.x, data.y, strict=True):
        assert (image[0] == 50 * label).all()


def test_image_folders_with_a_test_split(tmp_path: Path) -> None:
    drawn(tmp_path / "train", ("cat", "dog"), 3)
    drawn(tmp_path / "test", ("dog",), 2)
    data = ImageFolder(path=str(tmp_path)).load()
    assert (data.num_train, list(data.y[6:])) == (6, [1, 1])
    drawn(tmp_path / "train", ("eel",), 1)
    assert ImageFolder(path=str(tmp_path)).load().classes == 3  # the cache knows of a new file


def test_what_of_an_image_folder_is_not_read_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else a class would vanish, or a folder of an editor be one, without a word."""
    for split in ("train", "test"):
        drawn(tmp_path / split, ("cat", "dog", ".ipynb_checkpoints"), 2)
    drawn(tmp_path, ("val", ".git"), 1)
    (tmp_path / "train" / "eel").mkdir()
    (tmp_path / "train" / "cat" / "8.gif").touch()
    (tmp_path / "train" / "cat" / "9.png").symlink_to("nowhere.png")
    drawn(tmp_path / "train" / "dog", ("sub",), 1)
    for name in ("cat/._0.png", ".DS_Store"):
        (tmp_path / "train" / name).write_bytes(b"no image")
    warn_once.cache_clear()
    data = ImageFolder(path=str(tmp_path)).load()
    assert (data.classes, data.num_train, len(data)) == (2, 4, 8)
    said = [record.getMessage().replace(str(tmp_path), "") for record in caplog.records]
    said = [line for line in said if "are copies of others" not in line]  # all are drawn alike
    suffixes = "(.jpg, .jpeg, .png)"
    assert said == [
        ": only train and test are read, not val",
        f"/train/cat: 8.gif and 1 more left out, no image {suffixes}",
        f"/train/dog: sub left out, no image {suffixes}",
        f"/train/eel holds no image {suffixes} and is no class",
        ": classes 0 to 1 are the labels cat, dog",
    ]


def test_a_large_class_is_looked_through_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file compared with each image takes half a minute for ten thousand of them."""
    drawn(tmp_path, ("cat",), 40)
    compared: list[object] = []
    equal = Path.__eq__
    monkeypatch.setattr(Path, "__eq__", lambda one, other: compared.append(other) or equal(one, other))
    assert not [*own._left_out(tmp_path)]
    assert len(compared) <= 80


def test_image_folder_without_images(tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match="a folder for each class"):
        ImageFolder(path=str(tmp_path)).load()


# Procedural pictures with captions: the same classes in two views, and a shift that parts them.


def likeness(source: Captioned) -> tuple[np.ndarray, np.ndarray]:
    """How alike every two classes are in pictures and in captions: correlations of their means, off the diagonal."""
    data = source.load()
    assert data.text is not None
    words = np.stack([np.bincount(data.text[data.y == c].ravel(), minlength=source.vocabulary) for c in range(12)])
    pixels = np.stack([data.x[data.y == c].mean(0).ravel() for c in range(12)])
    other = ~np.eye(12, dtype=bool)
    seen, read = (np.corrcoef(v - v.mean(0))[other] for v in (pixels, np.log1p(words.astype(float))))
    return seen, read


@pytest.mark.parametrize(("shift", "low", "high"), [(0.0, 0.5, 1.0), (1.0, -0.35, 0.35)])
def test_classes_that_look_alike_are_described_alike_until_the_views_shift(
    shift: float, low: float, high: float
) -> None:
    source = Captioned(classes=12, train=1200, test=12, difficulty=0.5, shift=shift, chatter=0.1, traits=4)
    assert low < np.corrcoef(*likeness(source))[0, 1] < high


def test_the_shift_leaves_the_pictures() -> None:
    near, far = (Captioned(train=40, test=20, shift=shift).load() for shift in (0.0, 0.5))
    assert np.array_equal(near.x, far.x)
    assert not np.array_equal(near.text, far.text)  # type: ignore[arg-type]


def test_a_draw_is_a_function_of_the_settings() -> None:
    one, again, other = (Captioned(train=40, test=20, seed=seed).load() for seed in (0, 0, 1))
    assert one.content == again.content != other.content
    assert one.shape == (3, 16, 16)
    assert one.text is not None
    assert one.text.shape == (60, 2, 8)
    assert one.text.min() >= 2
    assert len(one.vocabulary) == 200


def test_other_pictures_are_as_they_were() -> None:
    """The content of `synthetic`, which shares the code of fields and noise, does not change."""
    assert Synthetic(train=40, test=20).load().content == SYNTHETIC


SYNTHETIC = "b6c3efaa23ab"


def test_no_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="vocabulary"):
        Captioned(vocabulary=2)


# Partitions whose clients have some of the classes: pathological, folds, groups; as published.

CIFAR = np.full(10, 5000)  # training samples a class


# --- pathological


@pytest.mark.parametrize(("classes", "skew", "groups"), [(10, 2, 5), (100, 20, 5)])
def test_pathological_is_fedsac_s(classes, skew, groups):
    per_class = 50000 // classes
    counts = build("pathological", skew=skew).counts(np.full(classes, per_class))
    for client in range(10):
        first = skew * (client % groups)
        held = np.flatnonzero(counts[client])
        np.testing.assert_array_equal(held, np.arange(first, first + skew))
        assert (counts[client, held] == per_class // 2).all()  # two clients a block


# --- fold


@pytest.mark.parametrize("folds", [2, 5])
def test_folds_are_sosicfl_s(folds):
    counts = build("fold", folds=folds).counts(CIFAR)
    assert (counts.sum(1) == 500).all()  # nothing is left over
    np.testing.assert_array_equal(counts.sum(0), CIFAR)
    width, members = 10 // folds, 100 // folds
    for client in range(100):
        own = slice(client // members * width, (client // members + 1) * width)
        assert counts[client, own].sum() == 400  # 80 %
        assert np.ptp(counts[client, own]) <= 1
        others = np.delete(counts[client], np.arange(10)[own])
        assert np.ptp(others) <= 1


@pytest.mark.parametrize("folds", [11, 1])
def test_folds_need_classes_and_clients(folds):
    with pytest.raises(ConfigError):
        build("fold", folds=folds).counts(CIFAR)


# --- groups_s


def test_groups_are_fedrema_s():
    spec = build("groups_s", s=0.2)
    counts = spec.counts(np.full(10, 6000))
    assert counts.shape == (20, 10)
    assert (counts.sum(1) == 600).all()
    dominant = [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 0]]
    for client in range(20):
        expected = np.full(10, 12)  # 20 % of 600 over ten classes
        expected[dominant[client // 4]] += 160  # 80 % over three
        np.testing.assert_array_equal(counts[client], expected)


def test_groups_refuse_too_much_and_say_what_fits():
    stock = np.full(10, 144)  # digits
    with pytest.raises(ConfigError, match=r"partition\.size to at most") as error:
        build("groups_s").counts(stock)
    fits = int(str(error.value).split("at most ")[1].split(",")[0])
    build("groups_s", size=fits).counts(stock)
    with pytest.raises(ConfigError):
        build("groups_s", size=fits + 1).counts(stock)
    with pytest.raises(ConfigError, match="do not make 5 groups"):
        build("groups_s").counts(np.full(4, 1000))


# --- label_groups


def test_label_groups_of_the_measurement_study():
    """pFedSim, section 4.1: labels 0-4, 0-4, 2-6, 5-9 on exclusive subsets."""
    counts = build("label_groups").counts(CIFAR)
    assert (counts > 0).tolist() == [
        [c in run for c in range(10)] for run in (range(5), range(5), range(2, 7), range(5, 10))
    ]
    assert (counts.sum(0) == CIFAR).all()
    assert counts[:, 0].tolist() == [2500, 2500, 0, 0]
    assert sorted(counts[:3, 2]) == [1666, 1667, 1667]
    assert counts[:, 9].tolist() == [0, 0, 0, 5000]
    with pytest.raises(ConfigError, match="4 classes"):
        build("label_groups").counts(CIFAR[:4])
