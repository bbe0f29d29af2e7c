"""Large networks for images, from torchvision or timm, with published or random initial weights."""

from __future__ import annotations

import copy
import functools
import hashlib
import pickle
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from fedbench.config.schema import added
from fedbench.core.cache import source_key
from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing, nearest
from fedbench.core.trees import Tree
from fedbench.models.layers import GlobalMean, Places, PlacesMean, replace_batch_norm
from fedbench.models.task import Model

# Files of ImageNet weights: where torchvision keeps them, fetching them, reading them without executing anything.


PARALLEL = "module."  # before each name of a network that was saved inside torch's DataParallel


def _official(architecture: str) -> Any:
    from torchvision.models import get_model_weights

    return get_model_weights(architecture).DEFAULT


def hub_file(architecture: str) -> Path:
    """Where torchvision keeps the weights; the name ends in the first digits of the content's SHA-256."""
    return Path(torch.hub.get_dir()) / "checkpoints" / str(_official(architecture).url).rpartition("/")[2]


def fetch_weights(architecture: str) -> None:
    """Let torchvision download the weights of `architecture`.

    Raises:
        DataMissing: no network, no space, or the download has another hash.
    """
    try:
        _official(architecture).get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:  # no network, no space, a hash that differs
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataMissing(
            f"the ImageNet weights of {architecture} could not be downloaded: {reason}; "
            "set model.weights=FILE or model.pretrained=false"
        ) from error


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The state dict in `path`, which is not executed: tensors only.

    From a training checkpoint it takes `state_dict`, and removes the prefix `module.` that DataParallel adds to names.

    Raises:
        DataCorrupt: torch can read no state dict in it, or a value is not finite.
    """
    try:
        return _weights(path, source_key("weights", [path]))
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise DataCorrupt(
            f"{path} holds no weights that torch can read; delete it or set model.weights=FILE"
        ) from error


@functools.lru_cache(maxsize=1)
def _weights(path: Path, _: str) -> dict[str, torch.Tensor]:
    state = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(leaf, torch.Tensor) for leaf in state.values()):
        raise DataCorrupt(f"{path} holds no state dict, names of leaves and tensors; save net.state_dict()")
    if all(name.startswith(PARALLEL) for name in state):
        consume_prefix_in_state_dict_if_present(state, PARALLEL)
    for name, leaf in state.items():
        if not leaf.isfinite().all():
            raise DataCorrupt(f"{path}: '{name}' holds values that are not finite; use weights of another epoch")
    return state


def fill(net: nn.Module, state: Mapping[str, torch.Tensor], where: str, whose: str) -> None:
    """Put the leaves of `state`, read from the file `where`, into `net`.

    Raises:
        DataCorrupt: a leaf is missing, has another shape, or is unknown; names the first.
    """
    try:
        net.load_state_dict(state)
    except RuntimeError as error:
        own = net.state_dict()
        wrong = [f"has no '{name}'" for name in own if name not in state and not name.endswith("num_batches_tracked")]
        wrong += [
            f"has '{name}' of shape {list(state[name].shape)} and not {list(leaf.shape)}"
            for name, leaf in own.items()
            if name in state and state[name].shape != leaf.shape
        ]
        wrong += [f"has '{name}', which the network does not have" for name in state if name not in own]
        raise DataCorrupt(
            f"{where} is no state dict of {whose}: it {wrong[0]}; set model.weights=FILE to one that is"
        ) from error


def weights_hash(path: Path) -> str:
    """8 hexadecimal digits over a file's content.

    Raises:
        DataMissing: it cannot be read.
    """
    try:
        return _hash(path, source_key("weights", [path]))
    except OSError as error:
        raise DataMissing(f"model.weights={path}: {error.strerror or error}") from error


@functools.lru_cache(maxsize=4)
def _hash(path: Path, _: str) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


# torchvision's ResNet-18, MobileNetV2 and SqueezeNet 1.0, with ImageNet weights or without, as named stages.
#
# Weights come from `weights` (a file with torchvision's state dict), else from torch.hub's folder, where torchvision
# keeps what it downloads; `download` lets it do so now. Everything but the classifier is taken over, which starts anew.
#
# Deviations from torchvision: no dropout before the classifier (MobileNetV2 0.2, SqueezeNet 0.5): its noise would have
# to be keyed by client and step for engines to agree. pFedSim's and SosicFL's codes keep it; no paper here says so. The
# classifier is drawn as torchvision draws it, in these codes as torch draws any layer. With pretrained=false the first
# convolution takes as many channels as the images have.
#
# ResNet-18 with 20 classes has 11,186,772 parameters. FedCollab's Table 5 prints 11,181,642 for it: the same network
# with a classifier for 10 classes, 512 x 10 + 10 instead of 512 x 20 + 20, so only the last layer was counted wrongly.

IMAGENET_CLASSES = 1000


@dataclass(frozen=True)
class Vision(Model):
    """A network of torchvision."""

    name: ClassVar[str]  # name in fedbench and in tables
    architecture: ClassVar[str]  # name in torchvision

    pretrained: bool = True  # start from ImageNet weights, except for the classifier
    weights: str | None = None  # file with torchvision's state dict; null: torch.hub's folder
    download: bool = False  # let torchvision fetch the weights if they are in neither

    @property
    def label(self) -> str:
        """The name, with "_scratch" if not pretrained, or the hash of weights that are not torchvision's own."""
        if not self.pretrained:
            return f"{self.name}_scratch"
        if self.weights is None:
            return self.name
        found = weights_hash(Path(self.weights).expanduser())
        return self.name if found in hub_file(self.architecture).name else f"{self.name}-{found}"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """The stages of a randomly initialised network."""
        if self.pretrained and shape[0] != 3:
            raise ConfigError(
                f"model={self.name}: ImageNet weights need images of 3 channels, these have {shape[0]}; "
                "use model.pretrained=false"
            )
        return self.stages(self._network(classes), shape[0])

    def begin(self) -> Tree:
        """ImageNet weights of everything but the head."""
        if not self.pretrained:
            return {}
        net = self._network(IMAGENET_CLASSES)
        state = self._state()
        fill(net, state, str(self._file()), f"torchvision's {self.architecture}")
        leaves = replace_batch_norm(self.stages(net, 3)).state_dict()
        return {name: leaf for name, leaf in leaves.items() if not name.startswith("head.")}

    @abstractmethod
    def stages(self, net: Any, channels: int) -> nn.Sequential:
        """The layers of torchvision's `net` as named stages, its first convolution for `channels`."""

    def _network(self, classes: int) -> nn.Module:
        from torchvision.models import get_model

        net: nn.Module = get_model(self.architecture, weights=None, num_classes=classes)
        return net

    def lacking(self) -> str:
        """The weights, if they are wanted but missing and may not be downloaded."""
        if not self.pretrained or self._file().is_file() or (self.download and not self.weights):
            return ""
        if self.weights:
            return f"model.weights={self.weights}: there is no such file"
        return (
            f"the ImageNet weights of {self.architecture} are not at {self._file()}; "
            "set model.download=true, model.weights=FILE or model.pretrained=false"
        )

    def _file(self) -> Path:
        return Path(self.weights).expanduser() if self.weights else hub_file(self.architecture)

    def _state(self) -> dict[str, torch.Tensor]:
        if missing := self.lacking():
            raise DataMissing(missing)
        if not self._file().is_file():
            fetch_weights(self.architecture)
        return read_weights(self._file())


