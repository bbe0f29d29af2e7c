"""Names of a network's leaves, what selects them, and which clients have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Rows, Tree
from fedbench.models.norm import BatchNorm


class Leaves:
    """The leaves of the clients' networks by name. Here all clients have all of them: see JointTask for others."""

    parameters: frozenset[str]
    buffers: frozenset[str]
    groups: dict[str, frozenset[str]]  # "@head" -> its leaves

    # ---- selectors

    def select(self, names: Iterable[str], selectors: Iterable[str]) -> list[str]:
        """The `names` that a selector matches, in order.

        A selector is a glob ("conv.*", "personal/*") or a group (@head, @body, @classifier, @norm, @stats), either
        after a namespace ("personal/@head") or without one.
        """
        wanted = list(selectors)
        return [name for name in names if any(self._matches(name, selector) for selector in wanted)]

    def split(self, tree: Tree, selectors: Iterable[str]) -> tuple[Tree, Tree]:
        """(the leaves of `tree` that a selector matches, the rest)."""
        return trees.split(tree, self.select(tree, selectors))

    def _matches(self, name: str, selector: str) -> bool:
        space, _, group = selector.rpartition("/")
        if not group.startswith("@"):
            return fnmatchcase(name, selector)
        if group not in self.groups:
            raise ConfigError(f"unknown leaf group '{group}'; one of: {', '.join(self.groups)}")
        prefix, _, leaf = name.rpartition("/")
        return prefix == space and leaf in self.groups[group]

    def is_buffer(self, name: str) -> bool:
        """Whether a leaf (in any namespace) is a statistic that the forward pass moves, not the optimiser."""
        return name.rpartition("/")[2] in self.buffers

    def weights(self, tree: Tree) -> Tree:
        """The leaves of `tree` that are no statistics: what a distance between models is over."""
        return {name: leaf for name, leaf in tree.items() if not self.is_buffer(name)}

    # ---- who has them

    prefix: str = ""  # what the names begin with of leaves that only clients of this kind have

    def own(self, tree: Tree) -> Tree:
        """The leaves of `tree` that a client with this network has."""
        return tree

    def among(self, tree: Tree, ids: Tensor) -> Iterator[tuple[Rows, Tree]]:
        """The leaves of a stacked tree [C, ...] of clients `ids` by who has them: (which clients, their rows)."""
        yield slice(None), tree

    def kind_of(self, ids: Tensor) -> Tensor:
        """The kind of each of clients `ids`: a place in `kinds`, int64 [C]."""
        return torch.zeros_like(ids)


def leaf_groups(net: nn.Module, classifier: str) -> dict[str, frozenset[str]]:
    """The leaves of `net` in each group that a selector may name; `classifier` is one of SPLITS (see Task)."""
    buffers = frozenset(name for name, _ in net.named_buffers())
    leaves = buffers | {name for name, _ in net.named_parameters()}

    def inside(kind: type[nn.Module]) -> frozenset[str]:
        layers = {name for name, module in net.named_modules() if isinstance(module, kind)}
        return frozenset(name for name in leaves if any(name.startswith(f"{layer}.") for layer in layers))

    last, every = frozenset(name for name in leaves if name.startswith("head.")), inside(nn.Linear)
    head = every if classifier == "linear" else last
    return {
        "@head": head,
        "@body": leaves - head,
        "@classifier": last if classifier == "last" else every,
        "@norm": inside(BatchNorm),  # affine parameters and statistics
        "@stats": buffers,  # running statistics of batch normalisation alone
    }
