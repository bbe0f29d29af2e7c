"""Files of data sets, damaged in every way that their formats have, are refused in one line."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedbench.core.errors import DataCorrupt
from fedbench.data.datasets import DATASETS
from fedbench.data.formats import MNIST_STEMS
from tests.data.changes import cut, edit, empty, fill, remove, resized, rewrite
from tests.helpers import real_formats
from tests.helpers.raw_files import idx_bytes, images, python2_batch
from tests.helpers.tiers import sampled

pytestmark = pytest.mark.usefixtures("own_folders")


def idx(shape: tuple[int, ...], value: int = 0) -> bytes:
    return idx_bytes(np.full(shape, value, np.uint8))


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


X, Y = images(6, (3072,)), [0, 1, 2, 3, 4, 5]


BATCHES = {  # of CIFAR
    "cut": python2_batch(X, Y)[: 6 * 3072 // 2],
    "empty": b"",
    "web page": b"<html>404</html>",
    "no dictionary": pickle.dumps([1, 2], protocol=2),
    "no labels": python2_batch(X, Y, key=b"coarse"),
    "labels missing": python2_batch(X, Y[:5]),
    "label 10": python2_batch(X, [*Y[:5], 10]),
    "negative label": python2_batch(X, [*Y[:5], -1]),
    "other size": python2_batch(images(6, (1024,)), Y),
    "floats": pickle.dumps({"data": X.astype(np.float64), "labels": Y}, protocol=2),
    "text labels": pickle.dumps({"data": X, "labels": list("abcdef")}, protocol=2),
}


DAMAGED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    **{
        f"idx {kind}, {stem}": ("fashion_mnist", rewrite(f"**/{stem}*", change), stem)
        for kind, change in IDX.items()
        for stem in (MNIST_STEMS[0], MNIST_STEMS[3])
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
        fill("**/train", python2_batch(images(2, (3072,)), [1, 2], b"fine_labels")),
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


@pytest.mark.parametrize("kind", sampled(DAMAGED, every=5))
def test_damaged_data_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    name, damage, reason = DAMAGED[kind]
    options = real_formats.write(name, tmp_path / "root") | ({"num_classes": 25} if name == "domainnet" else {})
    damage(tmp_path / "root")
    with pytest.raises(DataCorrupt, match=reason) as caught:
        DATASETS.build(options).load()
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache" / "prepared").glob("*")), "nothing damaged is prepared"
