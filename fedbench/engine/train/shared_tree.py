"""Stacked trees in shared memory, which several processes read and write without copies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.trees import Tree

Spec = dict[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True)
class SharedTree:
    """A stacked tree in one shared allocation; a shared leaf (stride 0) is stored once."""

    buffer: Tensor  # uint8
    spec: Spec  # name -> (shape with the client axis as stored, dtype)

    @classmethod
    def like(cls, spec: Spec) -> SharedTree:
        """An allocation for leaves of `spec`."""
        size = sum(_padded_bytes(shape, dtype) for shape, dtype in spec.values())
        return cls(torch.empty(size, dtype=torch.uint8).share_memory_(), spec)

    def leaves(self) -> Tree:
        """The leaves as stored: views of the buffer."""
        views: Tree = {}
        offset = 0
        for name, (shape, dtype) in self.spec.items():
            count = torch.Size(shape).numel() * dtype.itemsize
            views[name] = self.buffer[offset : offset + count].view(dtype).view(shape)
            offset += _padded_bytes(shape, dtype)
        return views


def _padded_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    count = torch.Size(shape).numel() * dtype.itemsize
    return -(-count // 64) * 64


def spec_of(tree: Tree, rows: int | None = None) -> Spec:
    """Spec to store `tree`: shared leaves get one row; `rows`, where given, is put in the client axis's place."""
    spec: Spec = {}
    for name, leaf in tree.items():
        count = rows if rows is not None else (1 if trees.is_shared(leaf) else leaf.shape[0])
        spec[name] = ((count, *leaf.shape[1:]), leaf.dtype)
    return spec
