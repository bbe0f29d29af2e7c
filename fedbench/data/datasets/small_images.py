"""Images of 8 x 8 to 64 x 64: digits, MNIST and its successors, CIFAR, CINIC-10, Tiny-ImageNet."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.fields import finite, one_of, positive
from fedbench.core.cache import Arrays, cached_arrays, source_key
from fedbench.core.errors import DataCorrupt, DataMissing, Report, silent
from fedbench.data.dataset import Availability, Dataset, DataSource, stratified_fifth
from fedbench.data.files import FileSource, Part, data_dir
from fedbench.data.formats import MNIST_STEMS, idx_files, images_in, lines_of, read_batch, read_images, read_pair

log = logging.getLogger("fedbench")

# A data set whose images are files in class folders, as many conversions of MNIST and CIFAR have it.


def class_folders(root: str | None, folder: Path, classes: int) -> list[Path] | None:
    """The folders train/CLASS and test/CLASS of a given `root`; None unless each split has `classes` of them.

    Labels follow the order of the classes' names, as in the published files, or of their numbers.
    """
    found: list[Path] = []
    for split in ("train", "test"):
        place = folder / split
        inside = [each for each in place.iterdir() if each.is_dir()] if root and place.is_dir() else []
        if len(inside) != classes:
            return None
        found += sorted(inside, key=lambda each: (int(each.name) if each.name.isdecimal() else -1, each.name))
    return found


def read_class_folders(
    name: str, folders: list[Path], size: int, channels: int, report: Report
) -> dict[str, NDArray[Any]]:
    """Images, labels and the number of training samples, class by class; it logs that folders are read."""
    log.warning(
        "%s is read from class folders in %s: samples are in the order of their names, so the partitions of authors' "
        "programs differ from those on the published files",
        name,
        folders[0].parents[1],
    )
    classes, paths = len(folders) // 2, [images_in(folder) for folder in folders]
    y = np.repeat(np.arange(len(folders)) % classes, [*map(len, paths)])
    x = read_images([path for each in paths for path in each], size, report=report)[:, :channels]
    return {"x": np.ascontiguousarray(x), "y": y, "num_train": np.array([sum(map(len, paths[:classes]))])}


# Digits: 1,797 handwritten digits of 8 x 8 (Alpaydin & Kaynak 1998), shipped inside scikit-learn.
#
# There is no official test split: a fixed random fifth of each class is the test split (1,442 + 355 samples).
# scikit-learn's file does without the library too: in the data folder, as digits/digits.csv.gz.

INSTALL = "pip install scikit-learn"
DIGITS_FILE = "digits.csv.gz"  # a line an image: 64 pixels and the label


@dataclass(frozen=True)
class Digits(DataSource):
    """Ten digits, values 0..16; works without a network."""

    name: ClassVar[str] = "digits"

    model: str = "mlp"
    mean: tuple[float, ...] = finite((0.3050,))
    std: tuple[float, ...] = positive((0.3759,))

    def state(self) -> Availability:
        """Ready if scikit-learn is installed or its file is in the data folder."""
        file = digits_file()
        where = "" if file is None else "scikit-learn" if _packaged_digits() == file else str(file.parent)
        return Availability(file is not None, where, ("scikit-learn",), f"run `{INSTALL}`")

    def read(self, report: Report = silent) -> Dataset:
        file = digits_file()
        if file is None:
            raise DataMissing(f"data set 'digits' comes with scikit-learn, which is not installed: run `{INSTALL}`")
        arrays = cached_arrays(source_key("digits", [file]), lambda: _parse_digits(file))
        count = int(arrays["num_train"][0])
        return Dataset("digits", arrays["x"], arrays["y"], count, 10, self.mean, self.std, scale=16.0)


def digits_file() -> Path | None:
    """scikit-learn's file of digits, in its package or in the data folder; None if there is none."""
    places = (data_dir() / "digits" / DIGITS_FILE, _packaged_digits())
    return next((place for place in places if place is not None and place.is_file()), None)


