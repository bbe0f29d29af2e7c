"""The partitions, by name. A name that ends in a number (`dir0.1`) sets the family's first number."""

from __future__ import annotations

from fedbench.data.partitions.base import PartitionSpec
from fedbench.registry import Registry

PARTITIONS: Registry[PartitionSpec] = Registry(
    "partition",
    {
        "dir": "fedbench.data.partitions.dirichlet:Dirichlet",
        "homo": "fedbench.data.partitions.homo:Homogeneous",
        "label_shift": "fedbench.data.partitions.label_shift:LabelShift",
    },
)
