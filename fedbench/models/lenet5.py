"""LeNet5 (LeCun et al. 1998) as pFedSim (Table 5, with the pool its table omits) and FedSaC use it.

conv C->6 k5, [BN], pool 2, ReLU; conv 6->16 k5, [BN], pool 2, ReLU; ->120->84, ReLU; classifier. 62,006 parameters on
3 x 32 x 32 with 10 classes and without BN.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from fedbench.models.base import Model, flat_size
from fedbench.models.blocks import MaxPool2


@dataclass(frozen=True)
class LeNet5(Model):
    """Two convolutions and three linear layers."""

    batch_norm: bool = False  # pFedSim: true; FedSaC's and pFedGraph's CNN: false

    @property
    def label(self) -> str:
        """As "lenet5" or "lenet5_bn"."""
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
        for wide, narrow in ((channels, 6), (6, 16)):
            layers.append(nn.Conv2d(wide, narrow, 5))
            layers += [nn.BatchNorm2d(narrow)] if self.batch_norm else []
            layers += [MaxPool2(), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten())
