"""Rows of bytes, one a client: in a tensor, or in a memory-mapped file when they are too many for memory.

A row is a client's leaves end to end (see `layout`). Rows are found by slots; which client has which slot is the
caller's (see `store`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import FedbenchError
from fedbench.core.transfer import sent

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
