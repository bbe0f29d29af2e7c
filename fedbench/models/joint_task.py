"""Networks of several kinds of client as one task: names of leaves are told apart, the classifier layer is shared.

The network of the kind `text` is an nn.Sequential of two stages: `text`, everything before the classifier layer, and
`head`. So its leaves are called `text.conv.0.weight` and `head.weight`. A leaf whose name, after any namespace, begins
with a kind is had by the clients of that kind alone; every other leaf by all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Rows, Tree
from fedbench.models.slices import Slice
from fedbench.models.task import Task


class KindTask(Task):
    """The network of one kind of client among `names`, which begins with the classifier layer of `first`."""

    def __init__(self, plain: Task, names: Sequence[str], kind: int, first: Task | None = None) -> None:
        self._made_of = (plain, tuple(names), kind, first)
        self._names = tuple(names)
        self._first = first
        self.prefix = f"{names[kind]}."
        build = partial(_nested, plain._build, names[kind])
        begin = partial(_renamed, plain._begin, self.prefix)
        super().__init__(build, plain.shape, plain.classes, begin, plain.tokens, bf16=plain.bf16)

    def __reduce__(self) -> tuple[type[Task], tuple[object, ...]]:
        """Pickle what makes the task, not the networks."""
        return KindTask, self._made_of

    def init(self, generator: torch.Generator) -> Tree:
        """Its own initial weights, but for those it shares with the first kind."""
        state = generator.get_state()
        own = super().init(generator)
        if self._first is None:
            return own
        generator.set_state(state)
        shared = self._first.init(generator)
        return {name: shared.get(name, leaf) for name, leaf in own.items()}

    def own(self, tree: Tree) -> Tree:
        """See Leaves.own."""
        return {key: leaf for key, leaf in tree.items() if owner(key, self._names) in (self.prefix[:-1], "")}


class JointTask(Task):
    """What a server knows of networks of several kinds: the leaves of all. It runs none: see `kinds`."""

    def __init__(self, tasks: Sequence[Task], names: Sequence[str], kind: Tensor) -> None:
        """`tasks` and `names` of the kinds; `kind` [N] is the place in them of each client's.

        Raises:
            ConfigError: the kinds' classifier layers differ.
        """
        first = KindTask(tasks[0], names, 0)
        rest = [KindTask(task, names, place, first) for place, task in enumerate(tasks[1:], 1)]
        self._kinds: tuple[Task, ...] = (first, *rest)
        self._names, self._kind = tuple(names), kind
        self._check_heads()
        self.classes = first.classes
        self.parameters = frozenset().union(*(task.parameters for task in self._kinds))
        self.buffers = frozenset().union(*(task.buffers for task in self._kinds))
        self.groups = {
            group: frozenset().union(*(task.groups[group] for task in self._kinds)) for group in first.groups
        }

    def _check_heads(self) -> None:
        shapes = [
            {n: tuple(p.shape) for n, p in task.fresh().get_submodule("head").named_parameters()}
            for task in self._kinds
        ]
        for name, other in zip(self._names[1:], shapes[1:], strict=True):
            if other != shapes[0]:
                raise ConfigError(
                    f"clients of kinds '{self._names[0]}' and '{name}' share the classifier layer, whose weights are "
                    f"{list(shapes[0].get('weight', ()))} and {list(other.get('weight', ()))}; choose networks with "
                    "representations of one width"
                )

    @property
    def kinds(self) -> tuple[Task, ...]:
        """The network of each kind."""
        return self._kinds

    def kind_of(self, ids: Tensor) -> Tensor:
        """See Leaves.kind_of; the clients of several runs as one (JointSetup) are numbered on."""
        return self._kind[ids % len(self._kind)]

    def init(self, generator: torch.Generator) -> Tree:
        """The initial weights of all kinds, each drawn as if it were alone."""
        state = generator.get_state()
        leaves: Tree = {}
        for task in self._kinds:
            generator.set_state(state)
            leaves |= task.init(generator)
        return leaves

    def among(self, tree: Tree, ids: Tensor) -> Iterator[tuple[Rows, Tree]]:
        """See Leaves.among."""
        kind = self.kind_of(ids)
        for place, name in enumerate((*self._names, "")):
            leaves = {key: leaf for key, leaf in tree.items() if owner(key, self._names) == name}
            chosen = kind == place if name else slice(None)
            if leaves and (isinstance(chosen, slice) or bool(chosen.any())):
                yield chosen, trees.rows(leaves, chosen)

    def _slice(self, train: bool, since: str | None, until: str | None) -> Slice:
        raise RuntimeError("clients of several kinds have no network in common; run one of task.kinds")


def owner(leaf: str, names: Sequence[str]) -> str:
    """Which of the kinds `names` alone has a leaf; "": all have it."""
    first = leaf.rpartition("/")[2].partition(".")[0]
    return first if first in names else ""


def _nested(build: Callable[[], nn.Sequential], kind: str) -> nn.Sequential:
    """The network's stages but the last as one that is called after the kind."""
    stages = OrderedDict(build().named_children())
    head = stages.pop("head")
    return nn.Sequential(OrderedDict([(kind, nn.Sequential(stages)), ("head", head)]))


def _renamed(begin: Callable[[], Tree], prefix: str) -> Tree:
    return {name if name.startswith("head.") else prefix + name: leaf for name, leaf in begin().items()}