@dataclass(frozen=True)
class ResNet18(Vision):
    """He et al., CVPR 2016."""

    name: ClassVar[str] = "resnet18"
    architecture: ClassVar[str] = "resnet18"

    def stages(self, net: Any, channels: int) -> nn.Sequential:
        """Stages: stem, layer1 to layer4, pool, head."""
        stem = {"conv": for_channels(net.conv1, channels), "norm": net.bn1, "relu": net.relu, "pool": net.maxpool}
        layers = {f"layer{i}": getattr(net, f"layer{i}") for i in range(1, 5)}
        stages = {"stem": nn.Sequential(OrderedDict(stem)), **layers, "pool": GlobalMean(), "head": net.fc}
        return nn.Sequential(OrderedDict(stages))


@dataclass(frozen=True)
class MobileNetV2(Vision):
    """Sandler et al., CVPR 2018."""

    name: ClassVar[str] = "mobilenet_v2"
    architecture: ClassVar[str] = "mobilenet_v2"

    def stages(self, net: Any, channels: int) -> nn.Sequential:
        """Stages: features, pool, head."""
        net.features[0][0] = for_channels(net.features[0][0], channels)
        stages = {"features": net.features, "pool": GlobalMean(), "head": net.classifier[1]}
        return nn.Sequential(OrderedDict(stages))


