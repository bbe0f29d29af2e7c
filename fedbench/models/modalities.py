"""Clients with several networks (kinds) in one federation, which share the classifier layer.

FedSaC's Table 2: four clients see photographs, four their captions. In a federation of architectures all clients see
the same samples, as in HtFLlib.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.config.fields import at_least, one_of
from fedbench.config.groups import registry
from fedbench.config.schema import added
from fedbench.core import trees
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.trees import Rows, Tree
from fedbench.data.dataset import Dataset, Ints
from fedbench.data.partition import Partition
from fedbench.models.layers import GlobalMean, MaxPool2
from fedbench.models.task import Model, Slice, Task


@dataclass(frozen=True)
class Kinds(Model):
    """A network for each modality, or for each of several groups of clients with one modality."""

    called: str = "kinds"  # the name in tables
    kinds: Any = field(default_factory=dict)  # name of a modality -> its network; in a list: net1, net2, ...
    clients: tuple[int, ...] = at_least(1, ())  # number of clients of each modality; (): equal numbers, up to one
    # With "each" the first client of each modality holds the same samples, in its own view.
    # "all": the clients of all modalities divide the data; "each": the clients of each modality divide all of it
    divide: str = one_of("all", "each")
    # "blocks": the clients of the first modality come first, and so on; "turns": one client of each after another
    deal: str = added(one_of("blocks", "turns"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.kinds, Sequence) and not isinstance(self.kinds, str):
            object.__setattr__(self, "kinds", {f"net{place}": each for place, each in enumerate(self.kinds, 1)})
        if not isinstance(self.kinds, Mapping) or len(self.kinds) < 2:
            raise ConfigError(
                "model.kinds must name at least two modalities, as {image: {name: cub_cnn}, text: {name: textcnn}}, or "
                "list at least two networks"
            )
        if wrong := next((name for name in self.kinds if not name.isidentifier() or name == "head"), None):
            raise ConfigError(f"model.kinds: '{wrong}' cannot name a modality; use letters, and not 'head'")
        if self.clients and len(self.clients) != len(self.kinds):
            raise ConfigError(
                f"model.clients={list(self.clients)} must have a number for each of {len(self.kinds)} modalities"
            )
        object.__setattr__(self, "kinds", {name: _built(name, each) for name, each in self.kinds.items()})
        for place, each in (("", self), *((f"kinds.{name}.", net) for name, net in self.kinds.items())):
            if each.classifier != "own":
                raise ConfigError(
                    f"model.{place}classifier={each.classifier}: modalities share the last layer and no other; "
                    "use classifier=own"
                )

    @property
    def label(self) -> str:
        """The name, the number of clients of each modality, and who divides the data."""
        numbers = "-".join(map(str, ("", *self.clients)))
        return self.called + numbers + "-each" * (self.divide == "each")

    @property
    def networks(self) -> Mapping[str, Model]:
        networks: dict[str, Model] = self.kinds
        return networks

    def dealt(self, partition: Partition) -> tuple[Partition, Ints]:
        """See Model.dealt.

        Raises:
            ConfigError: a modality has no client, or `clients` are not as many as there are.
        """
        count = len(self.kinds)
        if self.divide == "each":
            partition = partition.repeated(count)
        numbers = self.clients or tuple(map(len, np.array_split(np.arange(len(partition)), count)))
        if 0 in numbers:
            alone = list(self.kinds)[numbers.index(0)]
            raise ConfigError(
                f"modality '{alone}' has no client: {len(partition)} for {count} modalities; "
                "raise partition.num_clients"
            )
        if sum(numbers) != len(partition):
            raise ConfigError(
                f"model.clients={list(numbers)} are {sum(numbers)}, the federation has {len(partition)} clients; "
                "change one of them"
            )
        modality = np.repeat(np.arange(count), numbers)
        if self.deal == "turns":
            modality = modality[np.argsort(np.concatenate([np.arange(n) for n in numbers]), kind="stable")]
        return partition, modality

    def lacking(self) -> str:
        return "; ".join(filter(None, (each.lacking() for each in self.kinds.values())))

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """There is no network for all clients.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"model {self.label} has one network for each modality; choose one of these networks")


def _built(name: str, given: Any) -> Model:
    if isinstance(given, Model):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"model.kinds.{name} must be a network, as {{name: cub_cnn}}, got {given!r}")
    try:
        model: Model = registry("model").build(given)
    except FedbenchError as error:  # which names the keys of a model that is the only one
        raise type(error)(str(error).replace("model.", f"model.kinds.{name}.", 1)) from error
    return model


# FedSaC's networks for CUB-200-2011 (appendix B.3): images and captions, representations of the same width.
#
# The paper gives the layers' number (four convolutions for images, five for text, then the classification layer) and
# the representation's dimension, 256. Widths, kernels and pooling are ours:
# CubCNN: four times conv k3 pad 1 (32, 64, 128, 256 channels), pool 2, ReLU; mean over the map.
# TextCNN (after Kim, EMNLP 2014): embedding of 128; five convolutions k3 pad 1 over time (128, 128, 256, 256, 256
# channels), pool 2 after the first two, ReLU; maximum over time. A sample is [1, 1, L] token ids, all captions of
# an image one after the other; 0 is padding and embedded as zero.