def _packaged_digits() -> Path | None:
    """Return the file's place in scikit-learn without importing it, which would take a second."""
    found = importlib.util.find_spec("sklearn")
    return Path(found.origin).parent / "datasets" / "data" / DIGITS_FILE if found and found.origin else None


def _parse_digits(file: Path) -> Mapping[str, NDArray[Any]]:
    lines = np.loadtxt(file, delimiter=",", dtype=np.int64)
    images, labels = lines[:, :-1], lines[:, -1]
    test = stratified_fifth(labels, "digits")
    order = np.concatenate([np.flatnonzero(~test), np.flatnonzero(test)])
    x = images.astype(np.uint8).reshape(-1, 1, 8, 8)[order]
    return {"x": x, "y": labels[order], "num_train": np.array([np.sum(~test)])}


# MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 grey images of 28 x 28, idx files.

# The two share their file names; their first training labels, as published, tell them apart.
FIRST_LABELS = {
    "mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    "fashion_mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
}


def _mnist_parts(folder: str, mirrors: tuple[str, ...], md5: tuple[str, str, str, str]) -> tuple[Part, ...]:
    """The four gzipped idx files; checksums in the order of MNIST_STEMS, as torchvision lists them."""
    names = [f"{stem}-ubyte.gz" for stem in MNIST_STEMS]
    return tuple(
        Part(tuple(m + name for m in mirrors), name, digest, f"{folder}/{name}", archive=False)
        for name, digest in zip(names, md5, strict=True)
    )


@dataclass(frozen=True)
class Mnist(FileSource):
    """Ten handwritten digits."""

    name: ClassVar[str] = "mnist"
    folders: ClassVar[tuple[str, ...]] = ("mnist", "MNIST/raw")
    published: ClassVar[tuple[int, int]] = (60_000, 10_000)
    content: ClassVar[str] = "d636925bc6effa61"
    parts: ClassVar[tuple[Part, ...]] = _mnist_parts(
        "MNIST/raw",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    )

    model: str = "mlp"
    mean: tuple[float, ...] = finite((0.1307,))
    std: tuple[float, ...] = positive((0.3081,))

    def files(self, folder: Path) -> list[Path] | None:
        """The four idx files, or class folders."""
        return idx_files(folder, MNIST_STEMS) or class_folders(self.root, folder, self.label_count)

    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """Images, labels and the number of training samples."""
        if files[0].is_dir():
            return read_class_folders(self.name, files, 28, 1, report)
        train_x, train_y = read_pair(files[0], files[1], size=28, classes=10)
        test_x, test_y = read_pair(files[2], files[3], size=28, classes=10)
        for name, labels in FIRST_LABELS.items():
            if name != self.name and tuple(train_y[:10]) == labels:
                raise DataCorrupt(f"{files[1].parent} holds {name}, not {self.name}; the two share their file names")
        x, y = np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y])
        return {"x": x, "y": y, "num_train": np.array([len(train_x)])}


@dataclass(frozen=True)
class FashionMnist(Mnist):
    """Ten kinds of clothing, in MNIST's format."""

    name: ClassVar[str] = "fashion_mnist"
    folders: ClassVar[tuple[str, ...]] = ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw")
    system: ClassVar[tuple[str, ...]] = ("/usr/share/datasets/fashion-mnist",)
    package: ClassVar[str] = "apt install dataset-fashion-mnist"
    content: ClassVar[str] = "b12e75283c8de296"
    parts: ClassVar[tuple[Part, ...]] = _mnist_parts(
        "FashionMNIST/raw",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    )

    mean: tuple[float, ...] = finite((0.2860,))
    std: tuple[float, ...] = positive((0.3530,))


# EMNIST, split "byclass" (Cohen et al. 2017): 697,932 + 116,323 handwritten digits and letters, grey, 28 x 28.
#
# The files hold the images with rows and columns exchanged, as MATLAB stores them; here they are upright, like MNIST's.
# Labels: 0-9 digits, 10-35 capital, 36-61 small letters.

