"""All methods by name. Adding one: its file here, its YAML in conf/method/, one line below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.config.fields import Registry

if TYPE_CHECKING:
    from fedbench.engine.method import Method

METHODS: Registry[Method] = Registry(
    "method",
    {
        "apfl": "fedbench.methods.apfl:APFL",
        "cfl": "fedbench.methods.cfl:CFL",
        "ditto": "fedbench.methods.ditto:Ditto",
        "fedamp": "fedbench.methods.fedamp:FedAMP",
        "fedap": "fedbench.methods.fedap:FedAP",
        "fedavg": "fedbench.methods.fedavg:FedAvg",
        "fedbabu": "fedbench.methods.fedbabu:FedBABU",
        "fedbn": "fedbench.methods.fedbn:FedBN",
        "fedcluster": "fedbench.methods.cfl:CFL",
        "fedcollab": "fedbench.methods.fedcollab.fedcollab:FedCollab",
        "feddistill": "fedbench.methods.feddistill:FedDistill",
        "feddyn": "fedbench.methods.feddyn:FedDyn",
        "fedfomo": "fedbench.methods.fedfomo:FedFomo",
        "fedgen": "fedbench.methods.fedgen:FedGen",
        "fediot": "fedbench.methods.fediot:FedIoT",
        "fednova": "fedbench.methods.fednova:FedNova",
        "fedpac": "fedbench.methods.fedpac:FedPAC",
        "fedper": "fedbench.methods.fedper:FedPer",
        "fedproto": "fedbench.methods.fedproto:FedProto",
        "fedprox": "fedbench.methods.fedprox:FedProx",
        "fedrema": "fedbench.methods.fedrema:FedReMa",
        "fedrep": "fedbench.methods.fedrep:FedRep",
        "fedrod": "fedbench.methods.fedrod:FedRoD",
        "fedsac": "fedbench.methods.fedsac:FedSaC",
        "fedsac_multimodal": "fedbench.methods.fedsac:MultimodalFedSaC",
        "fedtgp": "fedbench.methods.fedtgp:FedTGP",
        "fesem": "fedbench.methods.fesem:FeSEM",
        "finetune": "fedbench.methods.finetune:Finetune",
        "ifca": "fedbench.methods.ifca:IFCA",
        "kmeans": "fedbench.methods.kmeans:KMeans",
        "knnper": "fedbench.methods.knnper:KNNPer",
        "lg_fedavg": "fedbench.methods.lg_fedavg:LGFedAvg",
        "local": "fedbench.methods.local:Local",
        "moon": "fedbench.methods.moon:Moon",
        "oracle": "fedbench.methods.oracle:Oracle",
        "pacfl": "fedbench.methods.pacfl:PACFL",
        "per_kind": "fedbench.methods.per_kind:PerKind",
        "perfedavg": "fedbench.methods.perfedavg:PerFedAvg",
        "pfedfda": "fedbench.methods.pfedfda:PFedFDA",
        "pfedgraph": "fedbench.methods.pfedgraph:PFedGraph",
        "pfedhn": "fedbench.methods.pfedhn:PFedHN",
        "pfedme": "fedbench.methods.pfedme:PFedMe",
        "pfedsim": "fedbench.methods.pfedsim:PFedSim",
        "scaffold": "fedbench.methods.scaffold:Scaffold",
        "sosicfl": "fedbench.methods.sosicfl:SosicFL",
        "sosicfl_plus": "fedbench.methods.sosicfl:SosicFLPlus",
    },
    __name__,
)
