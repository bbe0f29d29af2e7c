"""The papers' networks without weights of ImageNet."""

from __future__ import annotations

from fedbench.models import MODELS
from fedbench.models.task import Model

VISION = ("resnet18", "mobilenet_v2", "squeezenet")


def build(name: str, **fields: object) -> Model:
    return MODELS.build({"name": name, **({"pretrained": False} if name in VISION else {}), **fields})
