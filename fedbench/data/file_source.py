"""Data sets that come as files: where they are looked for, how they are fetched, how they are prepared."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from fedbench.config.domain import finite, positive
from fedbench.core.cache import Arrays, cache_dir, cached_arrays, is_cached, source_key
from fedbench.core.errors import DataCorrupt, DataMissing
from fedbench.core.progress import Report, silent
from fedbench.data.archives import Wanted, unpack
from fedbench.data.dataset import Availability, Dataset, DataSource
from fedbench.data.download import Remote, download

DATA_VARIABLE = "FEDBENCH_DATA"
DOWNLOADS = "downloads"  # folder of a root that holds archives until they are unpacked


def data_dir() -> Path:
    """Where data is downloaded to unless `root` says otherwise: FEDBENCH_DATA, else a folder of the cache."""
    given = os.environ.get(DATA_VARIABLE)
    return Path(given).expanduser() if given else cache_dir() / "data"


@dataclass(frozen=True)
class Part:
    """A piece of a data set as it is fetched, and where it ends up below a root."""

    remote: Remote
    to: str  # the file it becomes, or the folder it is unpacked as; what is there is not fetched again
    archive: bool = True  # unpack it
    wanted: Wanted | None = None  # which files of the archive; None: all

    def fetch(self, root: Path, report: Report) -> None:
        """Download it, and unpack it if it is an archive, which is removed then."""
        path, target = download(self.remote, root / DOWNLOADS, report), root / self.to
        if self.archive:
            unpack(path, target, self.wanted, report)
            path.unlink()
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)


@dataclass(frozen=True)
class FileSource(DataSource):
    """A data set in files. Subclasses say which files make it up, how to fetch and how to parse them."""

    folders: ClassVar[tuple[str, ...]]  # where under a root the files may lie, besides the root itself
    system: ClassVar[tuple[str, ...]] = ()  # folders that packages of the operating system fill
    package: ClassVar[str] = ""  # the command that installs such a package
    parts: ClassVar[tuple[Part, ...]] = ()  # what is downloaded
    published: ClassVar[tuple[int, int]] = (0, 0)  # (training, test) samples of the whole data set
    label_count: ClassVar[int] = 10

    root: str | None = None  # folder that holds the files, or that they are downloaded to
    download: bool = False  # fetch the files if they are nowhere; no network is reached otherwise
    partial: bool = False  # accept files with fewer samples than published
    mean: tuple[float, ...] = finite((0.5,))  # a channel, of pixels divided by 255
    std: tuple[float, ...] = positive((0.5,))

    @abstractmethod
    def files(self, folder: Path) -> list[Path] | None:
        """The files (or folders of images) of this data set in `folder`, in a fixed order; None unless all are there.

        The prepared arrays are made again when one of them changes, so large data sets name their folders, not
        every image.
        """

    @abstractmethod
    def parse(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        """The arrays to keep: `x`, `y`, `num_train` [1] and whatever else the data set needs."""

    @property
    def variant(self) -> str:
        """The options that change what `parse` yields, as a suffix of the cache's key."""
        return ""

    @property
    def by_hand(self) -> str:
        """What is still missing after a download, and how to get it; nothing for most data sets."""
        return ""

    def read(self, report: Report = silent) -> Dataset:
        """See `DataSource.read`."""
        return self.dataset(self.arrays(report))

    def dataset(self, arrays: Arrays) -> Dataset:
        """The data set that the prepared arrays make."""
        count = int(arrays["num_train"][0])
        x, y = arrays["x"], arrays["y"]
        return Dataset(self.name, x, y, count, self.label_count, self.mean, self.std)

    def places(self) -> list[Path]:
        """Every folder that is looked at, in order."""
        roots = [Path(self.root).expanduser()] if self.root else []
        roots.append(data_dir())
        under = [root / folder for root in roots for folder in ("", *self.folders)]
        return list(dict.fromkeys([*under, *map(Path, self.system)]))

    def locate(self) -> list[Path] | None:
        """The files in the first place that has all of them."""
        found = (self.files(place) for place in self.places())
        return next((files for files in found if files is not None), None)

    def state(self) -> Availability:
        """See `DataSource.state`."""
        files = self.locate()
        how = f"run `python -m fedbench prepare {self.name}`, or add dataset.download=true to a run"
        how += f", or `{self.package}`" if self.package else ""
        how += f"; {self.by_hand}" if self.by_hand else ""
        where = "" if files is None else str(files[0].parent)
        prepared = files is not None and is_cached(self._key(files))
        return Availability(files is not None, where, tuple(map(str, self.places())), how, prepared)

    def arrays(self, report: Report = silent) -> Arrays:
        """The parsed files, from the cache if they were parsed before; downloaded if `download` is set.

        Raises:
            DataMissing: the files are nowhere, or the download failed.
            DataCorrupt: a file is not what it should be.
        """
        files = self.locate()
        if files is None and self.download:
            self.fetch(report)
            files = self.locate()
        if files is None:
            state = self.state()
            looked = ", ".join(state.looked)
            raise DataMissing(f"data set '{self.name}' is in none of: {looked}; to get it, {state.how}")
        return cached_arrays(self._key(files), lambda: self._checked(files, report))

    @property
    def stamp(self) -> str:
        """See `DataSource.stamp`."""
        files = self.locate()
        return "" if files is None else self._key(files)

    def _key(self, files: list[Path]) -> str:
        return source_key(self.name + self.variant + ("-partial" if self.partial else ""), files)

    def _checked(self, files: list[Path], report: Report) -> Mapping[str, NDArray[Any]]:
        arrays = self.parse(files, report)
        train = int(arrays["num_train"][0])
        self.check(files[0].parent, train, len(arrays["y"]) - train)
        return arrays

    def check(self, where: Path, train: int, test: int) -> None:
        """Refuse what was parsed if samples are missing.

        Raises:
            DataCorrupt: other numbers than published, unless `partial`.
        """
        if not self.partial and (train, test) != self.published:
            raise DataCorrupt(
                f"{where} holds {train:,} + {test:,} samples of {self.name}, published are "
                f"{self.published[0]:,} + {self.published[1]:,}; fetch it again, or say dataset.partial=true"
            )

    def fetch(self, report: Report = silent) -> None:
        """Download the parts into `root`, verify and unpack them.

        Raises:
            DataMissing: no network, no space.
            DataCorrupt: what came is not the published file.
        """
        root = Path(self.root).expanduser() if self.root else data_dir()
        try:
            for part in self.parts:
                if not (root / part.to).exists():
                    part.fetch(root, report)
        except (OSError, DataMissing) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise DataMissing(
                f"data set '{self.name}' could not be downloaded to {root}: {reason}"
            ) from error