EMNIST_SPLIT = "emnist-byclass"
EMNIST_STEMS = tuple(
    f"{EMNIST_SPLIT}-{part}-{kind}" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
)


@dataclass(frozen=True)
class Emnist(FileSource):
    """62 digits and letters in four idx files (gzip.zip)."""

    name: ClassVar[str] = "emnist"
    folders: ClassVar[tuple[str, ...]] = ("emnist", "EMNIST/raw", "EMNIST/gzip", "gzip")
    published: ClassVar[tuple[int, int]] = (697_932, 116_323)
    label_count: ClassVar[int] = 62
    parts: ClassVar[tuple[Part, ...]] = (
        Part(  # address and checksum as in torchvision
            ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
            "emnist-gzip.zip",
            "58c8d27c78d21e728a6bc7b3cc06412e",
            "EMNIST/gzip",
            wanted=lambda name: EMNIST_SPLIT in name,  # the archive holds five more splits
        ),
    )

    model: str = "lenet5"
    mean: tuple[float, ...] = finite((0.1736,))
    std: tuple[float, ...] = positive((0.3317,))

    def files(self, folder: Path) -> list[Path] | None:
        """The four idx files."""
        return idx_files(folder, EMNIST_STEMS)

    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """Images, labels and the number of training samples."""
        train_x, train_y = read_pair(files[0], files[1], size=28, classes=self.label_count)
        test_x, test_y = read_pair(files[2], files[3], size=28, classes=self.label_count)
        x, y = np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y])
        return {"x": np.ascontiguousarray(x.swapaxes(2, 3)), "y": y, "num_train": np.array([len(train_x)])}


# CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32 in pickled batches.

CIFAR_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR100_LABELS = {"fine": 100, "coarse": 20}  # CIFAR-100's labels -> classes


def _cifar_part(name: str, folder: str, md5: str) -> Part:
    """An archive of the author's page; checksums as printed there."""
    return Part((f"https://www.cs.toronto.edu/~kriz/{name}",), name, md5, folder)


@dataclass(frozen=True)
class Cifar10(FileSource):
    """Ten kinds of animals and vehicles, in the layout of the archive cifar-10-python.tar.gz."""

    name: ClassVar[str] = "cifar10"
    folders: ClassVar[tuple[str, ...]] = ("cifar-10-batches-py", "cifar10", "cifar10/cifar-10-batches-py")
    published: ClassVar[tuple[int, int]] = (50_000, 10_000)
    content: ClassVar[str] = "7caf7faa3fb8dff7"
    parts: ClassVar[tuple[Part, ...]] = (
        _cifar_part("cifar-10-python.tar.gz", "cifar-10-batches-py", "c58f30108f718f92721af3b95e74349a"),
    )

    model: str = "lenet5"
    mean: tuple[float, ...] = finite((0.4914, 0.4822, 0.4465))
    std: tuple[float, ...] = positive((0.2470, 0.2435, 0.2616))

    def files(self, folder: Path) -> list[Path] | None:
        """Five training batches and the test batch, or class folders."""
        paths = [folder / name for name in CIFAR_BATCHES]
        published = all(path.is_file() for path in paths)
        return paths if published else class_folders(self.root, folder, self.label_count)

    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """Images, labels and the number of training samples."""
        if files[0].is_dir():
            return read_class_folders(self.name, files, 32, 3, report)
        batches = [read_batch(file, {"labels": 10}) for file in files]
        x = np.concatenate([images for images, _ in batches])
        y = np.concatenate([labels["labels"] for _, labels in batches])
        return {"x": x, "y": y, "num_train": np.array([len(y) - len(batches[-1][0])])}


