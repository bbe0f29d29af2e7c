"""All networks by name, and what a method may ask of one (`task.py`). The last block of layers is `head`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.config.fields import Registry

if TYPE_CHECKING:
    from fedbench.models.task import Model

MODELS: Registry[Model] = Registry(
    "model",
    {
        "cnn": "fedbench.models.small:CNN",
        "cnn1d": "fedbench.models.sequences:CNN1d",
        "cnn5": "fedbench.models.small:CNN5",
        "cub_cnn": "fedbench.models.modalities:CubCNN",
        "embedding": "fedbench.models.sequences:EmbeddingNet",
        "fedrema_alexnet": "fedbench.models.small:FedReMaAlexNet",
        "fedrema_cnn": "fedbench.models.small:FedReMaCNN",
        "kinds": "fedbench.models.modalities:Kinds",
        "lenet5": "fedbench.models.small:LeNet5",
        "mlp": "fedbench.models.small:MLP",
        "mobilenet_v2": "fedbench.models.vision:MobileNetV2",
        "resnet9": "fedbench.models.small:ResNet9",
        "resnet18": "fedbench.models.vision:ResNet18",
        "simple_cnn": "fedbench.models.small:SimpleCNN",
        "squeezenet": "fedbench.models.vision:SqueezeNet",
        "textcnn": "fedbench.models.modalities:TextCNN",
        "timm": "fedbench.models.vision:TimmModel",
        "torchvision": "fedbench.models.vision:TorchvisionModel",
    },
    __name__,
)
