"""Small data sets in the on-disk formats of the real ones, byte for byte where that matters."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedbench.data.datasets.cinic import NAMES
from fedbench.data.datasets.domainnet_files import DOMAINS
from fedbench.data.datasets.emnist import STEMS as EMNIST_STEMS
from fedbench.data.formats.idx import STEMS

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]
Writer = Callable[[Path, Labels, Labels], None]


def images(n: int, shape: tuple[int, ...], seed: int = 0) -> Bytes:
    """Random bytes [n, *shape]."""
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


# --- idx files of MNIST, Fashion-MNIST and EMNIST


def idx_bytes(array: Bytes) -> bytes:
    """An idx file of unsigned bytes."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_fashion(
    folder: Path,
    train: int = 30,
    test: int = 12,
    compress: Callable[[bytes], bytes] = gzip.compress,
    suffix: str = ".gz",
    stems: Sequence[str] = STEMS,
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


def write_emnist_matlab(folder: Path, arrays: Sequence[Bytes]) -> Path:
    """The same images and labels as emnist-byclass.mat of matlab.zip: nested structs, rows of 784."""
    from scipy.io import savemat

    folder.mkdir(parents=True, exist_ok=True)
    splits = {
        name: {"images": x.reshape(len(x), -1), "labels": y[:, None], "writers": np.zeros((len(y), 1))}
        for name, (x, y) in {"train": arrays[:2], "test": arrays[2:]}.items()
    }
    path = folder / "emnist-byclass.mat"
    savemat(path, {"dataset": {**splits, "mapping": np.zeros((62, 2))}}, do_compression=True)
    return path


# --- CIFAR's pickles


def python2_batch(
    data: Bytes, labels: Sequence[int] | Mapping[bytes, Sequence[int]], key: bytes = b"labels"
) -> bytes:
    """A batch as Python 2 and NumPy 1 pickled it (protocol 2, byte strings): the format of the real archive."""

    def string(raw: bytes) -> bytes:
        return b"U" + bytes([len(raw)]) + raw if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)) + raw

    def integer(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    dtype = b"cnumpy\ndtype\n" + string(b"u1") + integer(0) + integer(1) + b"\x87R"
    dtype += b"(" + integer(3) + string(b"|") + b"NNN" + integer(-1) + integer(-1) + integer(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + integer(0) + b"\x85" + string(b"b")
    array += b"\x87R(" + integer(1) + integer(data.shape[0]) + integer(data.shape[1]) + b"\x86"
    array += dtype + b"\x89" + string(data.tobytes()) + b"tb"
    items = string(b"batch_label") + string(b"testing batch 1 of 1") + string(b"data") + array
    for name, values in (labels if isinstance(labels, Mapping) else {key: labels}).items():
        items += string(name) + b"](" + b"".join(map(integer, values)) + b"e"
    return b"\x80\x02}(" + items + b"u."


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


def encoded(image: Bytes, form: str = "PNG") -> bytes:
    """An image [H, W, 3] or [H, W] as a file; JPEG changes its pixels a little."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, form)
    return buffer.getvalue()


def write_image(path: Path, image: Bytes) -> None:
    """A file in the format that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(image, "PNG" if path.suffix == ".png" else "JPEG"))


def write_cinic(root: Path, each: int = 2) -> dict[str, Bytes]:
    """`each` PNG images a split and class; returns them by split, class by class [10 * each, 32, 32, 3]."""
    content = {}
    for seed, split in enumerate(("train", "valid", "test")):
        x = content[split] = images(10 * each, (32, 32, 3), seed)
        for i, image in enumerate(x):
            write_image(root / "CINIC-10" / split / NAMES[i // each] / f"n0{i:05}_{i}.png", image)
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
    for file, lines in zip(
        ("images", "image_class_labels", "train_test_split"), (names, labels, splits), strict=True
    ):
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


# --- any labels


def plain(y: Labels, shape: tuple[int, ...], seed: int = 0) -> Bytes:
    """Images [n, *shape] (the last axis: channels) of one colour each, which goes with the label."""
    draw = np.random.default_rng(seed)
    shades = draw.integers(40, 200, (int(y.max()) + 1, shape[-1]))[y] + draw.integers(
        -30, 30, (len(y), shape[-1])
    )
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
        arrays = [
            array for y in (train, test) for array in (plain(y, (28, 28, 1))[..., 0], y.astype(np.uint8))
        ]
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
            write_image(root / "CINIC-10" / split / NAMES[label] / f"n{i:08}.png", image)


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
    "fashion_mnist": _idx("FashionMNIST/raw", STEMS),
    "mnist": _idx("MNIST/raw", STEMS),
    "tiny_imagenet": _tiny,
}


# --- archives


def tar_of(folder: Path, path: Path, prefix: str) -> Path:
    """A gzipped tar of what is in `folder`, each name after `prefix`, folders included."""
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted(folder.rglob("*")):
            archive.add(file, f"{prefix}{file.relative_to(folder).as_posix()}", recursive=False)
    return path


def zip_of(folder: Path, path: Path, prefix: str) -> Path:
    """A zip of what is in `folder`, folders included."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, f"{prefix}{file.relative_to(folder).as_posix()}")
    return path
