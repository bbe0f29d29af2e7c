"""Small networks of the papers: perceptron, LeNet5, and convolutional networks of three to eight layers."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, cast

from torch import Tensor, nn

from fedbench.config.fields import at_least, one_of
from fedbench.config.schema import added
from fedbench.core.errors import ConfigError
from fedbench.models.layers import BatchNorm, MaxPool2
from fedbench.models.task import Model, flat_size

# Multi-layer perceptron; FedCollab's 784-200-200-10 for Fashion-MNIST (Bao et al., ICML 2023, Section 5.1).


@dataclass(frozen=True)
class MLP(Model):
    """Flatten, hidden layers with ReLU, classifier."""

    hidden: tuple[int, ...] = at_least(1, (200, 200))  # widths of the hidden layers

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden:
            raise ConfigError("model.hidden must list at least one width")

    @property
    def label(self) -> str:
        """The label, such as "mlp200x200"."""
        return "mlp" + "x".join(map(str, self.hidden))

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: flatten, fc, head."""
        widths = [math.prod(shape), *self.hidden]
        layers: list[nn.Module] = []
        for wide, narrow in pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        stages = {
            "flatten": nn.Flatten(),
            "fc": nn.Sequential(*layers),
            "head": nn.Linear(widths[-1], classes),
        }
        return nn.Sequential(OrderedDict(stages))


# LeNet5 (LeCun et al. 1998) as pFedSim (Table 5, with the pool its table omits) and FedSaC use it.
#
# conv C->6 k5, [BN], pool 2, ReLU; conv 6->16 k5, [BN], pool 2, ReLU; ->120->84, ReLU; classifier. 62,006 parameters on
# 3 x 32 x 32 with 10 classes and without BN. FLUX pads images by 2 and takes the mean of four pixels, after the ReLU.


