"""MNIST and CIFAR as folders of PNG; other data under their names are refused by what images and labels they hold."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from fedbench.core.errors import DataCorrupt, DataMissing
from fedbench.data.datasets import DATASETS
from fedbench.data.files import content_of
from tests.data.toys import file_source
from tests.helpers.raw_files import images, write_image
from tests.helpers.real_formats import write_cifar

CLASSES = {
    "cifar10": ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
    "mnist": [*map(str, range(10))],
    "cifar100": [*map(str, range(100))],
}


@pytest.mark.usefixtures("own_folders")
@pytest.mark.parametrize(
    ("name", "size", "grey"), [("cifar10", 32, False), ("mnist", 28, True), ("cifar100", 32, False)]
)
def test_class_folders_are_read_and_said(
    name: str, size: int, grey: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = CLASSES[name]
    x = images(3 * len(names), (size, size) if grey else (size, size, 3), 0)
    for i, image in enumerate(x):
        split, label = ("test", i // 3) if i % 3 == 2 else ("train", i // 3)
        write_image(tmp_path / "own" / split / names[label] / f"{i:04}.png", image)
    source = file_source(name, tmp_path / "own")
    with caplog.at_level(logging.WARNING):
        data = source.load()
    assert f"{name} is read from class folders in {tmp_path / 'own'}" in caplog.text
    classes = len(names)
    assert (data.num_train, data.shape) == (2 * classes, (1 if grey else 3, size, size))
    assert data.y.tolist() == [*np.repeat(np.arange(classes), 2), *range(classes)]
    expected = x[2] if grey else x[2].transpose(2, 0, 1)
    np.testing.assert_array_equal(np.squeeze(data.x[2 * classes]), expected)
    if name == "cifar100":
        with pytest.raises(DataMissing, match="class folders of cifar100 do not contain its coarse labels"):
            file_source(name, tmp_path / "own", labels="coarse").load()
    (tmp_path / "own" / "test" / names[-1]).rename(tmp_path / "away")
    with pytest.raises(DataMissing, match=f"'{name}' is in none of"):
        file_source(name, tmp_path / "own").load()


@pytest.mark.usefixtures("own_folders")
def test_other_images_or_the_same_twice_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar(tmp_path / "root")
    partial = file_source("cifar10", tmp_path / "root").arrays()
    cifar = DATASETS.get("cifar10")
    monkeypatch.setattr(cifar, "published", (30, 6))
    monkeypatch.setattr(cifar, "content", content_of(partial)[0])
    whole = file_source("cifar10", tmp_path / "root", partial=False)
    assert len(whole.load()) == 36
    folder = tmp_path / "root" / "cifar-10-batches-py"
    original = (folder / "data_batch_2").read_bytes()
    (folder / "data_batch_2").write_bytes((folder / "data_batch_1").read_bytes())
    with pytest.raises(DataCorrupt, match="than cifar10 as published; 6 samples are there more than once; fetch it"):
        whole.load()
    (folder / "data_batch_2").write_bytes((folder / "data_batch_3").read_bytes())
    (folder / "data_batch_3").write_bytes(original)
    assert len(whole.load()) == 36  # in another order
    changed = bytearray(original)
    changed[len(changed) // 2] ^= 1
    (folder / "data_batch_3").write_bytes(changed)
    with pytest.raises(DataCorrupt, match=r"other images or labels than cifar10 as published; fetch it again"):
        whole.load()


@pytest.mark.parametrize("name", ["cifar10", "mnist", "fashion_mnist"])
def test_the_real_files_are_the_published_ones(name: str) -> None:
    source = DATASETS.build({"name": name})
    if not source.state().ready:
        pytest.skip(f"{name} is not on this machine")
    assert content_of(source.arrays()) == (source.content, 0)