WIDTH = 256  # of the representation, in both


@dataclass(frozen=True)
class CubCNN(Model):
    """Four convolutions, a global mean and the classifier."""

    width: int = added(at_least(8, WIDTH))  # of the representation; the layers before it shrink with it

    @property
    def label(self) -> str:
        """The name, and the width if it is not the default."""
        return "cub_cnn" + f"-{self.width}" * (self.width != WIDTH)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: conv, pool, head."""
        layers: list[nn.Module] = []
        channels = shape[0]
        for width in (self.width // 8, self.width // 4, self.width // 2, self.width):
            layers += [nn.Conv2d(channels, width, 3, padding=1), MaxPool2(), nn.ReLU()]
            channels = width
        stages = {
            "conv": nn.Sequential(*layers),
            "pool": GlobalMean(),
            "head": nn.Linear(self.width, classes),
        }
        return nn.Sequential(OrderedDict(stages))


@dataclass(frozen=True)
class TextCNN(Model):
    """Embedding, five convolutions over time, a maximum over time and the classifier."""

    vocabulary: int = at_least(2, 8192)  # token ids lie below it
    width: int = added(at_least(8, WIDTH))  # of the representation; the layers before it shrink with it

    @property
    def label(self) -> str:
        """The name, and the width if it is not the default."""
        return "textcnn" + f"-{self.width}" * (self.width != WIDTH)

    @property
    def tokens(self) -> int:
        return self.vocabulary

    def view(self, dataset: Dataset) -> Dataset:
        """The captions of each image, one after the other: x [n, 1, 1, captions words] of token ids."""
        if dataset.text is None:
            raise ConfigError(
                f"model=textcnn reads captions, {dataset.name} was loaded without any: take dataset=captioned, or "
                "dataset=cub with dataset.text=true"
            )
        if len(dataset.vocabulary) > self.vocabulary:
            raise ConfigError(
                f"{dataset.name} has {len(dataset.vocabulary)} words; set model.vocabulary to at least that"
            )
        tokens = dataset.text.astype(np.float32).reshape(len(dataset), 1, 1, -1)
        return dataclasses.replace(dataset, x=tokens, mean=(0.0,), std=(1.0,), scale=1.0, text=None, vocabulary=())

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: embedding, conv, pool, head.

        Raises:
            ConfigError: samples that are no captions.
        """
        if len(shape) != 3 or shape[:2] != (1, 1):
            raise ConfigError(f"model=textcnn reads token ids of shape [1, 1, L], not images {list(shape)}")
        layers: list[nn.Module] = []
        half = self.width // 2
        channels = half
        for place, width in enumerate((half, half, self.width, self.width, self.width)):
            layers.append(nn.Conv1d(channels, width, 3, padding=1))
            layers += [nn.MaxPool1d(2)] if place < 2 else []
            layers.append(nn.ReLU())
            channels = width
        stages = {
            "embedding": WordEmbedding(self.vocabulary, half),
            "conv": nn.Sequential(*layers),
            "pool": GlobalMax(),
            "head": nn.Linear(self.width, classes),
        }
        return nn.Sequential(OrderedDict(stages))