@dataclass(frozen=True)
class LeNet5(Model):
    """Two convolutions and three linear layers."""

    batch_norm: bool = False  # pFedSim: true; FedSaC's and pFedGraph's CNN: false
    padding: int = added(at_least(0, 0))  # pixels around the image
    pool: str = added(one_of("max", "mean"))  # of four pixels

    @property
    def label(self) -> str:
        """The label, "lenet5" or "lenet5_bn"."""
        return "lenet5_bn" if self.batch_norm else "lenet5"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: conv, fc, head."""
        conv = self._conv(shape[0])
        fc = nn.Sequential(
            nn.Linear(flat_size(self._conv(shape[0]), shape), 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()
        )
        return nn.Sequential(OrderedDict({"conv": conv, "fc": fc, "head": nn.Linear(84, classes)}))

    def _conv(self, channels: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for wide, narrow, padding in ((channels, 6, self.padding), (6, 16, 0)):
            layers.append(nn.Conv2d(wide, narrow, 5, padding=padding))
            layers += [nn.BatchNorm2d(narrow)] if self.batch_norm else []
            layers += [MaxPool2(), nn.ReLU()] if self.pool == "max" else [nn.ReLU(), nn.AvgPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten())


# Convolutions k5 with ReLU and pool 2, and linear layers with ReLU, any number of each: networks for federations of
# architectures (FedGH, FedMRL, HtFLlib). With 32, 64 channels and 512 units it is PFLlib's and HtFLlib's FedAvgCNN.


@dataclass(frozen=True)
class CNN(Model):
    """Convolutions, linear layers and the classifier."""

    channels: tuple[int, ...] = at_least(1, (32, 64))  # of each convolution
    hidden: tuple[int, ...] = at_least(1, (512,))  # widths of the linear layers before the classifier
    padding: int = at_least(0, 0)  # of each convolution, on every side; 2 keeps an image's size

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("channels", "hidden"):
            if not getattr(self, name):
                raise ConfigError(f"model.{name} must list at least one width")

    @property
    def label(self) -> str:
        """As "cnn32-64x512", with "p2" for padding."""
        wide = "-".join(map(str, self.channels)) + "".join(f"x{width}" for width in self.hidden)
        return f"cnn{wide}" + f"p{self.padding}" * (self.padding > 0)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: conv, fc, head."""
        widths = [flat_size(self._conv(shape[0]), shape), *self.hidden]
        fc = [layer for wide, narrow in pairwise(widths) for layer in (nn.Linear(wide, narrow), nn.ReLU())]
        stages = {"conv": self._conv(shape[0]), "fc": nn.Sequential(*fc), "head": nn.Linear(widths[-1], classes)}
        return nn.Sequential(OrderedDict(stages))

    def _conv(self, channels: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for wide, narrow in pairwise((channels, *self.channels)):
            layers += [nn.Conv2d(wide, narrow, 5, padding=self.padding), MaxPool2(), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten())


# FedCollab's 5-layer CNN for CIFAR-10 (Bao et al., ICML 2023, section 5.1).
#
# conv 3->32 k3, pool 2; 32->64 k3, pool 2; 64->64 k3; 1024->64; classifier; ReLU between. 122,570 parameters on
# 3 x 32 x 32 with 10 classes.


@dataclass(frozen=True)
class CNN5(Model):
    """Three convolutions and two linear layers."""

    label: ClassVar[str] = "cnn5"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: conv, fc, head."""
        flat = flat_size(_cnn5_convolutions(shape[0]), shape)
        stages = {
            "conv": _cnn5_convolutions(shape[0]),
            "fc": nn.Sequential(nn.Linear(flat, 64), nn.ReLU()),
            "head": nn.Linear(64, classes),
        }
        return nn.Sequential(OrderedDict(stages))


def _cnn5_convolutions(channels: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3), MaxPool2(), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3), MaxPool2(), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3), nn.ReLU()),
        nn.Flatten(),
    )


# SosicFL's SimpleCNN for CIFAR-10 (section 4; after Hahn et al., KDD 2022).
#
# conv 3->16 k5; 16->32 k5 pad 1; 32->64 k3 pad 1; each pool 2 and LeakyReLU; 576->128, LeakyReLU; classifier. Xavier's
# uniform weights and zero biases are ours (the code: his normal ones, torch's biases); the slope is torch's 0.01.
# 107,690 parameters on 3 x 32 x 32 with 10 classes.

SIMPLE_CNN_LAYERS = ((16, 5, 0), (32, 5, 1), (64, 3, 1))  # channels, kernel, padding


@dataclass(frozen=True)
class SimpleCNN(Model):
    """Three convolutions and two linear layers."""

    label: ClassVar[str] = "simple_cnn"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: conv, fc, head."""
        flat = flat_size(_simple_cnn_convolutions(shape[0]), shape)
        stages = {
            "conv": _simple_cnn_convolutions(shape[0]),
            "fc": nn.Sequential(nn.Linear(flat, 128), nn.LeakyReLU()),
            "head": nn.Linear(128, classes),
        }
        net = nn.Sequential(OrderedDict(stages))
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(cast("Tensor", module.bias))
        return net


def _simple_cnn_convolutions(channels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width, kernel, padding in SIMPLE_CNN_LAYERS:
        layers += [nn.Conv2d(channels, width, kernel, padding=padding), MaxPool2(), nn.LeakyReLU()]
        channels = width
    return nn.Sequential(*layers, nn.Flatten())


# FedReMa's networks (section 5.1 and its code); its classifier is every fully connected layer: group @classifier.
#
# FedReMaCNN (MNIST, Fashion-MNIST): conv 1->32 k5, pool 2; 32->64 k5, pool 2; 1024->512; classifier. 582,026 parameters
# on 1 x 28 x 28 with 10 classes.
# FedReMaAlexNet (CIFAR-10): conv 3->32, pool 2; 32->64, pool 2; 64->128; 128->256; 256->256, pool k3 s2 (all k3 pad 1);
# 2304->1024->512; classifier. No dropout and no local response normalisation, as the paper says. 3,868,746 parameters
# on 3 x 32 x 32 with 10 classes. ReLU after every layer but the last; with `activations: code` only after pooling, as
# the authors' code has it: none between the last three convolutions nor between the linear layers.


@dataclass(frozen=True)
class FedReMaCNN(Model):
    """Two convolutions and two linear layers."""

    label: ClassVar[str] = "fedrema_cnn"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: conv, fc, head."""
        flat = flat_size(_two_convolutions(shape[0]), shape)
        stages = {
            "conv": _two_convolutions(shape[0]),
            "fc": nn.Sequential(nn.Linear(flat, 512), nn.ReLU()),
            "head": nn.Linear(512, classes),
        }
        return nn.Sequential(OrderedDict(stages))


@dataclass(frozen=True)
class FedReMaAlexNet(Model):
    """Five convolutions and three linear layers."""

    activations: str = added(one_of("all", "code"))  # ReLU: "all" layers but the last; "code": after pooling

    @property
    def label(self) -> str:
        """The label, "fedrema_alexnet" or "fedrema_alexnet_code"."""
        return "fedrema_alexnet" if self.activations == "all" else f"fedrema_alexnet_{self.activations}"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: conv, fc, head."""
        between = self.activations == "all"
        flat = flat_size(_five_convolutions(shape[0], between), shape)
        linear: list[nn.Module] = []
        for wide, narrow in ((flat, 1024), (1024, 512)):
            linear += [nn.Linear(wide, narrow), *([nn.ReLU()] if between else [])]
        stages = {
            "conv": _five_convolutions(shape[0], between),
            "fc": nn.Sequential(*linear),
            "head": nn.Linear(512, classes),
        }
        return nn.Sequential(OrderedDict(stages))


def _two_convolutions(channels: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 5), MaxPool2(), nn.ReLU()),
        *(nn.Conv2d(32, 64, 5), MaxPool2(), nn.ReLU()),
        nn.Flatten(),
    )


