"""The partitions, by name. A name that ends in a number (`dir0.1`) sets the family's first number."""

from __future__ import annotations

from fedbench.config.fields import Registry
from fedbench.data.partitions.base import PartitionSpec

PARTITIONS: Registry[PartitionSpec] = Registry(
    "partition",
    {
        "anda": "fedbench.data.partitions.programs:Anda",
        "concept_shift": "fedbench.data.partitions.shifts:ConceptShift",
        "concept_shift_code": "fedbench.data.partitions.programs:ConceptShiftCode",
        "dir": "fedbench.data.partitions.label:Dirichlet",
        "dir_fedsac": "fedbench.data.partitions.programs:FedSacDirichlet",
        "dir_prior": "fedbench.data.partitions.label:DirichletPrior",
        "domain": "fedbench.data.partitions.groups:Domain",
        "feature_shift": "fedbench.data.partitions.shifts:FeatureShift",
        "feature_shift_code": "fedbench.data.partitions.programs:FeatureShiftCode",
        "file": "fedbench.data.partitions.file:FileSplit",
        "fold": "fedbench.data.partitions.groups:Fold",
        "fold_code": "fedbench.data.partitions.groups:FoldCode",
        "groups_fedrema": "fedbench.data.partitions.programs:FedReMaGroups",
        "groups_s": "fedbench.data.partitions.groups:Groups",
        "homo": "fedbench.data.partitions.label:Homogeneous",
        "homo_fedsac": "fedbench.data.partitions.programs:FedSacHomogeneous",
        "label_groups": "fedbench.data.partitions.groups:LabelGroups",
        "label_shift": "fedbench.data.partitions.groups:LabelShift",
        "natural": "fedbench.data.partitions.natural:Natural",
        "pathological": "fedbench.data.partitions.label:Pathological",
        "pathological_fedsac": "fedbench.data.partitions.programs:FedSacPathological",
        "quantity": "fedbench.data.partitions.label:Quantity",
    },
    __name__,
)