@dataclass(frozen=True)
class SqueezeNet(Vision):
    """Iandola et al., 2016, version 1.0.

    Its classifier is a 1 x 1 convolution, ReLU and a mean over places. A 1 x 1 convolution is one linear layer at every
    place, so `head` is linear -> ReLU -> mean with weights [K, 512]: a classifier like any other for methods that
    mix, compare or keep it. Features are [B, 512] for inputs up to 36 pixels (CIFAR's 32), where the map has one place;
    above they are [B, P, 512], which methods that use features refuse.
    """

    name: ClassVar[str] = "squeezenet"
    architecture: ClassVar[str] = "squeezenet1_0"

    def stages(self, net: Any, channels: int) -> nn.Sequential:
        """Stages: features, places, head."""
        net.features[0] = for_channels(net.features[0], channels)
        convolution = net.classifier[1]
        linear = nn.Linear(convolution.in_channels, convolution.out_channels)
        with torch.no_grad():
            linear.weight.copy_(convolution.weight.flatten(1))
            linear.bias.copy_(convolution.bias)
        head = nn.Sequential(OrderedDict(linear=linear, relu=nn.ReLU(), mean=PlacesMean()))
        return nn.Sequential(OrderedDict(features=net.features, places=Places(), head=head))


def for_channels(convolution: nn.Conv2d, channels: int) -> nn.Conv2d:
    """Return the convolution with new weights for another number of input channels; itself if nothing changes."""
    if convolution.in_channels == channels:
        return convolution
    geometry: dict[str, Any] = {name: getattr(convolution, name) for name in ("kernel_size", "stride", "padding")}
    other = nn.Conv2d(channels, convolution.out_channels, bias=convolution.bias is not None, **geometry)
    nn.init.kaiming_normal_(other.weight, mode="fan_out", nonlinearity="relu")
    if other.bias is not None:
        nn.init.zeros_(other.bias)
    return other


# Any network of torchvision or timm by name, drawn at random or from a file of weights; two stages, body and head.
#
# The head is the network's last linear layer, and what comes before it is the body. Layers that draw random numbers
# (dropout, stochastic depth) are left out: their noise would have to be keyed by client and step for engines to agree.
# Where images have another number of channels than 3, the first convolution is drawn anew for them.

RANDOM = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "StochasticDepth", "DropPath")
AUXILIARY = {"googlenet": ("aux1.", "aux2."), "inception_v3": ("AuxLogits.",)}  # classifiers in the middle: left out


class Certain(nn.Identity):
    """Replaces a random layer; its drop rate reads as zero, as timm's attention expects."""

    p = drop_prob = 0.0


