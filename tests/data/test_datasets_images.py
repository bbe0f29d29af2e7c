"""CIFAR-100, EMNIST and the data sets in folders of images: small ones in the real formats, whole and damaged."""

from __future__ import annotations

import gzip
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing, UnknownName
from fedbench.data.dataset import Dataset
from fedbench.data.datasets import DATASETS
from fedbench.data.datasets.cinic import NAMES, SPLITS
from fedbench.data.datasets.cub import read_captions, tokens, vocabulary_of
from fedbench.data.datasets.domainnet_files import DOMAINS, LISTED
from fedbench.data.file_source import FileSource
from fedbench.data.formats import images as image_files
from fedbench.data.formats.idx import STEMS
from tests.helpers import real_formats
from tests.helpers.real_formats import WRITERS, python2_batch, write_image


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a cache and a data folder of its own."""
    monkeypatch.setenv("FEDBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "data"))


def source(name: str, root: Path, **options: Any) -> FileSource:
    built = DATASETS.build({"name": name, "root": str(root), "partial": True, **options})
    assert isinstance(built, FileSource)
    return built


def load(name: str, root: Path, **options: Any) -> Dataset:
    return source(name, root, **options).load()


# --- every data set that comes as files


def test_every_file_source_has_a_writer() -> None:
    assert {name for name in DATASETS if issubclass(DATASETS.get(name), FileSource)} == set(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_a_small_set_in_the_real_format_loads_again_from_the_cache(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = DATASETS.build(real_formats.write(name, tmp_path / "root"))
    assert isinstance(built, FileSource)
    assert built.state().ready
    assert not built.state().prepared
    first = built.load()
    assert built.state().prepared
    assert len(np.unique(first.y)) > 1
    assert 0 < first.num_train < len(first)
    monkeypatch.setattr(type(built), "parse", None)  # not parsed again
    again = built.load()
    assert isinstance(again.x, np.memmap)
    np.testing.assert_array_equal(again.x, first.x)
    assert again.fingerprint == first.fingerprint


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "domainnet"])
def test_samples_that_are_missing_are_refused_unless_that_is_wanted(name: str, tmp_path: Path) -> None:
    options = real_formats.write(name, tmp_path / "root")
    assert DATASETS.build(options).load()
    with pytest.raises(DataCorrupt, match=r"published are .*; fetch it again, or say dataset.partial=true"):
        DATASETS.build({**options, "partial": False}).load()


PUBLISHED = {
    "cifar10": 60_000,
    "cifar100": 60_000,
    "cinic10": 270_000,
    "cub": 11_788,
    "emnist": 814_255,
    "fashion_mnist": 70_000,
    "mnist": 70_000,
    "tiny_imagenet": 110_000,
}


def test_published_sizes_are_those_that_the_papers_print() -> None:
    found = {name: sum(getattr(DATASETS.get(name), "published", (0,))) for name in WRITERS}
    assert {name: size for name, size in found.items() if size} == PUBLISHED
    assert (sum(a for a, _ in LISTED.values()), sum(b for _, b in LISTED.values())) == (409_832, 176_743)


def rewrite(pattern: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change the first file that fits."""

    def apply(root: Path) -> None:
        path = min(root.glob(pattern))
        path.write_bytes(change(path.read_bytes()))

    return apply


