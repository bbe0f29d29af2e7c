"""CINIC-10, Tiny-ImageNet, DomainNet and CUB: folders of images, lists beside them, captions."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing, UnknownName, silent
from fedbench.data import formats as image_files
from fedbench.data.datasets.cub import read_captions, tokens, vocabulary_of
from fedbench.data.datasets.domainnet import DOMAINS
from fedbench.data.datasets.own import ImageFolder
from fedbench.data.datasets.small_images import CINIC_CLASSES, CINIC_SPLITS
from tests.data.toys import load
from tests.helpers import real_formats
from tests.helpers.raw_files import write_image

pytestmark = pytest.mark.usefixtures("own_folders")


def test_cinic_joins_validation_images_to_the_training_split_or_leaves_them_out(tmp_path: Path) -> None:
    content = real_formats.write_cinic(tmp_path / "root", each=3)
    data = load("cinic10", tmp_path / "root")
    assert (len(data), data.num_train, data.shape) == (90, 60, (3, 32, 32))
    np.testing.assert_array_equal(data.y, np.tile(np.repeat(np.arange(10), 3), 3))
    stacked = np.concatenate([content[split] for split in CINIC_SPLITS]).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(data.x, stacked)  # PNG keeps every pixel
    without = load("cinic10", tmp_path / "root", valid=False)
    assert (len(without), without.num_train) == (60, 30)
    np.testing.assert_array_equal(without.x, np.concatenate([stacked[:30], stacked[60:]]))
    assert CINIC_CLASSES[3] == "cat"


def test_tiny_imagenet_labels_are_ranks_of_sorted_identifiers(tmp_path: Path) -> None:
    names, classes = real_formats.write_tiny(tmp_path / "root", train=2, test=50)
    data = load("tiny_imagenet", tmp_path / "root")
    assert (len(data), data.num_train, data.shape, data.classes) == (450, 400, (3, 64, 64), 200)
    np.testing.assert_array_equal(data.y[:400], np.repeat(np.arange(200), 2))
    np.testing.assert_array_equal(data.y[400:], [names.index(name) for name in classes])
    red = data.x[:400:2, 0].mean((1, 2))  # one shade a class, as JPEG keeps it
    shade = data.x[400:].astype(float).mean((2, 3))  # validation images are grey files of the class's red
    assert np.ptp(shade, axis=1).max() == 0
    np.testing.assert_allclose(shade[:, 0], red[data.y[400:]], atol=3)


@pytest.mark.slow
def test_domainnet_takes_a_share_of_each_domain_and_class(tmp_path: Path) -> None:
    real_formats.write_domainnet(tmp_path / "root")
    data = load("domainnet", tmp_path / "root")
    assert (data.classes, data.shape) == (20, (3, 64, 64))
    assert data.domain is not None
    # 30 % of 10 training and of 4 test images, of 20 classes in 6 domains.
    assert (data.num_train, len(data)) == (6 * 20 * 3, 6 * 20 * 4)
    train, test = np.arange(len(data)) < data.num_train, np.arange(len(data)) >= data.num_train
    for rows, each in ((train, 3), (test, 1)):
        pairs = data.domain[rows] * 20 + data.y[rows]
        np.testing.assert_array_equal(np.bincount(pairs), [each] * 120)
        assert (np.diff(data.domain[rows]) >= 0).all()
    red, green, blue = data.x[:, :, 5, 7].T.astype(int)
    np.testing.assert_array_equal(red, 40 * data.domain)
    chosen = np.unique(green // 10)
    np.testing.assert_array_equal(chosen[data.y], green // 10)  # labels keep the published order
    assert (blue[train] < 10).all()
    assert (blue[test] >= 10).all()


@pytest.mark.slow
def test_domainnet_draws_depend_on_the_seed_alone(tmp_path: Path) -> None:
    real_formats.write_domainnet(tmp_path / "root")
    whole = load("domainnet", tmp_path / "root", ratio=1.0, num_classes=25, size=8)
    assert len(whole) == 6 * 25 * 14
    first, again, other = (load("domainnet", tmp_path / "root", seed=seed, size=8).fingerprint for seed in (0, 0, 1))
    assert first == again
    assert first != other
    named = load("domainnet", tmp_path / "root", classes=["thing_007", "thing_002"], size=8)
    assert (named.classes, len(named)) == (2, 6 * 2 * 4)
    np.testing.assert_array_equal(named.x[:, 1, 3, 3] // 10, np.array([2, 7])[named.y])


@pytest.mark.slow
def test_domainnet_lists_are_counted(tmp_path: Path) -> None:
    real_formats.write_domainnet(tmp_path / "root")
    with pytest.raises(DataCorrupt, match=r"clipart_train.txt lists 250 images, published are 33,525"):
        load("domainnet", tmp_path / "root", partial=False)


def test_domainnet_names_the_classes_it_has(tmp_path: Path) -> None:
    real_formats.write_domainnet(tmp_path / "root", classes=5, train=2, test=1)
    with pytest.raises(UnknownName, match="thing_001"):
        load("domainnet", tmp_path / "root", classes=["thing_1", "thing_002"])
    with pytest.raises(ConfigError, match="has 5 classes"):
        load("domainnet", tmp_path / "root")
    shutil.rmtree(tmp_path / "root" / "domainnet" / DOMAINS[2])
    with pytest.raises(DataMissing):
        load("domainnet", tmp_path / "root", num_classes=3)


def test_cub_follows_its_index_files(tmp_path: Path) -> None:
    real_formats.write_cub(tmp_path / "root")
    data = load("cub", tmp_path / "root", size=16)
    assert (len(data), data.num_train, data.shape, data.classes) == (12, 8, (3, 16, 16), 200)
    order = [i for i in range(12) if i % 3 != 2] + [i for i in range(12) if i % 3 == 2]
    np.testing.assert_array_equal(data.y, [i % 5 for i in order])
    np.testing.assert_allclose(data.x.mean((1, 2, 3)), [10 * i for i in order], atol=2)
    assert data.text is None


def test_cub_reads_ten_captions_as_tokens(tmp_path: Path) -> None:
    birds = real_formats.write_cub(tmp_path / "root")
    options = {"text": True, "words": 6}
    with pytest.raises(DataMissing, match="captions"):
        load("cub", tmp_path / "root", **options)
    real_formats.write_captions(tmp_path / "root", birds, real_formats.plain_captions)
    data = load("cub", tmp_path / "root", **options)
    assert data.text is not None
    assert data.text.shape == (12, 10, 6)
    spoken = [data.vocabulary[token] for token in data.text[0, 3]]
    assert spoken == ["this", "bird", "has", "a", "blue", "bill"]  # image 1, cut after six words
    # Each training caption has "a" once; one of ten also as the wing's letter.
    assert data.vocabulary[:3] == ("<pad>", "<unknown>", "a")
    whole = load("cub", tmp_path / "root", text=True)
    assert whole.text is not None
    words = [whole.vocabulary[token] for token in whole.text[0, 3] if token]
    assert words == ["this", "bird", "has", "a", "blue", "bill", "and", "wing", "d"]
    assert whole.fingerprint != load("cub", tmp_path / "root").fingerprint


def test_words_of_test_captions_alone_are_unknown() -> None:
    train, test = [[["a", "red", "bird", "a"]] * 10], [[["a", "green", "bird"]] * 10]
    vocabulary = vocabulary_of(train)
    assert vocabulary == ["<pad>", "<unknown>", "a", "bird", "red"]
    np.testing.assert_array_equal(tokens([*train, *test], vocabulary, 5)[:, 0], [[2, 4, 3, 2, 0], [2, 1, 3, 0, 0]])


def test_captions_are_refused_if_some_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "bird.txt"
    path.write_bytes("\n".join(["A caption, isn\ufffdt it?", ""] * 10).encode())
    assert read_captions(path) == [["a", "caption", "isn", "t", "it"]] * 10
    path.write_text("one\n" * 9)
    with pytest.raises(DataCorrupt, match="holds 9 captions, expected 10"):
        read_captions(path)
    with pytest.raises(DataCorrupt, match="is missing"):
        read_captions(tmp_path / "other.txt")


def test_images_are_scaled_and_grey_ones_repeated(tmp_path: Path) -> None:
    grey = np.zeros((10, 20), np.uint8)
    grey[:, 10:] = 200
    write_image(tmp_path / "grey.png", grey)
    (image,) = image_files.read_images([tmp_path / "grey.png"], 4, resize=True)
    np.testing.assert_array_equal(image[0], image[2])
    np.testing.assert_array_equal(image[0, :, 0], [0] * 4)
    np.testing.assert_array_equal(image[0, :, 3], [200] * 4)


@pytest.mark.parametrize("kind", ["jpg", "png"])
@pytest.mark.parametrize("mark", range(1, 9))
def test_images_of_one_s_own_are_turned_as_a_camera_marked_them(mark: int, kind: str, tmp_path: Path) -> None:
    """Stored white above black. By EXIF's table: 6 and 7 have the stored top on the right, 5 and 8 on the left."""
    grey = np.zeros((32, 32), np.uint8 if kind == "jpg" else np.uint16)  # a PNG of 16 bits
    grey[:16] = np.iinfo(grey.dtype).max
    exif = Image.Exif()
    exif[0x0112] = mark
    (tmp_path / "a").mkdir()
    Image.fromarray(grey).save(path := tmp_path / "a" / f"a.{kind}", exif=exif)
    white = {1: "top", 2: "top", 3: "bottom", 4: "bottom", 5: "left", 6: "right", 7: "right", 8: "left"}[mark]
    (x,) = ImageFolder(path=str(tmp_path))._split(tmp_path, silent)["x"]
    halves = {"top": x[0, :8], "bottom": x[0, 24:], "left": x[0, :, :8], "right": x[0, :, 24:]}
    means = {name: half.mean() for name, half in halves.items()}
    assert means.pop(white) > 240
    assert max(means.values()) < 140
    stored = image_files.read_images([path], 32, resize=True)[0, 0]
    assert stored[:8].min() > 240 > 9 > stored[24:].max(), "benchmarks are read as they are stored"


@pytest.mark.parametrize("size", [2, 1])
def test_of_sixteen_bits_the_upper_eight_are_taken(size: int, tmp_path: Path) -> None:
    """Grey as Pillow does it with colour; 0x0123 is 1 of 255 and 0xC8FF 200."""
    grey = np.array([[0x0123, 0xC8FF], [0x0123, 0xC8FF]], np.uint16)
    Image.fromarray(grey).save(tmp_path / "deep.png")
    (image,) = image_files.read_images([tmp_path / "deep.png"], size, resize=True)
    expected = [[[1, 200], [1, 200]]] if size == 2 else [[[101]]]  # the mean, 100.5, rounded
    np.testing.assert_array_equal(image, np.repeat(expected, 3, axis=0))