class WordEmbedding(nn.Module):
    """Token numbers as floats, x [B, 1, 1, L], to vectors [B, width, L]; zero for token 0."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, width))

    def forward(self, x: Tensor) -> Tensor:
        """Look up and mask."""
        tokens = x.flatten(1).round().long()
        vectors = self.weight[tokens] * (tokens > 0).unsqueeze(-1)
        return vectors.transpose(1, 2)


class GlobalMax(nn.Module):
    """Maximum over time: [B, C, L] -> [B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        """Reduce."""
        return x.amax(-1)


# Networks of several modalities as one task: names of leaves are told apart, the classifier layer is shared.
#
# The network of the modality `text` is an nn.Sequential of two stages: `text`, everything before the classifier layer,
# and `head`. So its leaves are called `text.conv.0.weight` and `head.weight`. A leaf whose name, after any namespace,
# begins with a modality belongs to the clients of that modality; every other leaf to all.


class ModalityTask(Task):
    """The network of one modality among `names`, which begins with the classifier layer of `first`."""

    def __init__(self, plain: Task, names: Sequence[str], modality: int, first: Task | None = None) -> None:
        self._made_of = (plain, tuple(names), modality, first)
        self._names = tuple(names)
        self._first = first
        self.prefix = f"{names[modality]}."
        build = partial(_nested, plain._build, names[modality])
        begin = partial(_renamed, plain._begin, self.prefix)
        super().__init__(build, plain.shape, plain.classes, begin, plain.tokens, bf16=plain.bf16)

    def __reduce__(self) -> tuple[type[Task], tuple[object, ...]]:
        """Pickle what makes the task, not the networks."""
        return ModalityTask, self._made_of

    def init(self, generator: torch.Generator) -> Tree:
        """Its own initial weights, but for those it shares with the first modality."""
        state = generator.get_state()
        own = super().init(generator)
        if self._first is None:
            return own
        generator.set_state(state)
        shared = self._first.init(generator)
        return {name: shared.get(name, leaf) for name, leaf in own.items()}

    @property
    def shared(self) -> Task:
        plain, _, _, first = self._made_of
        return first.shared if first else plain

    def is_buffer(self, name: str) -> bool:
        return super().is_buffer(name) or self.shared.is_buffer(name)

    def own(self, tree: Tree) -> Tree:
        return {key: leaf for key, leaf in tree.items() if owner(key, self._names) in (self.prefix[:-1], "")}


class JointTask(Task):
    """The networks of all modalities as a server sees them, with the leaves of all. It runs none; see `modalities`."""

    def __init__(self, tasks: Sequence[Task], names: Sequence[str], modality: Tensor) -> None:
        """`tasks` and `names` of the modalities; `modality` [N] is the place in them of each client's.

        Raises:
            ConfigError: the modalities' classifier layers differ, or a modality is called as a stage of the first.
        """
        first = ModalityTask(tasks[0], names, 0)
        rest = [ModalityTask(task, names, place, first) for place, task in enumerate(tasks[1:], 1)]
        self._modalities: tuple[Task, ...] = (first, *rest)
        self._names, self._modality = tuple(names), modality
        self._given = tuple(tasks), self._names, modality
        self._check_heads()
        self.classes = first.classes
        self.parameters = frozenset().union(*(task.parameters for task in self._modalities))
        self.buffers = frozenset().union(*(task.buffers for task in self._modalities))
        self.groups = {
            group: frozenset().union(*(task.groups[group] for task in self._modalities)) for group in first.groups
        }

    def __reduce__(self) -> tuple[type[Task], tuple[object, ...]]:
        return JointTask, self._given

    def first(self, count: int) -> JointTask:
        """The same networks, of the first `count` clients."""
        tasks, names, modality = self._given
        return JointTask(tasks, names, modality[:count])

    @property
    def shared(self) -> Task:
        return self._modalities[0].shared

    def is_buffer(self, name: str) -> bool:
        return super().is_buffer(name) or self.shared.is_buffer(name)

    def _check_heads(self) -> None:
        if clash := [name for name in self._names if name in self.shared.stages]:
            raise ConfigError(
                f"model.kinds: '{clash[0]}' is also a part of the network '{self._names[0]}', whose leaves it would "
                "seem to own; give it another name"
            )
        shapes = [
            {n: tuple(p.shape) for n, p in task.fresh().get_submodule("head").named_parameters()}
            for task in self._modalities
        ]
        for name, other in zip(self._names[1:], shapes[1:], strict=True):
            if other != shapes[0]:
                raise ConfigError(
                    f"the networks '{self._names[0]}' and '{name}' share the classifier layer, whose weights are "
                    f"{list(shapes[0].get('weight', ()))} and {list(other.get('weight', ()))}; choose networks with "
                    "representations of one width"
                )

    @property
    def modalities(self) -> tuple[Task, ...]:
        """The network of each modality."""
        return self._modalities

    def modality_of(self, ids: Tensor) -> Tensor:
        return self._modality[ids % len(self._modality)]

    def init(self, generator: torch.Generator) -> Tree:
        """The initial weights of all modalities, each drawn as if it were alone."""
        state = generator.get_state()
        leaves: Tree = {}
        for task in self._modalities:
            generator.set_state(state)
            leaves |= task.init(generator)
        return leaves

    def among(self, tree: Tree, ids: Tensor) -> Iterator[tuple[Rows, Tree]]:
        modality = self.modality_of(ids)
        for place, name in enumerate((*self._names, "")):
            leaves = {key: leaf for key, leaf in tree.items() if owner(key, self._names) == name}
            chosen = modality == place if name else slice(None)
            if leaves and (isinstance(chosen, slice) or bool(chosen.any())):
                yield chosen, trees.rows(leaves, chosen)

    def _slice(self, train: bool, since: str | None, until: str | None) -> Slice:
        raise RuntimeError("clients have no network in common; run task.shared or one of task.modalities")


def owner(leaf: str, names: Sequence[str]) -> str:
    """Return the only one of the modalities `names` that has a leaf; "" if all have it."""
    first, below, _ = leaf.rpartition("/")[2].partition(".")
    return first if below and first in names else ""


def _nested(build: Callable[[], nn.Sequential], modality: str) -> nn.Sequential:
    """Return all stages of the network but the last as one stage with the modality's name."""
    stages = OrderedDict(build().named_children())
    head = stages.pop("head")
    return nn.Sequential(OrderedDict([(modality, nn.Sequential(stages)), ("head", head)]))


def _renamed(begin: Callable[[], Tree], prefix: str) -> Tree:
    return {name if name.startswith("head.") else prefix + name: leaf for name, leaf in begin().items()}
