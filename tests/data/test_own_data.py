"""dataset=npz and dataset=images: shapes, labels, test splits, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedbench
from fedbench.core.errors import DataCorrupt, DataMissing
from fedbench.data.datasets.own import ImageFolder, Npz

Y = np.repeat(["cat", "dog"], 10)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))


def saved(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.parametrize(
    ("shape", "read"),
    [((20, 6), (1, 1, 6)), ((20, 4, 5), (1, 4, 5)), ((20, 4, 5, 3), (3, 4, 5)), ((20, 3, 4, 5), (3, 4, 5))],
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
        ({"x": np.full((9, 2), np.nan), "y": np.zeros(9)}, "finite"),
        (
            {"x": np.zeros((3, 2)), "y": np.zeros(3), "x_test": np.zeros((1, 4)), "y_test": np.zeros(1)},
            "dimension",
        ),
    ],
)
def test_npz_refusals(arrays: dict[str, np.ndarray], reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match=reason):
        Npz(path=saved(tmp_path / "bad.npz", **arrays)).load()


def test_no_file(tmp_path: Path) -> None:
    for path, reason in (
        (None, "set dataset.path to your data"),
        (tmp_path / "none.npz", r"nothing at .*none\.npz"),
    ):
        with pytest.raises(DataMissing, match=f"dataset=npz: .*{reason}$"):
            Npz(path=path and str(path)).load()
    (tmp_path / "text.npz").write_text("x,y")
    with pytest.raises(DataCorrupt, match=r"no .npz of arrays"):
        Npz(path=str(tmp_path / "text.npz")).load()


def test_other_samples_are_another_run(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    y = np.arange(60) % 3
    chosen = ("dataset=npz", "method=local", "partition=homo", "partition.num_clients=2", "protocol.rounds=1")
    first = fedbench.run(*chosen, f"dataset.path={saved(tmp_path / 'a.npz', x=x, y=y)}", runs_dir=tmp_path)
    second = fedbench.run(*chosen, f"dataset.path={saved(tmp_path / 'a.npz', x=x + 1, y=y)}", runs_dir=tmp_path)
    assert first.row["dataset"] == second.row["dataset"] == "npz-a"
    assert first.row["key"] == second.row["key"]
    assert first.folder != second.folder


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
    for image, label in zip(data.x, data.y, strict=True):
        assert (image[0] == 50 * label).all()


def test_image_folders_with_a_test_split(tmp_path: Path) -> None:
    drawn(tmp_path / "train", ("cat", "dog"), 3)
    drawn(tmp_path / "test", ("dog",), 2)
    data = ImageFolder(path=str(tmp_path)).load()
    assert (data.num_train, list(data.y[6:])) == (6, [1, 1])
    drawn(tmp_path / "train", ("eel",), 1)
    assert ImageFolder(path=str(tmp_path)).load().classes == 3  # the cache knows of a new file


def test_image_folder_without_images(tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match="a folder for each class"):
        ImageFolder(path=str(tmp_path)).load()
