"""Data sets of any labels in the on-disk formats of the real ones."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.data.datasets.domainnet import DOMAINS
from fedbench.data.datasets.small_images import CINIC_CLASSES, EMNIST_STEMS
from fedbench.data.formats import MNIST_STEMS
from tests.helpers.raw_files import Bytes, Labels, idx_bytes, python2_batch, write_image
from tests.helpers.real_formats import plain_captions, write_captions

Writer = Callable[[Path, Labels, Labels], None]


def plain(y: Labels, shape: tuple[int, ...], seed: int = 0) -> Bytes:
    """Images [n, *shape] (the last axis: channels) of one colour each, which goes with the label."""
    draw = np.random.default_rng(seed)
    shades = draw.integers(40, 200, (int(y.max()) + 1, shape[-1]))[y] + draw.integers(-30, 30, (len(y), shape[-1]))
    places = (len(y), *[1] * (len(shape) - 1), shape[-1])
    return np.broadcast_to(shades.reshape(places), (len(y), *shape)).astype(np.uint8)


def write_labelled(name: str, root: Path, train: Labels, test: Labels) -> dict[str, Any]:
    """A data set called `name` with these labels, in its real format under `root`; returns the options that load it."""
    LABELLED[name](root, train, test)
    options = {"ratio": 1.0} if name == "domainnet" else {"text": True} if name == "cub" else {}
    return {"name": name, "partial": True, **options}


def _idx(folder: str, stems: Sequence[str]) -> Writer:
    def write(root: Path, train: Labels, test: Labels) -> None:
        (root / folder).mkdir(parents=True)
        arrays = [array for y in (train, test) for array in (plain(y, (28, 28, 1))[..., 0], y.astype(np.uint8))]
        for stem, array in zip(stems, arrays, strict=True):
            (root / folder / f"{stem}-ubyte.gz").write_bytes(gzip.compress(idx_bytes(array), 1))

    return write


def _rows(y: Labels) -> Bytes:
    return plain(y, (32, 32, 3)).transpose(0, 3, 1, 2).reshape(len(y), -1)


def _cifar10(root: Path, train: Labels, test: Labels) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for i, y in enumerate(np.array_split(train, 5), 1):
        (folder / f"data_batch_{i}").write_bytes(python2_batch(_rows(y), y.tolist()))
    (folder / "test_batch").write_bytes(python2_batch(_rows(test), test.tolist()))


def _cifar100(root: Path, train: Labels, test: Labels) -> None:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    (folder / "meta").write_bytes(b"\x80\x02}.")
    for name, y in (("train", train), ("test", test)):
        kinds = {b"fine_labels": y.tolist(), b"coarse_labels": (y % 20).tolist()}
        (folder / name).write_bytes(python2_batch(_rows(y), kinds))


def _cinic(root: Path, train: Labels, test: Labels) -> None:
    for split, y in (("train", train[::2]), ("valid", train[1::2]), ("test", test)):
        for i, (label, image) in enumerate(zip(y, plain(y, (32, 32, 3)), strict=True)):
            write_image(root / "CINIC-10" / split / CINIC_CLASSES[label] / f"n{i:08}.png", image)


def _tiny(root: Path, train: Labels, test: Labels) -> None:
    folder = root / "tiny-imagenet-200"
    for i, (label, image) in enumerate(zip(train, plain(train, (64, 64, 3)), strict=True)):
        write_image(folder / "train" / f"n{label:08}" / "images" / f"n{label:08}_{i}.JPEG", image)
    for i, image in enumerate(plain(test, (64, 64, 3))):
        write_image(folder / "val" / "images" / f"val_{i}.JPEG", image)
    lines = [f"val_{i}.JPEG\tn{label:08}\t0\t0\t63\t63\n" for i, label in enumerate(test)]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("".join(f"n{label:08}\n" for label in range(200)))


def _domainnet(root: Path, train: Labels, test: Labels) -> None:
    folder = root / "domainnet"
    for split, y in (("train", train), ("test", test)):
        lines: dict[str, list[str]] = {domain: [] for domain in DOMAINS}
        for i, (label, image) in enumerate(zip(y, plain(y, (40, 50, 3)), strict=True)):
            domain = DOMAINS[i % len(DOMAINS)]
            path = f"{domain}/thing_{label:03}/{domain}_{split}_{i:06}.jpg"
            write_image(folder / path, image)
            lines[domain].append(f"{path} {label}\n")
        for domain, listed in lines.items():
            (folder / f"{domain}_{split}.txt").write_text("".join(listed))


def _cub(root: Path, train: Labels, test: Labels) -> None:
    folder = root / "CUB_200_2011"
    y = np.concatenate([train, test])
    names = [f"{label + 1:03}.Bird/Bird_{i:05}.jpg" for i, label in enumerate(y)]
    for name, image in zip(names, plain(y, (50, 60, 3)), strict=True):
        write_image(folder / "images" / name, image)
    columns: dict[str, list[Any]] = {
        "images": names,
        "image_class_labels": (y + 1).tolist(),
        "train_test_split": [int(i < len(train)) for i in range(len(y))],
    }
    for file, values in columns.items():
        (folder / f"{file}.txt").write_text("".join(f"{i + 1} {value}\n" for i, value in enumerate(values)))
    write_captions(root, folder, plain_captions)


LABELLED: dict[str, Writer] = {
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "cinic10": _cinic,
    "cub": _cub,
    "domainnet": _domainnet,
    "emnist": _idx("EMNIST/gzip", EMNIST_STEMS),
    "fashion_mnist": _idx("FashionMNIST/raw", MNIST_STEMS),
    "mnist": _idx("MNIST/raw", MNIST_STEMS),
    "tiny_imagenet": _tiny,
}
