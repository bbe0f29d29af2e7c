"""Multi-layer perceptron; FedCollab's 784-200-200-10 for Fashion-MNIST (Bao et al., ICML 2023, Section 5.1)."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from fedbench.config.domain import at_least
from fedbench.core.errors import ConfigError
from fedbench.models.base import Model


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
        """As "mlp200x200"."""
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