def _five_convolutions(channels: int, between: bool) -> nn.Sequential:
    """Five convolutions with ReLU after each, or, unless `between`, after each pooling."""
    layers: list[nn.Module] = []
    pools: dict[int, nn.Module] = {0: MaxPool2(), 1: MaxPool2(), 4: nn.MaxPool2d(3, stride=2)}
    for place, width in enumerate((32, 64, 128, 256, 256)):
        layers.append(nn.Conv2d(channels, width, 3, padding=1))
        layers += [pools[place]] if place in pools else []
        layers += [nn.ReLU()] if between or place in pools else []
        channels = width
    return nn.Sequential(*layers, nn.Flatten())


# FLUX's ResNet9 for CIFAR-100 (Fenoglio et al., NeurIPS 2025, public/models.py).
#
# Blocks of conv k3 pad 1, BN, ReLU: C->64; 64->128, pool 2; two of 128 beside a shortcut; 128->256, pool; 256->512,
# pool; two of 512 beside a shortcut; pool; classifier. 6,775,140 parameters on 3 x 32 x 32 with 100 classes.


class Shortcut(nn.Module):
    """Blocks beside a shortcut: x plus what they make of x."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        return x + cast("Tensor", self.blocks(x))


@dataclass(frozen=True)
class ResNet9(Model):
    """Eight convolutions with batch normalisation, two shortcuts, and a linear layer."""

    label: ClassVar[str] = "resnet9"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: stem, layer1 to layer3, pool, head."""
        stages = self._stages(shape[0])
        flat = flat_size(nn.Sequential(self._stages(shape[0])), shape)
        return nn.Sequential(OrderedDict({**stages, "head": nn.Linear(flat, classes)}))

    def _stages(self, channels: int) -> OrderedDict[str, nn.Module]:
        stages: dict[str, nn.Module] = {
            "stem": _block(channels, 64),
            "layer1": nn.Sequential(_block(64, 128), MaxPool2(), Shortcut(_block(128, 128), _block(128, 128))),
            "layer2": nn.Sequential(_block(128, 256), MaxPool2()),
            "layer3": nn.Sequential(_block(256, 512), MaxPool2(), Shortcut(_block(512, 512), _block(512, 512))),
            "pool": nn.Sequential(MaxPool2(), nn.Flatten()),
        }
        return OrderedDict(stages)


def _block(wide: int, narrow: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(wide, narrow, 3, padding=1), BatchNorm(narrow), nn.ReLU())
