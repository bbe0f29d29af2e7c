"""What clients keep between rounds: a table with a row a client, of which a round touches the cohort's.

A client that never trained has no row, only the method's initial memory (one copy, where all begin alike). So a
stateless method costs nothing, and a checkpoint holds the rows that were written. Rows too many for memory live in a
memory-mapped file; a checkpoint then names their places, and rows it relies on are not overwritten but written anew,
so it costs the writing out of what has changed since the last one, however large the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedbench.config.schema import HardwareConfig
from fedbench.core import trees
from fedbench.core.errors import CheckpointError, FedbenchError
from fedbench.core.trees import Tree, sent
from fedbench.engine.hardware import free_bytes
from fedbench.engine.setup import Setup
from fedbench.runs.folder import MEMORY

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class RowLayout:
    """Where each leaf of a client lies in its row."""

    shapes: dict[str, tuple[int, ...]]  # of one client's leaf
    dtypes: dict[str, torch.dtype]
    spans: dict[str, tuple[int, int]]  # first byte, byte after the last
    width: int  # bytes a row

    @classmethod
    def of(cls, tree: Tree) -> RowLayout:
        """The layout of a stacked tree's rows, leaves in name order."""
        names = sorted(tree)
        shapes = {name: tuple(tree[name].shape[1:]) for name in names}
        dtypes = {name: tree[name].dtype for name in names}
        spans: dict[str, tuple[int, int]] = {}
        end = 0
        for name in names:
            begin, end = end, end + torch.Size(shapes[name]).numel() * dtypes[name].itemsize
            spans[name] = (begin, end)
        return cls(shapes, dtypes, spans, end)

    def packed(self, tree: Tree) -> Tensor:
        """Leaves [C, ...] as rows, uint8 [C, width].

        Raises:
            ValueError: there are others.
        """
        if others := sorted(set(tree) - set(self.spans)):
            raise ValueError(
                f"clients keep {list(self.spans)} between rounds, there is no place for {others}"
            )
        columns = []
        for name, (begin, end) in self.spans.items():
            leaf = tree[name].detach().to(self.dtypes[name])
            flat = leaf.reshape(len(leaf), (end - begin) // leaf.element_size())
            # Copied even if it is contiguous: an expanded leaf of one element is, with a stride no view accepts.
            columns.append(flat.clone(memory_format=torch.contiguous_format).view(torch.uint8))
        return torch.cat(columns, 1)

    def unpacked(self, name: str, columns: Tensor) -> Tensor:
        """Leaf `name` [C, ...] from its bytes, uint8 [C, span], contiguous."""
        shape, dtype = (len(columns), *self.shapes[name]), self.dtypes[name]
        if not columns.shape[1]:  # may have no stride to view as another type
            return torch.empty(shape, dtype=dtype, device=columns.device)
        return columns.view(dtype).view(shape)


# Rows of bytes, one a client: in a tensor, or in a memory-mapped file when they are too many for memory.
#
# A row is a client's leaves end to end (see `layout`). Rows are found by slots; which client has which slot is the
# caller's (see `store`).

SMALLEST_GROWTH = 64 * 2**20  # bytes a file grows by at least


class Rows(ABC):
    """A table of rows that grows on demand. `kept` rows are those a checkpoint relies on: they are not overwritten."""

    def __init__(self, width: int) -> None:
        """`width`: bytes a row."""
        self.width = width
        self.capacity = 0
        self.kept = np.zeros(0, dtype=bool)  # [capacity]
        self._free: list[int] = []

    def claim(self, slots: np.ndarray) -> np.ndarray:
        """Where to write clients whose rows are at `slots` (-1: nowhere yet): there, or at new ones."""
        claimed: np.ndarray = slots.copy()
        new = np.flatnonzero((slots < 0) | self.kept[slots] if self.capacity else slots < 0)
        while len(self._free) < len(new):
            self._extend(self._grow(self.capacity + len(new)))
        for each in new:
            claimed[each] = self._free.pop()
        return claimed

    def keep(self, slots: np.ndarray) -> None:
        """A checkpoint now relies on the rows at `slots`, and on no other ones."""
        self.kept[:] = False
        self.kept[slots] = True
        self._free = np.flatnonzero(~self.kept)[::-1].tolist()

    def _extend(self, capacity: int) -> None:
        self._free = [*range(capacity - 1, self.capacity - 1, -1), *self._free]
        self.kept = np.concatenate([self.kept, np.zeros(capacity - self.capacity, dtype=bool)])
        self.capacity = capacity

    @abstractmethod
    def _grow(self, least: int) -> int:
        """Make room for at least `least` rows; how many there is room for now."""

    @abstractmethod
    def read(self, slots: np.ndarray, begin: int, end: int) -> Tensor:
        """Bytes `begin` to `end` of the rows at `slots`: a copy, uint8 [C, end - begin]."""

    @abstractmethod
    def write(self, slots: np.ndarray, rows: Tensor) -> None:
        """Set the rows at `slots` to `rows`, uint8 [C, width]."""

    def flush(self) -> None:
        """Make everything written survive the end of the process."""
        return

    def close(self, *, remove: bool) -> None:
        """Release the rows, and `remove` what is left of them outside this process."""
        return


class ResidentRows(Rows):
    """Rows in one tensor, on the CPU or a GPU."""

    def __init__(self, width: int, most: int, device: torch.device) -> None:
        """Room for `most` rows: on a CPU the system hands out the memory of a row when it is first written."""
        super().__init__(width)
        self._table = torch.empty(most, width, dtype=torch.uint8, device=device)
        self._extend(most)

    def _grow(self, least: int) -> int:
        larger = torch.empty(2 * least, self.width, dtype=torch.uint8, device=self._table.device)
        larger[: self.capacity] = self._table
        self._table = larger
        return len(larger)

    def read(self, slots: np.ndarray, begin: int, end: int) -> Tensor:
        """See Rows.read."""
        return self._table[:, begin:end][sent(torch.from_numpy(slots), self._table.device)]

    def write(self, slots: np.ndarray, rows: Tensor) -> None:
        """See Rows.write."""
        self._table[sent(torch.from_numpy(slots), self._table.device)] = sent(rows, self._table.device)


class MappedRows(Rows):
    """Rows in a memory-mapped file: only those being read or written are in memory, the system keeps what it can."""

    def __init__(self, width: int, path: Path, *, resume: bool = False) -> None:
        """A new file at `path`, or with `resume` the one that is there.

        Raises:
            FedbenchError: it cannot be opened.
        """
        super().__init__(width)
        self.path = path
        flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | (0 if resume else os.O_CREAT | os.O_TRUNC)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, flags, 0o666)
        except OSError as error:
            raise _unusable(path, error) from error
        self._map: mmap.mmap | None = None
        self._table = np.zeros((0, width), dtype=np.uint8)
        if there := os.fstat(self._file).st_size // width:
            self._mapped(there)
            self._extend(there)

    def _grow(self, least: int) -> int:
        capacity = max(least, self.capacity * 3 // 2, self.capacity + SMALLEST_GROWTH // self.width)
        try:
            # Room is taken here: in a file with holes, a full disk would end the process at a write to memory.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, 0, capacity * self.width)
            else:
                os.ftruncate(self._file, capacity * self.width)
        except OSError as error:
            raise _unusable(self.path, error) from error
        self._mapped(capacity)
        return capacity

    def _mapped(self, capacity: int) -> None:
        self._map = mmap.mmap(self._file, capacity * self.width)
        self._table = np.frombuffer(self._map, dtype=np.uint8).reshape(capacity, self.width)

    def read(self, slots: np.ndarray, begin: int, end: int) -> Tensor:
        """See Rows.read."""
        rows = torch.from_numpy(self._table[slots, begin:end])
        self._release()
        return rows

    def write(self, slots: np.ndarray, rows: Tensor) -> None:
        """See Rows.write."""
        self._table[slots] = rows.cpu().numpy()
        self._release()

    def _release(self) -> None:
        """Stop counting the pages as this process's; the system still has them, or writes them out."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def flush(self) -> None:
        """See Rows.flush."""
        if self._map is not None:
            try:
                self._map.flush()
            except OSError as error:
                raise _unusable(self.path, error) from error

    def close(self, *, remove: bool) -> None:
        """See Rows.close."""
        self._table = np.zeros((0, self.width), dtype=np.uint8)
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if remove:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)


def _unusable(path: Path, error: OSError) -> FedbenchError:
    return FedbenchError(
        f"cannot keep the clients' memory in {path} ({error.strerror or error}); make room, name another folder with "
        "hardware.scratch, or keep it in memory with hardware.client_memory=host"
    )


# Where clients' memory is kept: on the training device, in the host's memory, or in a memory-mapped file.

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


class ClientStore(Mapping[str, Tensor]):
    """Client memory; as a mapping, its leaves with all clients [N, ...] (copies: for looking at, not for rounds)."""

    def __init__(self, initial: Tree, clients: int, storage: Storage, device: torch.device) -> None:
        """Every client holds its row of `initial` (leaves [N, ...], shared or not, on `device`)."""
        self.initial = {k: leaf if trees.is_shared(leaf) else leaf.clone() for k, leaf in initial.items()}
        self.device = device
        self.layout = RowLayout.of(initial)
        self._storage = storage
        self._rows: Rows | None = None
        self._slots = np.full(clients, -1, dtype=np.int64)  # row of each client; -1: as `initial` has it
        self._sums = np.zeros(clients, dtype=np.int64)  # checksums of rows in a file
        self._checked = np.ones(clients, dtype=bool)  # False: of an earlier process, not read yet
        self._resumable = False

    # ---- a round's access

    def take(self, ids: Tensor) -> Tree:
        """Memory of clients `ids` [C], leaves [C, ...]; shared leaves stay shared while nobody of them has a row.

        Raises:
            CheckpointError: a row of an earlier process is not what was checkpointed.
        """
        slots = self._slots[ids.numpy()]
        written = slots >= 0
        if self._rows is None or not written.any():
            return trees.take(self.initial, ids)
        if written.all():
            return {name: self._leaf(name, ids.numpy(), slots) for name in self.layout.spans}
        found = trees.clone(trees.take(self.initial, ids))
        here = sent(torch.from_numpy(np.flatnonzero(written)), self.device)
        for name, leaf in found.items():
            leaf[here] = self._leaf(name, ids.numpy()[written], slots[written])
        return found

    def put(self, ids: Tensor, rows: Tree) -> None:
        """Set the memory of clients `ids` [C] to `rows`, leaves [C, ...]; a leaf that `rows` lacks stays."""
        if not rows:
            return
        if len(rows) < len(self.initial):
            rows = {**self.take(ids), **rows}
        if self._rows is None:
            self._rows = self._storage.rows(self.layout.width, self.device)
        clients, packed = ids.numpy(), self.layout.packed(rows)
        slots = self._rows.claim(self._slots[clients])
        self._rows.write(slots, packed)
        self._slots[clients] = slots
        if self.mapped:
            self._sums[clients] = checksums(packed)
            self._checked[clients] = True

    def _leaf(self, name: str, clients: np.ndarray, slots: np.ndarray) -> Tensor:
        if self._rows is None:
            raise RuntimeError("no client has a row yet")
        unseen = ~self._checked[clients]
        if unseen.any():
            self._check(clients[unseen], slots[unseen])
        return self.layout.unpacked(name, sent(self._rows.read(slots, *self.layout.spans[name]), self.device))

    def _check(self, clients: np.ndarray, slots: np.ndarray) -> None:
        for client, slot in zip(clients, slots, strict=True):
            row = self._rows.read(slot[None], 0, self.layout.width) if self._rows else torch.empty(0)
            if checksums(row)[0] != self._sums[client]:
                raise damaged(self._storage, f"the memory of client {client} is not what was checkpointed")
        self._checked[clients] = True

    # ---- as a mapping

    def __getitem__(self, name: str) -> Tensor:
        clients = np.flatnonzero(self._slots >= 0)
        leaf = self.initial[name]
        if not len(clients):
            return leaf
        dense = leaf.clone(memory_format=torch.contiguous_format)
        dense[sent(torch.from_numpy(clients), self.device)] = self._leaf(name, clients, self._slots[clients])
        return dense

    def __iter__(self) -> Iterator[str]:
        return iter(self.initial)

    def __len__(self) -> int:
        return len(self.initial)

    # ---- checkpoints

    @property
    def clients(self) -> int:
        """N."""
        return len(self._slots)

    @property
    def mapped(self) -> bool:
        """Whether rows are in a file."""
        return isinstance(self._rows, MappedRows)

    def state(self) -> Tree:
        """What a checkpoint needs: initial memory, and the written rows or (flushed) their places in the file."""
        shared = {k: leaf[:1] for k, leaf in self.initial.items() if trees.is_shared(leaf)}
        own = {k: leaf for k, leaf in self.initial.items() if k not in shared}
        clients = np.flatnonzero(self._slots >= 0)
        tree = {**trees.join(shared=shared, own=own), "clients": torch.from_numpy(clients)}
        if self._rows is None or not len(clients):
            return tree
        if self.mapped:
            self._rows.flush()
            self._resumable = True  # from here on a checkpoint may be in force at any moment
            places = {"slots": self._slots[clients], "sums": self._sums[clients]}
            return {**tree, **{name: torch.from_numpy(array) for name, array in places.items()}}
        slots = self._slots[clients]
        return tree | trees.join(rows={name: self._leaf(name, clients, slots) for name in self.initial})

    def settle(self) -> None:
        """A checkpoint with the latest `state` is on disk: its rows stay as they are, older ones are free."""
        if self._rows is not None and self.mapped:
            self._rows.keep(self._slots[self._slots >= 0])

    @classmethod
    def restore(cls, tree: Tree, clients: int, storage: Storage, device: torch.device) -> ClientStore:
        """The store whose `state` was `tree`.

        Raises:
            CheckpointError: the file of its rows is missing or too short.
        """
        shared = {
            k: v.to(device).expand(clients, *v.shape[1:]) for k, v in trees.part(tree, "shared").items()
        }
        store = cls(
            {**shared, **trees.map_leaves(lambda v: v.to(device), trees.part(tree, "own"))},
            clients,
            storage,
            device,
        )
        if "slots" in tree:
            store._reopen(tree["clients"].numpy(), tree["slots"].numpy(), tree["sums"].numpy())
        elif len(tree["clients"]):
            store.put(tree["clients"], trees.part(tree, "rows"))
        return store

    def _reopen(self, clients: np.ndarray, slots: np.ndarray, sums: np.ndarray) -> None:
        path = self._storage.path
        if path is None or not path.is_file() or path.stat().st_size < (slots.max() + 1) * self.layout.width:
            raise damaged(self._storage, "the file of the clients' memory is missing or truncated")
        self._rows = MappedRows(self.layout.width, path, resume=True)
        self._slots[clients], self._sums[clients], self._checked[clients] = slots, sums, False
        self._resumable = True
        self.settle()

    # ---- life

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release everything; a file goes, unless the run broke off and a checkpoint relies on it."""
        if self._rows is not None:
            self._rows.close(remove=kind is None or not self._resumable)
            self._rows = None


def checksums(rows: Tensor) -> np.ndarray:
    """CRC-32 of each row, int64 [C]."""
    return np.array([zlib.crc32(row) for row in rows.cpu().numpy()], dtype=np.int64)


def damaged(storage: Storage, reason: str) -> CheckpointError:
    """The checkpoint cannot be used without its rows."""
    return CheckpointError(f"{storage.path}: {reason}; delete the run's checkpoint to start over")
