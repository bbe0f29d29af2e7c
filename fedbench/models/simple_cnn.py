"""SosicFL's SimpleCNN for CIFAR-10 (section 4; after Hahn et al., KDD 2022).

conv 3->16 k5; 16->32 k5 pad 1; 32->64 k3 pad 1; each pool 2 and LeakyReLU; 576->128, LeakyReLU; classifier. Xavier
initialisation, zero biases; the slope is torch's 0.01. 107,690 parameters on 3 x 32 x 32 with 10 classes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from fedbench.models.base import Model, flat_size
from fedbench.models.blocks import MaxPool2

LAYERS = ((16, 5, 0), (32, 5, 1), (64, 3, 1))  # channels, kernel, padding


@dataclass(frozen=True)
class SimpleCNN(Model):
    """Three convolutions and two linear layers."""

    @property
    def label(self) -> str:
        """The name."""
        return "simple_cnn"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: conv, fc, head."""
        flat = flat_size(_convolutions(shape[0]), shape)
        stages = {
            "conv": _convolutions(shape[0]),
            "fc": nn.Sequential(nn.Linear(flat, 128), nn.LeakyReLU()),
            "head": nn.Linear(128, classes),
        }
        net = nn.Sequential(OrderedDict(stages))
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(cast("Tensor", module.bias))
        return net


def _convolutions(channels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width, kernel, padding in LAYERS:
        layers += [nn.Conv2d(channels, width, kernel, padding=padding), MaxPool2(), nn.LeakyReLU()]
        channels = width
    return nn.Sequential(*layers, nn.Flatten())
