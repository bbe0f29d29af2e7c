"""The partitions, by name. A name that ends in a number (`dir0.1`) sets the family's first number."""

from __future__ import annotations

from fedbench.config.registry import Registry
from fedbench.data.partitions.base import PartitionSpec

PARTITIONS: Registry[PartitionSpec] = Registry(
    "partition",
    {
        "concept_shift": "fedbench.data.partitions.shifts:ConceptShift",
        "dir": "fedbench.data.partitions.dirichlet:Dirichlet",
        "dir_prior": "fedbench.data.partitions.prior:DirichletPrior",
        "domain": "fedbench.data.partitions.domain:Domain",
        "feature_shift": "fedbench.data.partitions.shifts:FeatureShift",
        "file": "fedbench.data.partitions.file:FileSplit",
        "fold": "fedbench.data.partitions.fold:Fold",
        "fold_code": "fedbench.data.partitions.fold_code:FoldCode",
        "groups_s": "fedbench.data.partitions.groups:Groups",
        "homo": "fedbench.data.partitions.homo:Homogeneous",
        "label_groups": "fedbench.data.partitions.label_groups:LabelGroups",
        "label_shift": "fedbench.data.partitions.label_shift:LabelShift",
        "pathological": "fedbench.data.partitions.pathological:Pathological",
        "quantity": "fedbench.data.partitions.quantity:Quantity",
    },
    __name__,
)