@dataclass(frozen=True)
class Cifar100(FileSource):
    """A hundred kinds of things, or the twenty groups of them, in the layout of cifar-100-python.tar.gz."""

    name: ClassVar[str] = "cifar100"
    folders: ClassVar[tuple[str, ...]] = ("cifar-100-python", "cifar100", "cifar100/cifar-100-python")
    published: ClassVar[tuple[int, int]] = (50_000, 10_000)
    parts: ClassVar[tuple[Part, ...]] = (
        _cifar_part("cifar-100-python.tar.gz", "cifar-100-python", "eb9058c3a382ffc7106e4002c42a8d85"),
    )

    model: str = "lenet5"
    labels: str = one_of("fine", *CIFAR100_LABELS)  # fine: 100 classes | coarse: 20 groups of five
    mean: tuple[float, ...] = finite((0.5071, 0.4865, 0.4409))
    std: tuple[float, ...] = positive((0.2673, 0.2564, 0.2762))

    @property
    def label(self) -> str:
        return super().label if self.labels == "fine" else f"{super().label}-{self.labels}"

    def files(self, folder: Path) -> list[Path] | None:
        """Class folders, or the training and test batch; their names are common, so a `meta` file must be there too."""
        paths = [folder / name for name in ("train", "test", "meta")]
        published = all(path.is_file() for path in paths)
        return paths if published else class_folders(self.root, folder, CIFAR100_LABELS["fine"])

    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """Images, both kinds of labels and the number of training samples."""
        if files[0].is_dir():
            return read_class_folders(self.name, files, 32, 3, report)
        keys = {f"{kind}_labels": classes for kind, classes in CIFAR100_LABELS.items()}
        (train_x, train_y), (test_x, test_y) = (read_batch(file, keys) for file in files[:2])
        fine, coarse = (np.concatenate([train_y[key], test_y[key]]) for key in keys)
        x = np.concatenate([train_x, test_x])
        return {"x": x, "y": fine, "coarse": coarse, "num_train": np.array([len(train_x)])}

    def dataset(self, arrays: Arrays) -> Dataset:
        if self.labels == "coarse" and "coarse" not in arrays:
            raise DataMissing(
                f"class folders of {self.name} do not contain its coarse labels; give the published files"
            )
        y = arrays["y" if self.labels == "fine" else "coarse"]
        count = int(arrays["num_train"][0])
        return Dataset(self.name, arrays["x"], y, count, CIFAR100_LABELS[self.labels], self.mean, self.std)


# CINIC-10 (Darlow et al. 2018): three times 90,000 colour images of 32 x 32, CIFAR-10's classes from two sources.

CINIC_SPLITS = ("train", "valid", "test")
CINIC_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Cinic10(FileSource):
    """Ten kinds of animals and vehicles, with a folder for each split and class."""

    name: ClassVar[str] = "cinic10"
    folders: ClassVar[tuple[str, ...]] = ("CINIC-10", "cinic10", "cinic-10")
    published: ClassVar[tuple[int, int]] = (180_000, 90_000)
    parts: ClassVar[tuple[Part, ...]] = (
        Part(
            (
                "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                "https://datashare.is.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
            ),
            "CINIC-10.tar.gz",
            "6ee4d0c996905fe93221de577967a372",
            "CINIC-10",
        ),
    )

    model: str = "lenet5"
    valid: bool = True  # the validation images join the training split (180,000 images); false: they do not
    mean: tuple[float, ...] = finite((0.4789, 0.4723, 0.4305))
    std: tuple[float, ...] = positive((0.2421, 0.2383, 0.2587))

    def files(self, folder: Path) -> list[Path] | None:
        """The folders of images; all three splits must be there."""
        if not all((folder / split / CINIC_CLASSES[0]).is_dir() for split in CINIC_SPLITS):
            return None
        return [
            folder / split / name
            for split in CINIC_SPLITS
            for name in CINIC_CLASSES
            if (folder / split / name).is_dir()
        ]

    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """All images: training, validation, test; each split class by class."""
        folder = files[0].parents[1]
        paths, labels, counts = [], [], []
        for split in CINIC_SPLITS:
            found = [images_in(folder / split / name) for name in CINIC_CLASSES]
            counts.append(sum(map(len, found)))
            paths += [path for each in found for path in each]
            labels += [label for label, each in enumerate(found) for _ in each]
        x = read_images(paths, 32, report=report)
        numbers = {"num_train": counts[0] + counts[1], "num_valid": counts[1]}
        return {"x": x, "y": np.array(labels), **{name: np.array([n]) for name, n in numbers.items()}}

    def dataset(self, arrays: Arrays) -> Dataset:
        whole = super().dataset(arrays)
        if self.valid:
            return whole
        first = whole.num_train - int(arrays["num_valid"][0])
        x, y = (np.concatenate([a[:first], a[whole.num_train :]]) for a in (whole.x, whole.y))
        return replace(whole, x=x, y=y, num_train=first)


