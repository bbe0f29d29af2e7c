"""Data sets that come as files: where they are looked for, how they are fetched, how they are prepared."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from fedbench.data.cache import Arrays, cache_dir, cached_arrays, source_key
from fedbench.data.dataset import DataSource, State
from fedbench.errors import DataMissing

DATA_VARIABLE = "FEDBENCH_DATA"


def data_dir() -> Path:
    """Where data is downloaded to unless `root` says otherwise: FEDBENCH_DATA, else a folder of the cache."""
    given = os.environ.get(DATA_VARIABLE)
    return Path(given).expanduser() if given else cache_dir() / "data"


@dataclass(frozen=True)
class FileSource(DataSource):
    """A data set in files. Subclasses say which files make it up, how to fetch and how to parse them."""

    folders: ClassVar[tuple[str, ...]]  # where under a root the files may lie, besides the root itself
    system: ClassVar[tuple[str, ...]] = ()  # folders that packages of the operating system fill
    package: ClassVar[str] = ""  # the command that installs such a package

    root: str | None = None  # folder that holds the files, or that they are downloaded to
    download: bool = False  # fetch the files if they are nowhere; no network is reached otherwise

    @abstractmethod
    def files(self, folder: Path) -> list[Path] | None:
        """The files of this data set in `folder`, in a fixed order; None unless all are there."""

    @abstractmethod
    def fetch(self, root: Path) -> None:
        """Download the files into one of the `folders` of `root`."""

    @abstractmethod
    def parse(self, files: list[Path]) -> Mapping[str, NDArray[Any]]:
        """The arrays to keep: `x`, `y` and whatever else the data set needs."""

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

    def state(self) -> State:
        """See `DataSource.state`."""
        files = self.locate()
        command = f"python -m fedbench dataset={self.name} dataset.download=true"
        how = f"run `{command}`" + (f" or `{self.package}`" if self.package else "")
        where = "" if files is None else str(files[0].parent)
        return State(files is not None, where, tuple(map(str, self.places())), how)

    def arrays(self) -> Arrays:
        """The parsed files, from the cache if they were parsed before; downloaded if `download` is set.

        Raises:
            DataMissing: the files are nowhere, or the download failed.
            DataCorrupt: a file is not what it should be.
        """
        files = self.locate()
        if files is None and self.download:
            files = self._downloaded()
        if files is None:
            state = self.state()
            looked = ", ".join(state.looked)
            raise DataMissing(f"data set '{self.name}' is in none of: {looked}; to get it, {state.how}")
        return cached_arrays(source_key(self.name, files), lambda: self.parse(files))

    def _downloaded(self) -> list[Path] | None:
        root = Path(self.root).expanduser() if self.root else data_dir()
        try:
            root.mkdir(parents=True, exist_ok=True)
            self.fetch(root)
        except (OSError, RuntimeError) as error:  # no network, no space, a checksum that differs
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataMissing(
                f"data set '{self.name}' could not be downloaded to {root}: {reason}"
            ) from error
        return self.locate()
