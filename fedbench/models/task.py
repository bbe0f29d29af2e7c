"""The task: a network as a pure function of a tree of parameters, with everything that a method may ask of it.

A network is an `nn.Sequential` of named stages that can be run up to or from any stage. The last stage and layer is
called `head`. The setting `Model.classifier` splits it into body and classifier. The groups @head, @body and
@classifier, `features` and `head` all follow it:
- `own`: as in each method's paper; the classifier is the last layer, and @classifier every fully connected one;
- `last`: the last layer;
- `linear`: every fully connected layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack  # no public name says whether vmap is running
from torch.nn import functional

from fedbench.config.fields import Component, one_of
from fedbench.config.schema import added
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Rows, Tree
from fedbench.data.dataset import Dataset, Ints
from fedbench.data.partition import Partition
from fedbench.models.layers import BatchNorm, Conv2d, replace_batch_norm, replace_convolutions


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


class Slice:
    """Some stages of a network as a function of its leaves.

    It is torch.func.functional_call with the place of each leaf looked up only once. For a small network that look-up
    costs as much as the forward pass.
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.norms = [module for module in net.modules() if isinstance(module, BatchNorm)]
        self.slots: list[tuple[dict[str, Any], str, str, Tensor]] = []
        for path, module in net.named_modules():
            for store in (module._parameters, module._buffers):
                for key, placeholder in store.items():
                    if placeholder is not None:
                        self.slots.append((store, key, f"{path}.{key}" if path else key, placeholder))

    @contextmanager
    def bound(self, model: Tree, mask: Tensor | None) -> Iterator[nn.Module]:
        """The network with `model`'s leaves; `mask` tells batch normalisation which samples are padding."""
        for store, key, name, _ in self.slots:
            store[key] = model[name]
        for norm in self.norms:
            norm.mask = mask
        try:
            yield self.net
        finally:
            for store, key, _, placeholder in self.slots:
                store[key] = placeholder
            for norm in self.norms:
                norm.mask = None


SPLITS = ("own", "last", "linear")


