"""The memory of clients between rounds: leaves [N, ...], of which a round changes the cohort's rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.trees import Tree, sent
from fedbench.engine.hardware import free_bytes

SHARE = 0.25  # of a device's free memory that clients' rows may take, before they are kept on the host


class ClientMemory(Mapping[str, Tensor]):
    """The memory of all clients. As a mapping it gives copies of its leaves [N, ...], for inspection, not for rounds.

    A client that never trained has the method's initial row. If all clients begin equal, this is one copy, so a
    stateless method costs no memory. Rows are allocated when the first client trains, and on a CPU the operating system
    provides the memory of a row when it is first written. A checkpoint holds the written rows.
    """

    def __init__(self, initial: Tree, clients: int, device: torch.device) -> None:
        """Every client holds its row of `initial` (leaves [N, ...], shared or not, on `device`)."""
        self.initial = {k: leaf if trees.is_shared(leaf) else leaf.clone() for k, leaf in initial.items()}
        self.device = device
        self.row_bytes = trees.row_bytes(initial) if clients else 0
        self._trained = torch.zeros(clients, dtype=torch.bool)
        self._rows: Tree = {}  # leaves [N, ...]; none before the first client is trained

    # ---- a round's access

    def take(self, ids: Tensor) -> Tree:
        """Memory of clients `ids` [C], leaves [C, ...]; shared leaves stay shared while none of them has trained."""
        trained = self._trained[ids]
        if not trained.any():
            return trees.take(self.initial, ids)
        if trained.all():
            return {name: self._leaf(name, ids) for name in self.initial}
        found = trees.clone(trees.take(self.initial, ids))
        where = sent(trained.nonzero().flatten(), self.device)
        for name, leaf in found.items():
            leaf[where] = self._leaf(name, ids[trained])
        return found

    def put(self, ids: Tensor, rows: Tree) -> None:
        """Set the memory of clients `ids` [C] to `rows`, leaves [C, ...]; a leaf that `rows` lacks stays.

        Raises:
            ValueError: `rows` has a leaf that the initial memory lacks.
        """
        if not rows:
            return
        if others := sorted(set(rows) - set(self.initial)):
            raise ValueError(f"clients keep {sorted(self.initial)} between rounds, but not {others}")
        if len(rows) < len(self.initial):
            rows = {**self.take(ids), **rows}
        if not self._rows:
            home = self._home()
            self._rows = {k: torch.empty(v.shape, dtype=v.dtype, device=home) for k, v in self.initial.items()}
        for name, leaf in self._rows.items():
            row = rows[name].detach().to(leaf.dtype)
            leaf[sent(ids, leaf.device)] = sent(row, leaf.device)
        self._trained[ids] = True

    def _leaf(self, name: str, ids: Tensor) -> Tensor:
        leaf = self._rows[name]
        return sent(leaf[sent(ids, leaf.device)], self.device)

    def _home(self) -> torch.device:
        """The device of the rows: the training device, or the host if they would take too much of its memory."""
        fits = self.clients * self.row_bytes <= SHARE * free_bytes(self.device)
        return self.device if fits else torch.device("cpu")

    # ---- as a mapping

    def __getitem__(self, name: str) -> Tensor:
        ids = self._trained.nonzero().flatten()
        leaf = self.initial[name]
        if not len(ids):
            return leaf
        dense = leaf.clone(memory_format=torch.contiguous_format)
        dense[sent(ids, self.device)] = self._leaf(name, ids)
        return dense

    def __iter__(self) -> Iterator[str]:
        return iter(self.initial)

    def __len__(self) -> int:
        return len(self.initial)

    # ---- checkpoints

    @property
    def clients(self) -> int:
        """N."""
        return len(self._trained)

    def state(self) -> Tree:
        """Return what a checkpoint needs: the initial memory, and the rows of clients that have trained."""
        shared = {k: leaf[:1] for k, leaf in self.initial.items() if trees.is_shared(leaf)}
        own = {k: leaf for k, leaf in self.initial.items() if k not in shared}
        ids = self._trained.nonzero().flatten()
        tree = {**trees.join(shared=shared, own=own), "clients": ids}
        return tree | trees.join(rows={name: self._leaf(name, ids) for name in self._rows})

    @classmethod
    def restore(cls, tree: Tree, clients: int, device: torch.device) -> ClientMemory:
        """Return the memory whose `state` was `tree`."""
        shared = {k: v.to(device).expand(clients, *v.shape[1:]) for k, v in trees.under(tree, "shared").items()}
        own = trees.map_leaves(lambda v: v.to(device), trees.under(tree, "own"))
        memory = cls({**shared, **own}, clients, device)
        memory.put(tree["clients"], trees.under(tree, "rows"))
        return memory