@dataclass(frozen=True)
class LibraryModel(Model):
    """A network of a library, by its name there."""

    library: ClassVar[str]

    architecture: str | None = None  # its name in the library
    weights: str | None = None  # file with the library's state dict, which is used without its last layer
    # name -> value: further arguments of the architecture, such as a ViT's img_size
    options: Any = added(None)  # noqa: RUF009 - a field

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.options is None or isinstance(self.options, Mapping)):
            raise ConfigError(f"model.options must be names and values, as {{img_size: 32}}, got {self.options!r}")

    @property
    def label(self) -> str:
        """The library and the architecture, with its options and a hash of its weights if there are any."""
        found = "" if self.weights is None else weights_hash(self._file())
        options = [f"{name}{value}" for name, value in (self.options or {}).items()]
        return "-".join(part for part in (self.library, self.architecture, *options, found) if part)

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names in the library.

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
        net = _unfolded(self._network(shape[0], classes))
        place, last = self._last_linear(net)
        _put(net, place, nn.Identity())
        return nn.Sequential(OrderedDict(body=net, head=last))

    def begin(self) -> Tree:
        """The leaves of the body that `weights` holds."""
        if self.weights is None:
            return {}
        if missing := self.lacking():
            raise DataMissing(missing)
        state = read_weights(self._file())
        net = self._network(3, 2)
        place, _ = self._last_linear(net)
        _put(net, place, nn.Identity())
        kept = copy.copy(state)  # with its versions, which some layers ask for
        left_out = (f"{place}.", *AUXILIARY.get(str(self.architecture), ()))
        for name in [name for name in state if name.startswith(left_out)]:
            del kept[name]
        fill(net, kept, str(self.weights), f"{self.library}'s {self.architecture}")
        return {f"body.{name}": leaf for name, leaf in replace_batch_norm(_unfolded(net)).state_dict().items()}

    def lacking(self) -> str:
        """The file of weights, if the config names one that does not exist."""
        if self.weights is None or self._file().is_file():
            return ""
        return f"model.weights={self.weights}: there is no such file"

    def _file(self) -> Path:
        return Path(self.weights or "").expanduser()

    def _network(self, channels: int, classes: int) -> nn.Module:
        known = self.names()
        if self.architecture not in known:
            if self.architecture is None:
                raise ConfigError(f"model={self.library} has no network; give model.architecture=NAME, as {known[0]}")
            raise ConfigError(
                f"model.architecture={self.architecture} is not a network of {self.library}; nearest: "
                f"{nearest(self.architecture, known)}"
            )
        try:
            net = self.create(channels, classes)
        except TypeError as error:
            if not self.options:
                raise
            raise ConfigError(
                f"model.options={dict(self.options)} do not fit {self.library}'s {self.architecture}: {error}"
            ) from error
        for place, module in list(net.named_modules()):
            if type(module).__name__ in RANDOM:
                _put(net, place, Certain())
        return net

    def _last_linear(self, net: nn.Module) -> tuple[str, nn.Linear]:
        """Return (place, layer) of the linear layer that yields the logits."""
        layers = [(place, module) for place, module in net.named_modules() if not list(module.children())]
        linear = [(place, module) for place, module in layers if isinstance(module, nn.Linear)]
        after = [module for _, module in layers[layers.index(linear[-1]) + 1 :]] if linear else []
        if not linear or any(not isinstance(module, nn.Identity) for module in after):
            raise ConfigError(
                f"{self.library}'s {self.architecture} does not end in a linear layer, which fedbench needs as the "
                "head; write your own model: docs/datasets.md"
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

        plain: dict[str, Any] = {"aux_logits": False, "init_weights": True} if self.architecture in AUXILIARY else {}
        if plain and self.weights is not None and channels == 3:  # torchvision's are for inputs in [-1, 1]
            plain["transform_input"] = True
        net: nn.Module = get_model(
            str(self.architecture), weights=None, num_classes=classes, **{**plain, **(self.options or {})}
        )
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
            str(self.architecture), pretrained=False, num_classes=classes, in_chans=channels, **(self.options or {})
        )
        return net


def _timm() -> Any:
    try:
        import timm  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ConfigError("model=timm needs timm: pip install timm") from error
    return timm


def _unfolded(net: nn.Module) -> nn.Module:
    """Return `net` with timm's combined batch norms (BatchNormAct2d) as three layers: norm, drop and activation."""
    for place, layer in list(net.named_modules()):
        if isinstance(layer, nn.BatchNorm2d) and hasattr(layer, "act"):
            form = (layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
            norm = nn.BatchNorm2d(*form)
            norm.load_state_dict({name: leaf for name, leaf in layer.state_dict().items() if "." not in name})
            _put(net, place, nn.Sequential(OrderedDict(norm=norm, **dict(layer.named_children()))))
    return net


def _put(net: nn.Module, place: str, module: nn.Module) -> None:
    """Replace the module of `net` at the dotted `place`."""
    outer, _, name = place.rpartition(".")
    setattr(net.get_submodule(outer), name, module)
