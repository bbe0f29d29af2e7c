"""The data sets, by name."""

from __future__ import annotations

from fedbench.config.fields import Registry
from fedbench.data.dataset import DataSource

DATASETS: Registry[DataSource] = Registry(
    "data set",
    {
        "captioned": "fedbench.data.datasets.synthetic:Captioned",
        "cifar10": "fedbench.data.datasets.small_images:Cifar10",
        "cifar100": "fedbench.data.datasets.small_images:Cifar100",
        "cinic10": "fedbench.data.datasets.small_images:Cinic10",
        "cub": "fedbench.data.datasets.cub:Cub",
        "digits": "fedbench.data.datasets.small_images:Digits",
        "domainnet": "fedbench.data.datasets.domainnet:DomainNet",
        "emnist": "fedbench.data.datasets.small_images:Emnist",
        "fashion_mnist": "fedbench.data.datasets.small_images:FashionMnist",
        "images": "fedbench.data.datasets.own:ImageFolder",
        "mnist": "fedbench.data.datasets.small_images:Mnist",
        "npz": "fedbench.data.datasets.own:Npz",
        "synthetic": "fedbench.data.datasets.synthetic:Synthetic",
        "table": "fedbench.data.datasets.table:OwnTable",
        "tiny_imagenet": "fedbench.data.datasets.small_images:TinyImageNet",
    },
    __name__,
)