# Tiny-ImageNet (Stanford CS231n, 2015): 200 classes, 100,000 + 10,000 colour images of 64 x 64.
#
# The published test images have no labels: the validation images are the test split, as in the papers.


@dataclass(frozen=True)
class TinyImageNet(FileSource):
    """200 classes of ImageNet; labels are ranks among the sorted WordNet identifiers."""

    name: ClassVar[str] = "tiny_imagenet"
    folders: ClassVar[tuple[str, ...]] = ("tiny-imagenet-200", "tiny_imagenet", "tiny_imagenet/tiny-imagenet-200")
    published: ClassVar[tuple[int, int]] = (100_000, 10_000)
    label_count: ClassVar[int] = 200
    parts: ClassVar[tuple[Part, ...]] = (
        Part(
            ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
            "tiny-imagenet-200.zip",
            "90528d7ca1a48142e341f4ef8d21d0de",
            "tiny-imagenet-200",
            wanted=lambda name: "/test/" not in name,  # all but the unlabelled test images
        ),
    )

    model: str = "lenet5"
    mean: tuple[float, ...] = finite((0.4802, 0.4481, 0.3975))
    std: tuple[float, ...] = positive((0.2770, 0.2691, 0.2821))

    def files(self, folder: Path) -> list[Path] | None:
        """The list of classes, the validation annotations and the folders of training images."""
        index = [folder / "wnids.txt", folder / "val" / "val_annotations.txt"]
        if not all(path.is_file() for path in index):
            return None
        return [*index, *sorted((folder / "train").glob("*/images"))]

    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """Images and labels, the training images class by class."""
        folder = files[0].parent
        classes = sorted(lines_of(files[0]))
        if len(classes) != self.label_count or len(set(classes)) != len(classes):
            raise DataCorrupt(f"{files[0]} lists {len(classes)} classes, expected {self.label_count}")
        if any(Path(name).name != name for name in classes):
            raise DataCorrupt(f"{files[0]} names a folder outside the data set; fetch it again")
        found = [images_in(folder / "train" / name / "images") for name in classes]
        train = [(path, label) for label, paths in enumerate(found) for path in paths]
        test = _annotated(files[1], {name: label for label, name in enumerate(classes)})
        x = read_images([path for path, _ in [*train, *test]], 64, report=report)
        y = np.array([label for _, label in [*train, *test]])
        return {"x": x, "y": y, "num_train": np.array([len(train)])}


def _annotated(path: Path, labels: Mapping[str, int]) -> list[tuple[Path, int]]:
    """(file, label) of each validation image: lines of name, class and bounding box, divided by tabs.

    Raises:
        DataCorrupt: a line of another form, or a class that is not listed.
    """
    found = []
    for line in lines_of(path):
        name, *rest = line.split("\t")
        if not rest or rest[0] not in labels or Path(name).name != name:
            raise DataCorrupt(f"{path} has the line '{line[:60]}', expected an image and one of the classes")
        found.append((path.parent / "images" / name, labels[rest[0]]))
    return found