def edit(file: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    return rewrite(file, lambda content: change(content.decode()).encode())


def cut(pattern: str) -> Callable[[Path], None]:
    return rewrite(pattern, lambda content: content[: len(content) // 2])


def fill(pattern: str, content: bytes) -> Callable[[Path], None]:
    return rewrite(pattern, lambda _: content)


def remove(pattern: str) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        path = min(root.glob(pattern))
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return apply


def empty(pattern: str) -> Callable[[Path], None]:
    """Remove all files of the first folder that fits."""

    def apply(root: Path) -> None:
        for path in min(root.glob(pattern)).iterdir():
            path.unlink()

    return apply


def resized(pattern: str) -> Callable[[Path], None]:
    return lambda root: write_image(min(root.glob(pattern)), np.zeros((30, 40, 3), np.uint8))


def idx(shape: tuple[int, ...], value: int = 0) -> bytes:
    return real_formats.idx_bytes(np.full(shape, value, np.uint8))


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def unpacked(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda content: change(gzip.decompress(content))


IDX: dict[str, Callable[[bytes], bytes]] = {  # of any of the four files
    "gzip cut": lambda packed: packed[:-20],
    "gzip altered": flipped,
    "shorter than announced": unpacked(lambda raw: gzip.compress(raw[:-1])),
    "longer than announced": unpacked(lambda raw: gzip.compress(raw + b"\0")),
    "header cut": unpacked(lambda raw: raw[:6]),
    "floats": unpacked(lambda raw: raw[:2] + b"\x0d" + raw[3:]),
    "web page": lambda _: b"<html>404</html>",
    "empty": lambda _: b"",
}
X, Y = real_formats.images(6, (3072,)), [0, 1, 2, 3, 4, 5]
BATCHES = {  # of CIFAR
    "cut": python2_batch(X, Y)[: 6 * 3072 // 2],
    "empty": b"",
    "web page": b"<html>404</html>",
    "no dictionary": pickle.dumps([1, 2], protocol=2),
    "no labels": python2_batch(X, Y, key=b"coarse"),
    "labels missing": python2_batch(X, Y[:5]),
    "label 10": python2_batch(X, [*Y[:5], 10]),
    "negative label": python2_batch(X, [*Y[:5], -1]),
    "other size": python2_batch(real_formats.images(6, (1024,)), Y),
    "floats": pickle.dumps({"data": X.astype(np.float64), "labels": Y}, protocol=2),
    "text labels": pickle.dumps({"data": X, "labels": list("abcdef")}, protocol=2),
}
DAMAGED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    **{
        f"idx {kind}, {stem}": ("fashion_mnist", rewrite(f"**/{stem}*", change), stem)
        for kind, change in IDX.items()
        for stem in (STEMS[0], STEMS[3])
    },
    "idx labels missing": ("fashion_mnist", fill("**/train-labels*", idx((29,))), r"expected \[30\]"),
    "idx label 10": ("fashion_mnist", fill("**/train-labels*", idx((30,), 10)), "label 10"),
    "idx other size": ("fashion_mnist", fill("**/train-images*", idx((30, 32, 32))), "28, 28"),
    "emnist label 62": ("emnist", fill("**/*train-labels*", idx((130,), 62)), "label 62"),
    **{
        f"cifar10 {kind}": ("cifar10", fill("**/data_batch_3", batch), "data_batch_3")
        for kind, batch in BATCHES.items()
    },
    "cifar100 without coarse labels": (
        "cifar100",
        fill("**/train", real_formats.python2_batch(real_formats.images(2, (3072,)), [1, 2], b"fine_labels")),
        "'coarse_labels' is no list",
    ),
    "cinic cut image": ("cinic10", cut("**/valid/cat/*.png"), "valid/cat.*damaged"),
    "cinic empty image": ("cinic10", fill("**/test/dog/*.png", b""), "test/dog.*damaged"),
    "cinic web page": ("cinic10", fill("**/test/dog/*.png", b"<html>"), "test/dog.*no image"),
    "cinic other size": ("cinic10", resized("**/train/bird/*.png"), "40 x 30 pixels, expected 32 x 32"),
    "cinic class missing": ("cinic10", remove("**/valid/truck"), "valid/truck is missing"),
    "cinic class empty": (
        "cinic10",
        empty("**/train/ship"),
        "train/ship holds no image",
    ),
    "tiny classes": (
        "tiny_imagenet",
        fill("*/wnids.txt", b"n01443537\n"),
        "wnids.txt lists 1 classes, expected 200",
    ),
    "tiny class missing": ("tiny_imagenet", remove("*/train/*/images"), "images is missing"),
    "tiny validation image missing": (
        "tiny_imagenet",
        remove("*/val/images/*"),
        "val/images/val_0.JPEG is missing",
    ),
    "tiny cut image": ("tiny_imagenet", cut("*/train/*/images/*"), "damaged"),
    "tiny unknown class": (
        "tiny_imagenet",
        edit(
            "tiny-imagenet-200/val/val_annotations.txt",
            lambda text: text + "val_9.JPEG\tn99999999\t0\t0\t1\t1\n",
        ),
        "val_annotations.txt has the line 'val_9.JPEG",
    ),
    "tiny path escape": (
        "tiny_imagenet",
        edit(
            "tiny-imagenet-200/val/val_annotations.txt",
            lambda text: "../../x.JPEG" + text[text.index("\t") :],
        ),
        "has the line '../../x.JPEG",
    ),
    "tiny class path escape": (
        "tiny_imagenet",
        edit("tiny-imagenet-200/wnids.txt", lambda text: "../../x" + text[text.index("\n") :]),
        "names a folder outside",
    ),
    "tiny annotations cut": (
        "tiny_imagenet",
        edit("tiny-imagenet-200/val/val_annotations.txt", lambda text: text + "val_200.JP"),
        "has the line 'val_200.JP'",
    ),
    "tiny annotations no text": (
        "tiny_imagenet",
        fill("*/val/val_annotations.txt", b"\xff\xfe\x00"),
        "no text file",
    ),
    "domainnet image missing": (
        "domainnet",
        remove("domainnet/real/thing_001"),
        "real/thing_001/real_001_.*is missing",
    ),
    "domainnet line": (
        "domainnet",
        edit("domainnet/real_train.txt", lambda text: text + "real/thing"),
        "real_train.txt has the line 'real/thing'",
    ),
    "domainnet other domain": (
        "domainnet",
        edit("domainnet/real_train.txt", lambda text: text.replace("real/", "sketch/", 1)),
        "real_train.txt has the line 'sketch/",
    ),
    "domainnet path escape": (
        "domainnet",
        edit("domainnet/real_train.txt", lambda text: "real/../x.png 1\n" + text),
        "has the line 'real/../x.png 1'",
    ),
    "cub image missing": ("cub", remove("CUB_200_2011/images/*"), "is missing"),
    "cub cut image": ("cub", cut("CUB_200_2011/images/*/*"), "damaged"),
    "cub label": (
        "cub",
        edit("CUB_200_2011/image_class_labels.txt", lambda text: text.replace("3 3\n", "3 201\n")),
        "label '201', expected 1..200",
    ),
    "cub index cut": (
        "cub",
        edit("CUB_200_2011/train_test_split.txt", lambda text: text[: text.rindex("\n", 0, -1)]),
        "list different images",
    ),
    "cub line": ("cub", edit("CUB_200_2011/images.txt", lambda text: text + "13"), "has the line '13'"),
    "cub number twice": (
        "cub",
        edit("CUB_200_2011/images.txt", lambda text: text + "1 x.jpg\n"),
        "'1 x.jpg'",
    ),
    "cub path escape": (
        "cub",
        edit("CUB_200_2011/images.txt", lambda text: "1 ../../x.jpg" + text[text.index("\n") :]),
        "outside the data set",
    ),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_data_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    name, damage, reason = DAMAGED[kind]
    options = real_formats.write(name, tmp_path / "root") | (
        {"num_classes": 25} if name == "domainnet" else {}
    )
    damage(tmp_path / "root")
    with pytest.raises(DataCorrupt, match=reason) as caught:
        DATASETS.build(options).load()
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache" / "prepared").glob("*")), "nothing damaged is prepared"


# --- MNIST, EMNIST, CIFAR-100


def test_mnist_and_fashion_mnist_are_not_taken_for_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "root"
    arrays = real_formats.write_fashion(folder)
    labels = arrays[1].copy()
    for name, first in (
        ("mnist", (9, 0, 0, 3, 0, 2, 7, 2, 5, 5)),
        ("fashion_mnist", (5, 0, 4, 1, 9, 2, 1, 3, 1, 4)),
    ):
        labels[:10] = first
        (folder / "train-labels-idx1-ubyte.gz").write_bytes(real_formats.idx_bytes(labels))
        with pytest.raises(DataCorrupt, match=f"not {name}"):
            load(name, folder)


def test_emnist_is_upright_from_idx_and_from_matlab(tmp_path: Path) -> None:
    arrays = real_formats.write_emnist(tmp_path / "idx" / "EMNIST" / "gzip")
    real_formats.write_emnist_matlab(tmp_path / "mat" / "matlab", arrays)
    for root in ("idx", "mat"):
        data = load("emnist", tmp_path / root)
        assert (data.shape, data.classes, data.num_train, len(data)) == ((1, 28, 28), 62, 130, 192)
        np.testing.assert_array_equal(data.y, np.concatenate([arrays[1], arrays[3]]))
        assert data.x[3, 0, 20, 5] == arrays[0][3, 5, 20], "files hold columns where rows belong"
        np.testing.assert_array_equal(data.x[130:, 0], arrays[2].transpose(0, 2, 1))


def test_other_matlab_files_are_refused(tmp_path: Path) -> None:
    from scipy.io import savemat

    arrays = real_formats.write_emnist(tmp_path / "idx")
    path = real_formats.write_emnist_matlab(tmp_path / "root", arrays)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"<html>"):
        path.write_bytes(content)
        with pytest.raises(DataCorrupt, match=r"emnist-byclass.mat.*fetch it again"):
            load("emnist", path.parent)
    savemat(path, {"other": np.zeros(3)})
    with pytest.raises(DataCorrupt, match="no EMNIST file"):
        load("emnist", path.parent)
    wrong = [arrays[0], arrays[1] + np.uint8(1), *arrays[2:]]
    real_formats.write_emnist_matlab(path.parent, wrong)
    with pytest.raises(DataCorrupt, match="label 62"):
        load("emnist", path.parent)


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
    assert source("cifar100", tmp_path, labels="coarse").label == "cifar100-coarse"
    with pytest.raises(UnknownName, match="coarse"):
        source("cifar100", tmp_path, labels="course")


# --- folders of images


def test_cinic_joins_validation_images_to_the_training_split_or_leaves_them_out(tmp_path: Path) -> None:
    content = real_formats.write_cinic(tmp_path / "root", each=3)
    data = load("cinic10", tmp_path / "root")
    assert (len(data), data.num_train, data.shape) == (90, 60, (3, 32, 32))
    np.testing.assert_array_equal(data.y, np.tile(np.repeat(np.arange(10), 3), 3))
    stacked = np.concatenate([content[split] for split in SPLITS]).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(data.x, stacked)  # PNG keeps every pixel
    without = load("cinic10", tmp_path / "root", valid=False)
    assert (len(without), without.num_train) == (60, 30)
    np.testing.assert_array_equal(without.x, np.concatenate([stacked[:30], stacked[60:]]))
    assert NAMES[3] == "cat"


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


def test_domainnet_draws_depend_on_the_seed_alone(tmp_path: Path) -> None:
    real_formats.write_domainnet(tmp_path / "root")
    whole = load("domainnet", tmp_path / "root", ratio=1.0, num_classes=25, size=8)
    assert len(whole) == 6 * 25 * 14
    first, again, other = (
        load("domainnet", tmp_path / "root", seed=seed, size=8).fingerprint for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other
    named = load("domainnet", tmp_path / "root", classes=["thing_007", "thing_002"], size=8)
    assert (named.classes, len(named)) == (2, 6 * 2 * 4)
    np.testing.assert_array_equal(named.x[:, 1, 3, 3] // 10, np.array([2, 7])[named.y])


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
    np.testing.assert_array_equal(
        tokens([*train, *test], vocabulary, 5)[:, 0], [[2, 4, 3, 2, 0], [2, 1, 3, 0, 0]]
    )


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


def test_a_changed_folder_is_prepared_again(tmp_path: Path) -> None:
    real_formats.write_cinic(tmp_path / "root", each=2)
    assert len(load("cinic10", tmp_path / "root")) == 60
    extra = tmp_path / "root" / "CINIC-10" / "train" / "cat" / "n9_9.png"
    write_image(extra, np.zeros((32, 32, 3), np.uint8))
    assert len(load("cinic10", tmp_path / "root")) == 61


@pytest.mark.slow
def test_sixty_thousand_colour_images_load_in_under_a_second_once_prepared(tmp_path: Path) -> None:
    content = real_formats.write_cifar(tmp_path / "root", 10_000)
    del content
    load("cifar10", tmp_path / "root", partial=False)
    start = time.process_time()  # so that other processes do not count
    data = load("cifar10", tmp_path / "root", partial=False)
    np.array(data.x)  # as the federation copies it to the device
    seconds = time.process_time() - start
    assert data.x.shape == (60_000, 3, 32, 32)
    assert seconds < 1
