"""All networks by name. A network is an nn.Sequential of named stages whose last is `head` (see Task)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.config.registry import Registry

if TYPE_CHECKING:
    from fedbench.models.base import Model

MODELS: Registry[Model] = Registry(
    "model",
    {
        "cnn5": "fedbench.models.cnn5:CNN5",
        "cub_cnn": "fedbench.models.cub:CubCNN",
        "fedrema_alexnet": "fedbench.models.fedrema:FedReMaAlexNet",
        "fedrema_cnn": "fedbench.models.fedrema:FedReMaCNN",
        "kinds": "fedbench.models.kinds:Kinds",
        "lenet5": "fedbench.models.lenet5:LeNet5",
        "mlp": "fedbench.models.mlp:MLP",
        "mobilenet_v2": "fedbench.models.vision:MobileNetV2",
        "resnet18": "fedbench.models.vision:ResNet18",
        "simple_cnn": "fedbench.models.simple_cnn:SimpleCNN",
        "squeezenet": "fedbench.models.vision:SqueezeNet",
        "textcnn": "fedbench.models.cub:TextCNN",
        "timm": "fedbench.models.library:TimmModel",
        "torchvision": "fedbench.models.library:TorchvisionModel",
    },
    __name__,
)
