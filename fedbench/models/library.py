"""Any network of torchvision or timm by name, drawn at random or from a file of weights; two stages, body and head.

The head is the network's last linear layer, and what comes before it is the body. Layers that draw random numbers
(dropout, stochastic depth) are left out: their noise would have to be keyed by client and step for engines to agree.
Where images have another number of channels than 3, the first convolution is drawn anew for them.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing, nearest
from fedbench.core.trees import Tree
from fedbench.models import weights
from fedbench.models.base import Model
from fedbench.models.norm import replace_batch_norm
from fedbench.models.vision import for_channels

RANDOM = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "StochasticDepth", "DropPath")
AUXILIARY = ("googlenet", "inception_v3")  # have classifiers in the middle, which are left out


@dataclass(frozen=True)
class LibraryModel(Model):
    """A network of a library, by the name that it has there."""

    library: ClassVar[str]

    architecture: str | None = None  # its name in the library
    weights: str | None = None  # file with the library's state dict, of which the last layer is not taken

    @property
    def label(self) -> str:
        """The library and the architecture, with a hash of its weights if there are any."""
        found = "" if self.weights is None else weights.file_hash(self._file())
        return "-".join(part for part in (self.library, self.architecture, found) if part)

    @abstractmethod
    def names(self) -> list[str]:
        """What the library has.

        Raises:
            ConfigError: it is not installed.
        """

    @abstractmethod
    def create(self, channels: int, classes: int) -> nn.Module:
        """The library's network `architecture`."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: body, head.

        Raises:
            ConfigError: no such network, or one that does not end in a linear layer.
        """
        net = self._network(shape[0], classes)
        place, last = self._last_linear(net)
        _put(net, place, nn.Identity())
        return nn.Sequential(OrderedDict(body=net, head=last))

    def begin(self) -> Tree:
        """The leaves of the body that `weights` holds."""
        if self.weights is None:
            return {}
        if missing := self.lacking():
            raise DataMissing(missing)
        state = weights.read(self._file())
        net = self._network(3, 2)
        place, _ = self._last_linear(net)
        _put(net, place, nn.Identity())
        kept = copy.copy(state)  # with its versions, which some layers ask for
        for name in [name for name in state if name.startswith(f"{place}.")]:
            del kept[name]
        try:
            net.load_state_dict(kept)
        except (RuntimeError, AttributeError, TypeError) as error:
            raise DataCorrupt(
                f"{self.weights} is no state dict of {self.library}'s {self.architecture}"
            ) from error
        return {f"body.{name}": leaf for name, leaf in replace_batch_norm(net).state_dict().items()}

    def lacking(self) -> str:
        """The file of weights, if one is named and not there."""
        if self.weights is None or self._file().is_file():
            return ""
        return f"model.weights={self.weights}: there is no such file"

    def _file(self) -> Path:
        return Path(self.weights or "").expanduser()

    def _network(self, channels: int, classes: int) -> nn.Module:
        known = self.names()
        if self.architecture not in known:
            given = "" if self.architecture is None else f" '{self.architecture}'"
            raise ConfigError(
                f"model={self.library} takes the name of a network in model.architecture, and{given or ' none'} is "
                f"not one; nearest: {nearest(str(self.architecture), known)}"
            )
        net = self.create(channels, classes)
        for place, module in list(net.named_modules()):
            if type(module).__name__ in RANDOM:
                _put(net, place, nn.Identity())
        return net

    def _last_linear(self, net: nn.Module) -> tuple[str, nn.Linear]:
        """(where it is, the layer) that yields the logits."""
        layers = [(place, module) for place, module in net.named_modules() if not list(module.children())]
        linear = [(place, module) for place, module in layers if isinstance(module, nn.Linear)]
        after = [module for _, module in layers[layers.index(linear[-1]) + 1 :]] if linear else []
        if not linear or any(not isinstance(module, nn.Identity) for module in after):
            raise ConfigError(
                f"{self.library}'s {self.architecture} does not end in a linear layer, which fedbench takes as the "
                "head; write it as a model of your own: docs/writing-a-data-set-model-partition.md"
            )
        return linear[-1]


@dataclass(frozen=True)
class TorchvisionModel(LibraryModel):
    """A classification network of torchvision."""

    library: ClassVar[str] = "torchvision"

    def names(self) -> list[str]:
        """The networks of torchvision.models."""
        from torchvision import models

        return list(models.list_models(module=models))

    def create(self, channels: int, classes: int) -> nn.Module:
        """The network; its first convolution for `channels`."""
        from torchvision.models import get_model

        plain = {"aux_logits": False, "init_weights": True} if self.architecture in AUXILIARY else {}
        net: nn.Module = get_model(str(self.architecture), weights=None, num_classes=classes, **plain)
        convolutions = (item for item in net.named_modules() if isinstance(item[1], nn.Conv2d))
        place, first = next(convolutions, ("", None))
        if first is not None:
            _put(net, place, for_channels(first, channels))
        return net


@dataclass(frozen=True)
class TimmModel(LibraryModel):
    """A network of timm (pip install timm)."""

    library: ClassVar[str] = "timm"

    def names(self) -> list[str]:
        """What timm lists."""
        return list(_timm().list_models())

    def create(self, channels: int, classes: int) -> nn.Module:
        """The network, for `channels`, without its random layers."""
        net: nn.Module = _timm().create_model(
            str(self.architecture), pretrained=False, num_classes=classes, in_chans=channels
        )
        return net


def _timm() -> Any:
    try:
        import timm  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ConfigError("model=timm needs timm: pip install timm") from error
    return timm


def _put(net: nn.Module, place: str, module: nn.Module) -> None:
    """Replace the module of `net` at the dotted `place`."""
    outer, _, name = place.rpartition(".")
    setattr(net.get_submodule(outer), name, module)
