"""The data sets, by name."""

from __future__ import annotations

from fedbench.config.registry import Registry
from fedbench.data.dataset import DataSource

DATASETS: Registry[DataSource] = Registry(
    "data set",
    {
        "captioned": "fedbench.data.datasets.captioned:Captioned",
        "cifar10": "fedbench.data.datasets.cifar:Cifar10",
        "cifar100": "fedbench.data.datasets.cifar:Cifar100",
        "cinic10": "fedbench.data.datasets.cinic:Cinic10",
        "cub": "fedbench.data.datasets.cub:Cub",
        "digits": "fedbench.data.datasets.digits:Digits",
        "domainnet": "fedbench.data.datasets.domainnet:DomainNet",
        "emnist": "fedbench.data.datasets.emnist:Emnist",
        "fashion_mnist": "fedbench.data.datasets.mnist:FashionMnist",
        "images": "fedbench.data.datasets.image_folder:ImageFolder",
        "mnist": "fedbench.data.datasets.mnist:Mnist",
        "npz": "fedbench.data.datasets.own:Npz",
        "synthetic": "fedbench.data.datasets.synthetic:Synthetic",
        "tiny_imagenet": "fedbench.data.datasets.tiny_imagenet:TinyImageNet",
    },
    __name__,
)
