"""Trees: flat dictionaries from leaf names to tensors. Models, messages, uploads and states are all trees.

Leaf names are a module's own ("conv.0.weight"), after an optional namespace ("personal/conv.0.weight").
A leading axis of length C holds one client a row; "shared" leaves are expanded over it without copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from fedbench.core.errors import ConfigError

CPU = torch.device("cpu")


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`. From the CPU it is copied through pinned memory, so the host does not wait."""
    if tensor.device.type == "cpu" and device.type != "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """`tensors` on the CPU, in one copy for each device, so the host waits once."""
    away = [tensor for tensor in tensors if tensor.device.type != "cpu"]
    if len(away) < 2:
        return [tensor.to(CPU) for tensor in tensors]
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in away]
    pieces = iter(torch.cat(flat).to(CPU).split([len(piece) for piece in flat]))
    return [
        tensor if tensor.device.type == "cpu" else next(pieces).clone().view(tensor.dtype).view(tensor.shape)
        for tensor in tensors
    ]


Tree = dict[str, Tensor]


class OnHost(Mapping[str, Tensor]):
    """A row of a stacked tree [C, ...] on the CPU; the first read of a leaf fetches it for all rows at once."""

    def __init__(self, tree: Mapping[str, Tensor], index: int = 0, fetched: Tree | None = None) -> None:
        self._tree, self._index = tree, index
        self._fetched: Tree = {} if fetched is None else fetched

    def row(self, index: int) -> OnHost:
        """Return another row, which shares what was fetched."""
        return OnHost(self._tree, index, self._fetched)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._fetched:
            leaf = self._tree[name]
            self._fetched[name] = (leaf[:1] if is_shared(leaf) else leaf).to(CPU)
        leaf = self._fetched[name]
        return leaf[self._index if len(leaf) > 1 else 0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tree)

    def __len__(self) -> int:
        return len(self._tree)


Rows = slice | Tensor  # of a client axis: all (`slice(None)`), or those that a mask (bool [C]) marks


def join(**parts: Mapping[str, Tensor]) -> Tree:
    """One tree, with each part's leaves in a namespace: `join(a=t)["a/x"] is t["x"]`."""
    return {f"{name}/{key}": leaf for name, tree in parts.items() for key, leaf in tree.items()}


def part(tree: Mapping[str, Tensor], name: str) -> Tree:
    """The leaves in namespace `name` without their prefix, the inverse of `join`; refused if there are none.

    Raises:
        LookupError: there are none; see `under` for where that may be.
    """
    if found := under(tree, name):
        return found
    others = dict.fromkeys(f"'{key.partition('/')[0]}'" for key in tree if "/" in key)
    raise LookupError(
        f"no leaf is in the namespace '{name}'; the tree's namespaces: {', '.join(others) or 'none'}; "
        "if there may be none, use trees.under"
    )


def under(tree: Mapping[str, Tensor], name: str) -> Tree:
    """As `part`, but an empty tree if there are none; for leaves that depend on a setting or the network."""
    start = len(name) + 1
    return {key[start:]: leaf for key, leaf in tree.items() if key.startswith(name + "/")}


def without(tree: Mapping[str, Tensor], name: str) -> Tree:
    """The leaves outside namespace `name`."""
    return {key: leaf for key, leaf in tree.items() if not key.startswith(name + "/")}


def plain(tree: Mapping[str, Tensor]) -> Tree:
    """The leaves in no namespace."""
    return {key: leaf for key, leaf in tree.items() if "/" not in key}


def split(tree: Tree, names: Iterable[str]) -> tuple[Tree, Tree]:
    """(leaves in `names`, the rest)."""
    chosen = set(names)
    return (
        {key: leaf for key, leaf in tree.items() if key in chosen},
        {key: leaf for key, leaf in tree.items() if key not in chosen},
    )


