"""Studies: cells of a table that no training run's accuracy fills. A table's row names one by `study: NAME`."""

from __future__ import annotations

from fedbench.config.fields import Registry
from fedbench.tables.studies.base import Study

STUDIES: Registry[Study] = Registry(
    "study",
    {
        "cs": "fedbench.tables.studies.similarity:ClassifierSimilarity",
        "data_similarity": "fedbench.tables.studies.similarity:DataSimilarity",
        "discriminator_cost": "fedbench.tables.studies.cost:DiscriminatorCost",
        "fedsac_phases": "fedbench.tables.studies.timing:FedSaCPhases",
        "ldb": "fedbench.tables.studies.similarity:LossSimilarity",
        "local_seconds": "fedbench.tables.studies.timing:LocalSeconds",
        "mdb": "fedbench.tables.studies.similarity:UpdateSimilarity",
        "model_cost": "fedbench.tables.studies.cost:ModelCost",
        "wdb": "fedbench.tables.studies.similarity:StatisticsSimilarity",
    },
)
