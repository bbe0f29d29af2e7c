"""How a client's leaves lie end to end in one row of bytes, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.core.trees import Tree


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
