"""All networks by name. A network is an nn.Sequential of named stages whose last is `head` (see Task)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.registry import Registry

if TYPE_CHECKING:
    from fedbench.models.base import Model

MODELS: Registry[Model] = Registry(
    "model",
    {
        "lenet5": "fedbench.models.lenet5:LeNet5",
        "mlp": "fedbench.models.mlp:MLP",
    },
)