class Task:
    """A network as a function of its leaves: init, apply, features, head, loss, and names of groups of leaves."""

    parameters: frozenset[str]
    buffers: frozenset[str]
    groups: dict[str, frozenset[str]]  # "@head" -> its leaves

    def __init__(
        self,
        build: Callable[[], nn.Sequential],
        shape: tuple[int, ...],
        classes: int,
        begin: Callable[[], Tree] = dict,
        tokens: int = 0,
        classifier: str = "own",
        bf16: bool = False,
    ) -> None:
        """`build` makes the network; `shape` [C, H, W] is one input's; `classes` is K, of regression 1.

        The others: see Model.

        `bf16`: in training the layers compute in bfloat16, from leaves of float32 (torch's autocast).

        Raises:
            ConfigError: no stages, the last not called head, or `classifier` (of SPLITS) leaves no body below it.
        """
        self.bf16 = bf16
        self.shape = shape
        self.classes = classes
        self.tokens = tokens
        self._build = build
        self._begin = begin
        self._classifier = classifier
        self._nets = {train: self.fresh().train(train) for train in (False, True)}
        net = self._nets[False]
        self.stages = [name for name, _ in net.named_children()]
        if not self.stages or self.stages[-1] != "head":
            raise ConfigError("a network is an nn.Sequential of named stages whose last is called 'head'")
        self.parameters = frozenset(name for name, _ in net.named_parameters())
        self.buffers = frozenset(name for name, _ in net.named_buffers())
        self.groups = leaf_groups(net, classifier)
        self.boundary = self._boundary()  # the classifier's first stage
        self._slices: dict[tuple[bool, str | None, str | None], Slice] = {}

    def __reduce__(self) -> tuple[type[Task], tuple[object, ...]]:
        """Pickle the arguments of the task, not its networks."""
        given = (self._build, self.shape, self.classes, self._begin, self.tokens, self._classifier, self.bf16)
        return Task, given

    @property
    def modalities(self) -> tuple[Task, ...]:
        """The networks of the federation's modalities: this one alone."""
        return (self,)

    @property
    def shared(self) -> Task:
        """The first network of the federation, under its own names of leaves: one that all clients can run."""
        return self

    @property
    def regresses(self) -> bool:
        """Whether a quantity is predicted; then there is one class."""
        return self.classes == 1

    def fresh(self) -> nn.Sequential:
        """A new network with frozen, meaningless weights."""
        with torch.random.fork_rng(devices=[]):
            net = self._build()
        replace_convolutions(replace_batch_norm(net))
        return net.requires_grad_(False)

    def _boundary(self) -> str:
        if self._classifier != "linear":
            return "head"
        stage = self.first_stage(("@head",))
        if stage is None or not self.groups["@body"]:
            raise ConfigError(
                "model.classifier=linear: the fully connected layers are not the last stages after a body of other "
                "layers; choose another model, or model.classifier=last"
            )
        return stage

    def set_lowering(self, layer: str, lowering: str) -> None:
        """Set how the convolution called `layer` computes when clients are stacked (see Conv2d)."""
        for net in self._nets.values():
            found = net.get_submodule(layer)
            assert isinstance(found, Conv2d)
            found.lowering = lowering

    # ---- leaves

    def first_stage(self, selectors: Iterable[str]) -> str | None:
        """The stage from which all parameters, and only these, match `selectors`; None if there is no such stage."""
        chosen = set(self.select(sorted(self.parameters), selectors))
        for place, stage in enumerate(self.stages):
            below = {name for name in self.parameters if name.split(".")[0] in self.stages[:place]}
            if chosen and chosen == self.parameters - below and any(k.split(".")[0] == stage for k in chosen):
                return stage
        return None

    def init(self, generator: torch.Generator) -> Tree:
        """Initial leaves: given weights (ImageNet) where the model has them, the others drawn from `generator`."""
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            net = replace_batch_norm(self._build())
        leaves = {**net.state_dict(keep_vars=True), **self._begin()}
        return {k: v.detach().clone() for k, v in sorted(leaves.items())}

    # ---- the network as a function

    def apply(
        self,
        model: Tree,
        x: Tensor,
        *,
        train: bool = False,
        mask: Tensor | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> Tensor:
        """Run stages [since, until) on x [B, ...]; in training, batch statistics in `model` are updated in place."""
        stages = self._slice(train, since, until)
        with stages.bound(model, mask if train else None) as net, self._precision(x.device, train):
            out: Tensor = net(x)
        return out.to(x.dtype)

    def _precision(self, device: torch.device, train: bool) -> AbstractContextManager[object]:
        if not (self.bf16 and train):
            return nullcontext()
        # The leaves of a call are not those of the next, so nothing that was cast is worth keeping.
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)

    def _slice(self, train: bool, since: str | None, until: str | None) -> Slice:
        key = (train, since, until)
        if key not in self._slices:
            first = self.stages.index(since) if since else 0
            last = self.stages.index(until) if until else len(self.stages)
            net = nn.Sequential()
            for name in self.stages[first:last]:
                net.add_module(name, self._nets[train].get_submodule(name))
            self._slices[key] = Slice(net.train(train))
        return self._slices[key]

    def shape_before(self, stage: str) -> tuple[int, ...]:
        """The shape of one sample as `stage` receives it."""
        with torch.no_grad():
            return tuple(self._slice(False, None, stage).net(torch.zeros(1, *self.shape)).shape[1:])

    def features(self, model: Tree, x: Tensor, *, train: bool = False, mask: Tensor | None = None) -> Tensor:
        """The input of the classifier, features [B, d].

        Raises:
            ConfigError: the classifier reads vectors at several positions of an image (SqueezeNet above 36 pixels).
        """
        z = self.apply(model, x, train=train, mask=mask, until=self.boundary)
        if z.dim() != 2:
            raise ConfigError(
                f"this method compares features, one vector an image; for images {list(self.shape)} the model yields "
                f"{z.shape[1]} of them; use another model, or smaller images"
            )
        return z

    def head(self, model: Tree, z: Tensor) -> Tensor:
        """Logits [B, K] from features z [B, d]."""
        return self.apply(model, z, since=self.boundary)

    def loss(self, model: Tree, batch: Batch) -> Tensor:
        """Mean cross-entropy of a batch, in training mode; of regression the mean squared error."""
        logits = self.apply(model, batch.x, train=True, mask=batch.mask)
        return self.criterion(logits, batch)

    def criterion(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean of `losses` of `logits` [B, K] over the batch's real samples, which is the `loss`."""
        if batch.mask is None and not self.regresses:
            return functional.cross_entropy(logits, batch.y)  # which rounds in another way
        return batch.mean(self.losses(logits, batch.y))

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample, [B]: cross-entropy of `logits` [B, K], or the squared error of a quantity [B, 1]."""
        if self.regresses:
            return (logits.squeeze(1) - y).square()
        return functional.cross_entropy(logits, y, reduction="none")

    # ---- leaves by name, and who has them: here all clients have all of them, see JointTask for others

    def select(self, names: Iterable[str], selectors: Iterable[str]) -> list[str]:
        """The `names` that a selector matches, in order.

        A selector is a glob (`conv.*`, `personal/*`) or a group (@head, @body, @classifier, @norm, @stats), either
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
        """Whether a leaf (in any namespace) is a statistic that the forward pass updates, not the optimiser."""
        return name.rpartition("/")[2] in self.buffers

    def weights(self, tree: Tree) -> Tree:
        """The leaves of `tree` without statistics, for distances between models."""
        return {name: leaf for name, leaf in tree.items() if not self.is_buffer(name)}

    # ---- who has them

    prefix: str = ""  # names of leaves that only clients of this modality have begin with it

    def own(self, tree: Tree) -> Tree:
        """The leaves of `tree` that a client with this network has."""
        return tree

    def among(self, tree: Tree, ids: Tensor) -> Iterator[tuple[Rows, Tree]]:
        """The leaves of a stacked tree [C, ...], grouped by the clients of `ids` that have them: (clients, rows)."""
        yield slice(None), tree

    def modality_of(self, ids: Tensor) -> Tensor:
        """The modality of each of clients `ids`: an index into `modalities`, int64 [C]."""
        return torch.zeros_like(ids)


def gradient(loss: Callable[[Tree], Tensor], model: Tree, task: Task) -> tuple[Tree, Tree]:
    """Return (gradient of `loss` over the model's weights, its statistics after the forward pass), for use in hooks.

    Gradients nest: if the weights are being differentiated, so is the returned gradient.
    """
    weights = task.weights(model)
    statistics = {name: leaf for name, leaf in model.items() if task.is_buffer(name)}

    def objective(weights: Tree) -> tuple[Tensor, Tree]:
        # The forward pass moves statistics in place, the caller's must stay as they are.
        moved = {name: leaf.clone() for name, leaf in statistics.items()}
        return loss({**weights, **moved}), moved

    if peek_interpreter_stack() is not None:  # batched by vmap, which knows no torch.autograd.grad
        batched: tuple[Tree, Tree] = torch.func.grad(objective, has_aux=True)(weights)
        return batched
    nested = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in weights.values())
    leaves = {
        name: leaf.view_as(leaf) if nested and leaf.requires_grad else leaf.detach().requires_grad_(True)
        for name, leaf in weights.items()
    }
    with torch.enable_grad():
        value, moved = objective(leaves)
        moved = {name: leaf.detach() for name, leaf in moved.items()}
        if not value.requires_grad:  # a loss that does not depend on the weights
            return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}, moved
        # For a small network torch.func.grad takes twice as long.
        slopes = torch.autograd.grad(
            value, list(leaves.values()), create_graph=nested, allow_unused=True, materialize_grads=True
        )
    return dict(zip(leaves, slopes, strict=True)), moved


