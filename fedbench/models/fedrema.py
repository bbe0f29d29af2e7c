"""FedReMa's networks (section 5.1 and its code); its classifier is every fully connected layer: group @classifier.

FedReMaCNN (MNIST, Fashion-MNIST): conv 1->32 k5, pool 2; 32->64 k5, pool 2; 1024->512; classifier. 582,026 parameters
on 1 x 28 x 28 with 10 classes.
FedReMaAlexNet (CIFAR-10): conv 3->32, pool 2; 32->64, pool 2; 64->128; 128->256; 256->256, pool k3 s2 (all k3 pad 1);
2304->1024->512; classifier. No dropout and no local response normalisation, as the paper says. 3,868,746 parameters on
3 x 32 x 32 with 10 classes. ReLU after every layer but the last; with `activations: code` only after pooling, as the
authors' code has it: none between the last three convolutions nor between the linear layers.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from fedbench.config.domain import one_of
from fedbench.config.schema import added
from fedbench.models.base import Model, flat_size
from fedbench.models.blocks import MaxPool2


@dataclass(frozen=True)
class FedReMaCNN(Model):
    """Two convolutions and two linear layers."""

    @property
    def label(self) -> str:
        """The name."""
        return "fedrema_cnn"

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

    activations: str = added(one_of("all", "code"))  # after each layer but the last, or after pooling alone

    @property
    def label(self) -> str:
        """As "fedrema_alexnet" or "fedrema_alexnet_code"."""
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
    """With ReLU after each, or (not `between`) after each pool."""
    layers: list[nn.Module] = []
    pools: dict[int, nn.Module] = {0: MaxPool2(), 1: MaxPool2(), 4: nn.MaxPool2d(3, stride=2)}
    for place, width in enumerate((32, 64, 128, 256, 256)):
        layers.append(nn.Conv2d(channels, width, 3, padding=1))
        layers += [pools[place]] if place in pools else []
        layers += [nn.ReLU()] if between or place in pools else []
        channels = width
    return nn.Sequential(*layers, nn.Flatten())
