"""The data sets, by name."""

from __future__ import annotations

from fedbench.data.dataset import DataSource
from fedbench.registry import Registry

DATASETS: Registry[DataSource] = Registry(
    "data set",
    {
        "cifar10": "fedbench.data.datasets.cifar:Cifar10",
        "digits": "fedbench.data.datasets.digits:Digits",
        "fashion_mnist": "fedbench.data.datasets.mnist:FashionMnist",
        "synthetic": "fedbench.data.datasets.synthetic:Synthetic",
    },
)