def check_input(task: Task, smallest_batch: int, droppable: bool = False) -> None:
    """Run the forward pass of one training step of `task` on zeros, to refuse early what cannot work.

    `droppable`: the smallest batch is the last of an epoch and may be left out.

    Raises:
        ConfigError: the network does not fit the input's shape, or batch normalisation meets a single value.
    """
    model = task.init(torch.Generator().manual_seed(0))
    x = torch.zeros(max(1, smallest_batch), *task.shape)
    try:
        logits = task.apply(model, x, train=True)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            f"batch normalisation cannot train on a batch of {smallest_batch} sample; use a model without it, "
            f"another batch size, {'protocol.local.drop_last=true, ' * droppable}or a partition with larger clients"
        ) from error
    except (RuntimeError, AssertionError) as error:  # the latter: libraries' networks for images of one size
        reason = (str(error) or "it asserts another").splitlines()[0]
        raise ConfigError(f"the model does not fit inputs of shape {tuple(task.shape)}: {reason}") from error
    if logits.shape != (len(x), task.classes):
        raise ConfigError(f"the model yields {tuple(logits.shape)}, expected {(len(x), task.classes)}")


# What describes a network: a frozen dataclass that builds it for an input shape and a number of classes.


@dataclass(frozen=True, kw_only=True)
class Model(Component, ABC):
    """Base of all networks; a subclass's fields are its schema in the config."""

    section: ClassVar[str] = "model"

    # the classifier for methods that split body and classifier: see models.task
    classifier: str = added(one_of(*SPLITS))

    @property
    @abstractmethod
    def label(self) -> str:
        """Short name for tables, with what differs from the default."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """An nn.Sequential of named stages for inputs of `shape` [C, H, W]; the last is the classifier, `head`."""

    def view(self, dataset: Dataset) -> Dataset:
        """The part of the data that this network reads as `x`: the images by default.

        Raises:
            ConfigError: the data set does not have that part.
        """
        return dataset

    def begin(self) -> Tree:
        """Leaves with given initial values, such as ImageNet weights; the others are drawn. None by default."""
        return {}

    @property
    def tokens(self) -> int:
        """Size of the vocabulary if samples are token ids, else 0."""
        return 0

    @property
    def networks(self) -> Mapping[str, Model]:
        """The network of each modality by its name; by default this one for all clients."""
        return {"": self}

    def dealt(self, partition: Partition) -> tuple[Partition, Ints]:
        """(the partition among all clients, the modality of each [N]); unchanged with one modality."""
        return partition, np.zeros(len(partition), dtype=np.int64)

    def lacking(self) -> str:
        """Return what `begin` needs and this machine lacks, with the command that gets it; "" if nothing is missing."""
        return ""

    def leaf_bytes(self, shape: tuple[int, ...], classes: int) -> int:
        """Bytes of the network's leaves, counted without allocating them; 0 if the network cannot be built that way."""
        try:
            with torch.random.fork_rng(devices=[]), torch.device("meta"):
                net = self.build(shape, classes)
        except Exception:  # noqa: BLE001 - a library's may read values; what is wrong is said when it is built
            return 0
        return sum(leaf.numel() * leaf.element_size() for leaf in net.state_dict().values())

    def task(self, shape: tuple[int, ...], classes: int, *, bf16: bool = False) -> Task:
        """The network as a task, trained in bfloat16 if `bf16`.

        Raises:
            ConfigError: the network does not fit `shape`.
        """
        try:
            build = partial(self.build, shape, classes)
            return Task(build, shape, classes, self.begin, self.tokens, self.classifier, bf16=bf16)
        except (RuntimeError, ValueError, AssertionError) as error:
            reason = (str(error) or "it asserts another").splitlines()[0]
            raise ConfigError(
                f"model {self.label} does not fit inputs of shape {list(shape)}: {reason}; "
                "model=mlp fits any, others larger images"
            ) from error


def flat_size(stage: nn.Module, shape: tuple[int, ...]) -> int:
    """Number of output values of `stage` for one input of `shape`, found on meta tensors."""
    with torch.no_grad():
        size: int = stage.to("meta")(torch.zeros(2, *shape, device="meta")).flatten(1).shape[1]
        return size
