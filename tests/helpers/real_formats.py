"""Small data sets in the on-disk formats of the real ones, byte for byte where that matters."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.data.datasets.domainnet import DOMAINS
from fedbench.data.datasets.small_images import CINIC_CLASSES, EMNIST_STEMS
from fedbench.data.formats import MNIST_STEMS
from tests.helpers.raw_files import Bytes, idx_bytes, images, python2_batch, write_image

# --- idx files of MNIST, Fashion-MNIST and EMNIST


def write_fashion(
    folder: Path,
    train: int = 30,
    test: int = 12,
    compress: Callable[[bytes], bytes] = gzip.compress,
    suffix: str = ".gz",
    stems: Sequence[str] = MNIST_STEMS,
    classes: int = 10,
) -> list[Bytes]:
    """Four idx files in MNIST's layout; returns what is in them."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = []
    for n, seed in ((train, 0), (test, 1)):
        arrays += [images(n, (28, 28), seed), (np.arange(n) % classes).astype(np.uint8)]
    for stem, array in zip(stems, arrays, strict=True):
        (folder / f"{stem}-ubyte{suffix}").write_bytes(compress(idx_bytes(array)))
    return arrays


def write_emnist(folder: Path, train: int = 130, test: int = 62) -> list[Bytes]:
    """EMNIST byclass as the folder `gzip` of gzip.zip."""
    return write_fashion(folder, train, test, stems=EMNIST_STEMS, classes=62)


# --- CIFAR's pickles


def write_cifar(
    root: Path, n: int = 6, write: Callable[[Bytes, list[int]], bytes] = python2_batch
) -> list[tuple[Bytes, list[int]]]:
    """CIFAR-10's six batches with `n` images each."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    content = []
    for seed, name in enumerate(names):
        x, y = images(n, (3072,), seed), [(seed + i) % 10 for i in range(n)]
        (folder / name).write_bytes(write(x, y))
        content.append((x, y))
    return content


def write_cifar100(root: Path, train: int = 200, test: int = 40) -> list[tuple[Bytes, list[int], list[int]]]:
    """CIFAR-100's two batches, each image with a fine and a coarse label."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    (folder / "meta").write_bytes(b"\x80\x02}.")
    content = []
    for seed, (name, n) in enumerate((("train", train), ("test", test))):
        x, fine = images(n, (3072,), seed), [(7 * i) % 100 for i in range(n)]
        coarse = [label % 20 for label in fine]
        (folder / name).write_bytes(python2_batch(x, {b"fine_labels": fine, b"coarse_labels": coarse}))
        content.append((x, fine, coarse))
    return content


# --- folders of images


def write_cinic(root: Path, each: int = 2) -> dict[str, Bytes]:
    """`each` PNG images a split and class; returns them by split, class by class [10 * each, 32, 32, 3]."""
    content = {}
    for seed, split in enumerate(("train", "valid", "test")):
        x = content[split] = images(10 * each, (32, 32, 3), seed)
        for i, image in enumerate(x):
            write_image(root / "CINIC-10" / split / CINIC_CLASSES[i // each] / f"n0{i:05}_{i}.png", image)
    (root / "CINIC-10" / "README.md").write_text("as in the archive\n")
    return content


def write_tiny(root: Path, train: int = 1, test: int = 200) -> tuple[list[str], list[str]]:
    """All 200 classes with `train` JPEG images; returns (sorted identifiers, class of each validation image)."""
    folder = root / "tiny-imagenet-200"
    names = [f"n{10_000_000 + 7919 * i % 90_000:08}" for i in range(200)]
    lines, shades = [], np.random.default_rng(0).integers(0, 256, (200, 3))
    for i, name in enumerate(names):
        for k in range(train):
            image = np.broadcast_to(shades[i], (64, 64, 3)).astype(np.uint8)
            write_image(folder / "train" / name / "images" / f"{name}_{k}.JPEG", image)
        (folder / "train" / name / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t0\t63\t63\n")
    classes = [names[(3 * i) % 200] for i in range(test)]
    for i, name in enumerate(classes):
        grey = np.full((64, 64), shades[names.index(name)][0], np.uint8)  # some real ones are grey files
        write_image(folder / "val" / "images" / f"val_{i}.JPEG", grey)
        lines.append(f"val_{i}.JPEG\t{name}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(names))
    write_image(folder / "test" / "images" / "test_0.JPEG", np.zeros((64, 64, 3), np.uint8))
    return sorted(names), classes


def write_domainnet(root: Path, classes: int = 25, train: int = 10, test: int = 4) -> Path:
    """Six domains; image k of class c in domain d is plain with channels (40 d, 10 c, k), of any size."""
    folder = root / "domainnet"
    for d, domain in enumerate(DOMAINS):
        for split, count, start in (("train", train, 0), ("test", test, train)):
            lines = []
            for c in range(classes):
                for k in range(start, start + count):
                    path = f"{domain}/thing_{c:03}/{domain}_{c:03}_{k:06}.png"
                    image = np.empty((8 + k, 11 + d, 3), np.uint8)
                    image[:] = (40 * d, 10 * c, k)
                    write_image(folder / path, image)
                    lines.append(f"{path} {c}\n")
            (folder / f"{domain}_{split}.txt").write_text("".join(lines))
    return folder


def write_cub(root: Path, train: int = 8, test: int = 4) -> Path:
    """Bird i is plain of shade 10 i; every third image is a test image."""
    folder = root / "CUB_200_2011"
    names, labels, splits = [], [], []
    for i in range(train + test):
        name = f"{i % 5 + 1:03}.Bird_{i % 5}/Bird_{i % 5}_{i:04}_{100 + i}.jpg"
        write_image(folder / "images" / name, np.full((20 + i, 30, 3), 10 * i, np.uint8))
        names.append(f"{i + 1} {name}\n")
        labels.append(f"{i + 1} {i % 5 + 1}\n")
        splits.append(f"{i + 1} {int(i % 3 != 2)}\n")
    for file, lines in zip(("images", "image_class_labels", "train_test_split"), (names, labels, splits), strict=True):
        (folder / f"{file}.txt").write_text("".join(lines))
    return folder


def write_captions(root: Path, birds: Path, caption: Callable[[int, int], str]) -> Path:
    """Ten captions an image of `birds`, in the layout of cvpr2016_cub."""
    folder = root / "cvpr2016_cub" / "text_c10"
    for line in (birds / "images.txt").read_text().splitlines():
        number, _, name = line.partition(" ")
        path = (folder / name).with_suffix(".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(caption(int(number), k) + "\n" for k in range(10)))
    return folder


def plain_captions(number: int, k: int) -> str:
    """A caption as people wrote them."""
    return f"This bird has a {('red', 'blue', 'long')[number % 3]} bill, and wing {'abcdefghij'[k]}."


# --- all of them


def _all_of_cub(root: Path) -> None:
    write_captions(root, write_cub(root), plain_captions)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "cifar10": lambda root: write_cifar(root, 20),
    "cifar100": write_cifar100,
    "cinic10": write_cinic,
    "cub": _all_of_cub,
    "domainnet": write_domainnet,
    "emnist": lambda root: write_emnist(root / "EMNIST" / "gzip"),
    "fashion_mnist": lambda root: write_fashion(root / "FashionMNIST" / "raw"),
    "mnist": lambda root: write_fashion(root / "MNIST" / "raw"),
    "tiny_imagenet": write_tiny,
}


def write(name: str, root: Path) -> dict[str, Any]:
    """Write a small data set called `name` under `root`; returns the options that load it."""
    WRITERS[name](root)
    return {"name": name, "root": str(root), "partial": True}
