"""torchvision's ResNet-18, MobileNetV2 and SqueezeNet 1.0, with ImageNet weights or without, as named stages.

Weights come from `weights` (a file with torchvision's state dict), else from torch.hub's folder, where torchvision
keeps what it downloads; `download` lets it do so now. Everything but the classifier is taken over, which starts anew.

Deviations from torchvision: no dropout before the classifier (MobileNetV2 0.2, SqueezeNet 0.5): its noise would have to
be keyed by client and step for engines to agree, and no paper here says that it kept it. With pretrained=false the
first convolution takes as many channels as the images have.

ResNet-18 with 20 classes has 11,186,772 parameters. FedCollab's Table 5 prints 11,181,642 for it: the same network with
a classifier for 10 classes, 512 x 10 + 10 instead of 512 x 20 + 20, so only the last layer was counted wrongly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing
from fedbench.core.trees import Tree
from fedbench.models import weights
from fedbench.models.base import Model
from fedbench.models.blocks import GlobalMean, Places, PlacesMean
from fedbench.models.norm import replace_batch_norm

IMAGENET_CLASSES = 1000


@dataclass(frozen=True)
class Vision(Model):
    """A network of torchvision."""

    name: ClassVar[str]  # here and in tables
    architecture: ClassVar[str]  # in torchvision

    pretrained: bool = True  # start from ImageNet weights, but for the classifier
    weights: str | None = None  # file with torchvision's state dict; null: torch.hub's folder
    download: bool = False  # let torchvision fetch the weights if they are in neither

    @property
    def label(self) -> str:
        """The name, with "_scratch" if not pretrained, or the hash of weights that are not torchvision's own."""
        if not self.pretrained:
            return f"{self.name}_scratch"
        if self.weights is None:
            return self.name
        found = weights.file_hash(Path(self.weights).expanduser())
        return self.name if found in weights.hub_file(self.architecture).name else f"{self.name}-{found}"

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
        try:
            net.load_state_dict(state)
        except (RuntimeError, AttributeError, TypeError) as error:
            raise DataCorrupt(
                f"the weights for model={self.name} are no state dict of torchvision's {self.architecture}"
            ) from error
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
        """The weights, where they are wanted, are not there and may not be downloaded."""
        if not self.pretrained or self._file().is_file() or (self.download and not self.weights):
            return ""
        return (
            f"the ImageNet weights of {self.architecture} are not at {self._file()}; "
            "set model.download=true, model.weights=FILE or model.pretrained=false"
        )

    def _file(self) -> Path:
        return Path(self.weights).expanduser() if self.weights else weights.hub_file(self.architecture)

    def _state(self) -> dict[str, torch.Tensor]:
        if missing := self.lacking():
            raise DataMissing(missing)
        if not self._file().is_file():
            weights.fetch(self.architecture)
        return weights.read(self._file())


@dataclass(frozen=True)
class ResNet18(Vision):
    """He et al., CVPR 2016."""

    name: ClassVar[str] = "resnet18"
    architecture: ClassVar[str] = "resnet18"

    def stages(self, net: Any, channels: int) -> nn.Sequential:
        """Stages: stem, layer1 to layer4, pool, head."""
        stem = {
            "conv": for_channels(net.conv1, channels),
            "norm": net.bn1,
            "relu": net.relu,
            "pool": net.maxpool,
        }
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
    """The same convolution for another number of input channels, drawn anew; itself where nothing changes."""
    if convolution.in_channels == channels:
        return convolution
    geometry: dict[str, Any] = {
        name: getattr(convolution, name) for name in ("kernel_size", "stride", "padding")
    }
    other = nn.Conv2d(channels, convolution.out_channels, bias=convolution.bias is not None, **geometry)
    nn.init.kaiming_normal_(other.weight, mode="fan_out", nonlinearity="relu")
    if other.bias is not None:
        nn.init.zeros_(other.bias)
    return other
