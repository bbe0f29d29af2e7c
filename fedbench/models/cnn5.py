"""FedCollab's 5-layer CNN for CIFAR-10 (Bao et al., ICML 2023, section 5.1).

conv 3->32 k3, pool 2; 32->64 k3, pool 2; 64->64 k3; 1024->64; classifier; ReLU between. 122,570 parameters on
3 x 32 x 32 with 10 classes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from fedbench.models.base import Model, flat_size
from fedbench.models.blocks import MaxPool2


@dataclass(frozen=True)
class CNN5(Model):
    """Three convolutions and two linear layers."""

    @property
    def label(self) -> str:
        """The name."""
        return "cnn5"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Stages: conv, fc, head."""
        flat = flat_size(_convolutions(shape[0]), shape)
        stages = {
            "conv": _convolutions(shape[0]),
            "fc": nn.Sequential(nn.Linear(flat, 64), nn.ReLU()),
            "head": nn.Linear(64, classes),
        }
        return nn.Sequential(OrderedDict(stages))


def _convolutions(channels: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3), MaxPool2(), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3), MaxPool2(), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3), nn.ReLU()),
        nn.Flatten(),
    )
