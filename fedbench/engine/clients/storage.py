"""Where clients' memory is kept: on the training device, in the host's memory, or in a memory-mapped file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

from fedbench.config.schema import HardwareConfig
from fedbench.engine.clients.rows import MappedRows, ResidentRows, Rows
from fedbench.engine.pick.footprint import free_bytes
from fedbench.engine.setup import Setup
from fedbench.results.run_files import MEMORY

MOST_COPIED = (
    2 * 2**30
)  # bytes: more would make every checkpoint, which copies rows that are in no file, take seconds


@dataclass(frozen=True)
class Storage:
    """The choice, made when the first row is written; `auto`: the fastest place that has room."""

    most: int  # rows a run can come to write
    kind: str = "auto"  # auto | device | host | file
    share: float = 0.25  # of the free memory that rows may take
    path: Path | None = None  # of the file; None: there is no place for one

    @classmethod
    def of(cls, setup: Setup, config: HardwareConfig | None = None, folder: Path | None = None) -> Storage:
        """As `config` asks, for a run in `folder`: of all clients, those have a row that some round trained."""
        config = config or HardwareConfig()
        clients = setup.federation.clients
        most = min(clients, setup.protocol.cohort_size(clients) * setup.protocol.rounds)
        path = None if folder is None else folder / MEMORY
        if path is not None and config.scratch is not None:
            name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
            path = Path(config.scratch).expanduser() / f"fedbench-{name}.rows"
        return cls(most, config.client_memory, config.client_memory_share, path)

    def rows(self, width: int, device: torch.device) -> Rows:
        """An empty table of rows of `width` bytes."""
        kind = self.chosen(width, device)
        if kind == "file" and self.path is not None:
            return MappedRows(width, self.path)
        return ResidentRows(width, self.most, device if kind == "device" else torch.device("cpu"))

    def chosen(self, width: int, device: torch.device) -> str:
        """device, host or file."""
        if self.kind != "auto":
            return self.kind
        needed = self.most * width
        for kind, place in (("device", device), ("host", torch.device("cpu"))):
            if needed <= min(MOST_COPIED, self.share * free_bytes(place)):
                return kind
        return "file" if self.path is not None else "host"
