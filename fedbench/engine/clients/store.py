"""What clients keep between rounds: a table with a row a client, of which a round touches the cohort's.

A client that never trained has no row, only the method's initial memory (one copy, where all begin alike). So a
stateless method costs nothing, and a checkpoint holds the rows that were written. Rows too many for memory live in a
memory-mapped file; a checkpoint then names their places, and rows it relies on are not overwritten but written anew,
so it costs the writing out of what has changed since the last one, however large the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.errors import CheckpointError
from fedbench.core.transfer import sent
from fedbench.core.trees import Tree
from fedbench.engine.clients.layout import RowLayout
from fedbench.engine.clients.rows import MappedRows, Rows
from fedbench.engine.clients.storage import Storage

if TYPE_CHECKING:
    from typing_extensions import Self


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
