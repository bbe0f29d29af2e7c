"""DomainNet, cleaned version (Peng et al., ICCV 2019): 345 classes of things in six styles, 586,575 images.

By default as in pFedSim's Appendix B.3: 20 classes, 30 % of their images, 64 x 64. The paper does not name its classes,
so they are drawn from `seed`. Its Table 8(a) prints 10,000 Quickdraw images, which is all that 20 classes have (500
each): the counts there are those of ratio=1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbench.config.fields import at_least, finite, positive, share
from fedbench.core.cache import Arrays
from fedbench.core.errors import ConfigError, DataCorrupt, Report, unknown
from fedbench.core.rng import numpy_rng
from fedbench.data.dataset import Dataset
from fedbench.data.files import FileSource, Part
from fedbench.data.formats import lines_of, read_images

# What DomainNet (cleaned) consists of: its domains, how much is in their lists, and where the files come from.

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
SPLITS = ("train", "test")
LISTED = {  # images in a domain's training and test list
    "clipart": (33_525, 14_604),
    "infograph": (36_023, 15_582),
    "painting": (50_416, 21_850),
    "quickdraw": (120_750, 51_750),
    "real": (120_906, 52_041),
    "sketch": (48_212, 20_916),
}
SITE = "http://csr.bu.edu/ftp/visda/2019/multi-source"
MD5 = {  # of the images, the training and the test list: as independent public loaders agree on them
    "clipart": "cd0d8f2d77a4e181449b78ed62bccf1e b4349693a7f9c05c53955725c47ed6cb f5ddbcfd657a3acf9d0f7da10db22565",
    "infograph": "720380b86f9e6ab4805bb38b6bd135f8 379b50054f4ac2018dca4f89421b92d9 779626b50869edffe8ea6941c3755c71",
    "painting": "1ae32cdb4f98fe7ab5eb0a351768abfd 7db0e7ca73ad9982f6e1f7f3ef372c0a 232b35dc53f26d414686ae579e38d9b5",
    "quickdraw": "bdc1b6f09f277da1a263389efe0c7a66 b732ced3939ac8efdd8c0a889dca56cc c1a828fdfe216fb109f1c0083a252c6f",
    "real": "dcc47055e8935767784b7162e7c7cca6 8ebf02c2075fadd564705f0dc7cd6291 6098816791c3ebed543c71ffa11b9054",
    "sketch": "658d8009644040ff7ce30bb2e820850f 1233bd18aa9a8a200bf4cecf1c34ef3e d8a222e4672cfd585298aa14d02ea441",
}


def domain_parts() -> tuple[Part, ...]:
    """The archive of images and the two lists of every domain."""
    found = []
    for domain, sums in MD5.items():
        images, *lists = sums.split()
        cleaned = "/groundtruth" if domain in ("clipart", "painting") else ""
        url = f"{SITE}{cleaned}/{domain}.zip"
        found.append(Part((url,), f"{domain}.zip", images, f"domainnet/{domain}"))
        for split, md5 in zip(SPLITS, lists, strict=True):
            name = f"{domain}_{split}.txt"
            found.append(Part((f"{SITE}/domainnet/txt/{name}",), name, md5, f"domainnet/{name}", archive=False))
    return tuple(found)


class Item(NamedTuple):
    """One line of a list."""

    path: str  # domain/class/file
    label: int  # of 345


@dataclass(frozen=True)
class DomainNet(FileSource):
    """Six folders of images, and a training and a test list for each."""

    name: ClassVar[str] = "domainnet"
    folders: ClassVar[tuple[str, ...]] = ("domainnet", "DomainNet", "domain_net")
    parts: ClassVar[tuple[Part, ...]] = domain_parts()

    model: str = "lenet5"
    num_classes: int = at_least(2, 20)  # drawn from the 345 with `seed`
    classes: tuple[str, ...] = ()  # classes by name, instead of num_classes
    ratio: float = share(0.3, above=True)  # share of the images that is kept in each domain, split and class
    size: int = at_least(1, 64)  # height and width in pixels; images are scaled without keeping their aspect ratio
    seed: int = at_least(0, 0)  # seed of the draw of classes and images; independent of the run's seed
    mean: tuple[float, ...] = finite((0.485, 0.456, 0.406))
    std: tuple[float, ...] = positive((0.229, 0.224, 0.225))

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.classes) == 1:
            raise ConfigError(f"dataset.classes must name at least two classes, got {self.classes[0]} alone")

    @property
    def variant(self) -> str:
        options = (self.num_classes, self.classes, self.ratio, self.size, self.seed)
        return "-" + hashlib.sha256(repr(options).encode()).hexdigest()[:8]

    def files(self, folder: Path) -> list[Path] | None:
        """The twelve lists; the folders of images must lie beside them."""
        lists = [folder / f"{domain}_{split}.txt" for domain in DOMAINS for split in SPLITS]
        complete = all(path.is_file() for path in lists) and all((folder / d).is_dir() for d in DOMAINS)
        return lists if complete else None

    def check(self, where: Path, train: int, test: int) -> None:
        """Check nothing more: the lists are checked already, and a missing image is an error."""

    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """The chosen images, training before test, each domain by domain in the order of its list."""
        lists = {file.stem: self._listed(file) for file in files}
        labels = self._chosen([item for items in lists.values() for item in items], files[0].parent)
        kept: dict[str, list[Item]] = {name: self._sample(name, items, labels) for name, items in lists.items()}
        order = [f"{domain}_{split}" for split in SPLITS for domain in DOMAINS]
        items = [item for name in order for item in kept[name]]
        domain = [DOMAINS.index(name.partition("_")[0]) for name in order for _ in kept[name]]
        folder = files[0].parent
        x = read_images([folder / item.path for item in items], self.size, resize=True, report=report)
        return {
            "x": x,
            "y": np.array([labels[item.label] for item in items]),
            "domain": np.array(domain),
            "num_train": np.array([sum(len(kept[f"{d}_train"]) for d in DOMAINS)]),
        }

    def _listed(self, file: Path) -> list[Item]:
        """The lines "domain/class/file label" of one list.

        Raises:
            DataCorrupt: a line of another form, or another number of lines than published.
        """
        domain, _, split = file.stem.partition("_")
        items = []
        for line in lines_of(file):
            path, _, label = line.rpartition(" ")
            parts = path.split("/")
            if len(parts) != 3 or parts[0] != domain or ".." in parts or not label.isdigit():
                raise DataCorrupt(
                    f"{file} has the line '{line[:60]}', expected '{domain}/class/image label'; fetch it again"
                )
            items.append(Item(path, int(label)))
        published = LISTED[domain][SPLITS.index(split)]
        if len(items) != published and not self.partial:
            raise DataCorrupt(
                f"{file} lists {len(items):,} images, published are {published:,}; fetch it again, or set "
                "dataset.partial=true"
            )
        return items

    def _chosen(self, items: Sequence[Item], folder: Path) -> dict[int, int]:
        """Return published label -> label here for the chosen classes, in the published order."""
        names: dict[int, str] = {}
        for item in items:
            names.setdefault(item.label, item.path.split("/")[1])
        for name in self.classes:
            if name not in names.values():
                raise unknown("class of domainnet", name, names.values())
        if self.classes:
            chosen = sorted(label for label, name in names.items() if name in self.classes)
        elif self.num_classes > len(names):
            raise ConfigError(f"dataset.num_classes={self.num_classes}, but {folder} has {len(names)} classes")
        else:
            draw = numpy_rng(self.seed, "domainnet", "classes").permutation(sorted(names))
            chosen = sorted(int(label) for label in draw[: self.num_classes])
        return {label: rank for rank, label in enumerate(chosen)}

    def _sample(self, name: str, items: Sequence[Item], labels: Mapping[int, int]) -> list[Item]:
        """Return `ratio` of each chosen class of one list (rounded down, at least one image), in the list's order."""
        members: dict[int, list[int]] = {}
        for index, item in enumerate(items):
            if item.label in labels:
                members.setdefault(item.label, []).append(index)
        kept: list[int] = []
        for label, indices in sorted(members.items()):
            count = max(1, int(len(indices) * self.ratio + 1e-9))
            draw = numpy_rng(self.seed, "domainnet", name, label).permutation(indices)
            kept += draw[:count].tolist()
        return [items[index] for index in sorted(kept)]

    def dataset(self, arrays: Arrays) -> Dataset:
        count, classes = int(arrays["num_train"][0]), len(self.classes) or self.num_classes
        x, y, domain = arrays["x"], arrays["y"], np.asarray(arrays["domain"])
        return Dataset(self.name, x, y, count, classes, self.mean, self.std, domain=domain)