def map_leaves(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """The tree with `function` applied to every leaf."""
    return {key: function(leaf) for key, leaf in tree.items()}


def clone(tree: Mapping[str, Tensor]) -> Tree:
    """A deep, contiguous copy, detached from autograd."""
    return {key: leaf.detach().clone(memory_format=torch.contiguous_format) for key, leaf in tree.items()}


def copy_all(targets: Tree, sources: Tree) -> None:
    """Write `sources` into the leaves of `targets` with the same names, all leaves of one type at once."""
    for dtype in {leaf.dtype for leaf in targets.values()}:
        names = [name for name, leaf in targets.items() if leaf.dtype == dtype]
        torch._foreach_copy_([targets[name] for name in names], [sources[name] for name in names])


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees with the same leaves, stacked on a new client axis: leaves [C, ...]."""
    return {key: torch.stack([tree[key] for tree in trees]) for key in trees[0]} if trees else {}


def row(tree: Mapping[str, Tensor], index: int) -> Tree:
    """Client `index` of a stacked tree, without the client axis: views, no copies."""
    return {key: leaf[index] for key, leaf in tree.items()}


def take(tree: Tree, ids: Tensor) -> Tree:
    """Copy of rows `ids` [C] of a stacked tree; a shared leaf stays shared."""
    places = _everywhere(ids)
    return {
        key: leaf[:1].expand(len(ids), *leaf.shape[1:]) if is_shared(leaf) else leaf[places(leaf.device)]
        for key, leaf in tree.items()
    }


def put(tree: Tree, ids: Tensor, rows: Tree) -> Tree:
    """A new tree: `tree` with rows `ids` replaced by `rows` [C, ...]."""
    updated, places = {**tree, **clone({key: tree[key] for key in rows})}, _everywhere(ids)
    for key, leaf in rows.items():
        target = updated[key]
        target[places(target.device)] = leaf.to(target.dtype)
    return updated


def rows(tree: Tree, chosen: Rows) -> Tree:
    """The rows `chosen` of a stacked tree, a copy unless all are chosen; a shared leaf stays shared."""
    if isinstance(chosen, slice):
        return tree
    return take(tree, chosen.nonzero().flatten())


def spread(parts: Iterable[tuple[Rows, Tree]], count: int) -> Tree:
    """The inverse of `rows`: one tree [C, ...] of `count` clients from parts that each have some of them.

    A row is nan (0 in an integer leaf) if no part has the leaf for that client.

    Raises:
        ConfigError: two parts have a leaf of one name and unequal shapes.
    """
    whole: Tree = {}
    for chosen, tree in parts:
        places = None if isinstance(chosen, slice) else _everywhere(chosen.nonzero().flatten())
        for key, leaf in tree.items():
            if places is None or len(leaf) == count:
                whole[key] = leaf
                continue
            if key not in whole:
                nothing = float("nan") if leaf.is_floating_point() else 0
                whole[key] = leaf.new_full((count, *leaf.shape[1:]), nothing)
            if whole[key].shape[1:] != leaf.shape[1:]:
                raise ConfigError(
                    f"leaf '{key}' is {list(whole[key].shape[1:])} on some clients and {list(leaf.shape[1:])} on "
                    "others; a leaf that several modalities share must have one shape"
                )
            whole[key][places(leaf.device)] = leaf
    return whole


def _everywhere(ids: Tensor) -> Callable[[torch.device], Tensor]:
    """A function that gives `ids` on a device and copies them there once."""
    return cache(partial(sent, ids))


def expand(tree: Tree, count: int) -> Tree:
    """One model as the message to `count` clients: leaves [C, ...] without copies."""
    return {key: leaf.unsqueeze(0).expand(count, *leaf.shape) for key, leaf in tree.items()}


def is_shared(leaf: Tensor) -> bool:
    """Whether a stacked leaf is one row expanded over the client axis."""
    return leaf.dim() > 0 and leaf.stride(0) == 0


def mean(tree: Tree, weights: Tensor) -> Tree:
    """Weighted mean over the client axis; `weights` [C] sum to one. Integer leaves keep their type."""
    return {key: leaf[0] for key, leaf in mix(weights.unsqueeze(0), tree).items()}


def mix(matrix: Tensor, tree: Tree) -> Tree:
    """Row i of the result is sum_j matrix[i, j] tree[j]: leaves [C, ...] -> [R, ...], matrix [R, C].

    Raises:
        ValueError: a row of `matrix` that is not a distribution.
    """
    check_stochastic(matrix)
    mixed: Tree = {}
    placed = _everywhere(matrix)
    for key, leaf in tree.items():
        weights = placed(leaf.device).to(leaf.dtype if leaf.is_floating_point() else torch.float64)
        values = (weights @ leaf.reshape(leaf.shape[0], -1).to(weights.dtype)).view(-1, *leaf.shape[1:])
        mixed[key] = values if leaf.is_floating_point() else values.round().to(leaf.dtype)
    return mixed


def check_stochastic(matrix: Tensor) -> None:
    """Assert that every row of an aggregation matrix is non-negative and sums to one."""
    sums = matrix.sum(dim=-1)
    if not bool(((matrix >= -1e-6).all(-1) & ((sums - 1).abs() <= 1e-4)).all()):
        raise ValueError(f"aggregation matrix is not row-stochastic: row sums {sums.tolist()[:8]}")


def flatten(tree: Tree) -> Tensor:
    """All leaves of a stacked tree as one matrix [C, P], leaves in name order."""
    return torch.cat([tree[key].reshape(tree[key].shape[0], -1) for key in sorted(tree)], dim=1)


def unflatten(matrix: Tensor, like: Tree) -> Tree:
    """The inverse of `flatten`: [C, P] back to leaves [C, ...] shaped as `like`'s rows."""
    tree: Tree = {}
    offset = 0
    for key in sorted(like):
        count = like[key][0].numel()
        tree[key] = matrix[:, offset : offset + count].view(-1, *like[key].shape[1:])
        offset += count
    return tree


def sum_of(terms: Iterable[Tensor]) -> Tensor:
    """Sum of scalar tensors (0 if none)."""
    return sum(terms, torch.zeros(()))


def dot(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Inner product of two trees over the leaves of `a`, a scalar."""
    return sum_of((a[key] * b[key]).sum() for key in a)


def squared_distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """||a - b||^2 over the leaves of `a`, a scalar."""
    return sum_of((a[key] - b[key]).square().sum() for key in a)


def row_bytes(tree: Tree) -> int:
    """Bytes of one client's row of a stacked tree: what crosses the network."""
    return sum(leaf_bytes(leaf[0]) for leaf in tree.values())


def leaf_bytes(leaf: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return leaf.numel() * leaf.element_size()
