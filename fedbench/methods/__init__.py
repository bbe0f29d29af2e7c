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
        "fedadagrad": "fedbench.methods.fedopt:FedAdagrad",
        "fedadam": "fedbench.methods.fedopt:FedAdam",
        "fedamp": "fedbench.methods.fedamp:FedAMP",
        "fedap": "fedbench.methods.fedap:FedAP",
        "fedas": "fedbench.methods.fedas:FedAS",
        "fedavg": "fedbench.methods.fedavg:FedAvg",
        "fedavgm": "fedbench.methods.fedopt:FedAvgM",
        "fedbabu": "fedbench.methods.fedbabu:FedBABU",
        "fedbn": "fedbench.methods.fedbn:FedBN",
        "fedcluster": "fedbench.methods.cfl:CFL",
        "fedcollab": "fedbench.methods.fedcollab.fedcollab:FedCollab",
        "feddbe": "fedbench.methods.feddbe:FedDBE",
        "feddistill": "fedbench.methods.feddistill:FedDistill",
        "feddyn": "fedbench.methods.feddyn:FedDyn",
        "fedfomo": "fedbench.methods.fedfomo:FedFomo",
        "fedgen": "fedbench.methods.fedgen:FedGen",
        "fediot": "fedbench.methods.fediot:FedIoT",
        "fednova": "fedbench.methods.fednova:FedNova",
        "fedntd": "fedbench.methods.fedntd:FedNTD",
        "fedpac": "fedbench.methods.fedpac:FedPAC",
        "fedper": "fedbench.methods.fedper:FedPer",
        "fedphp": "fedbench.methods.fedphp:FedPHP",
        "fedproto": "fedbench.methods.fedproto:FedProto",
        "fedprox": "fedbench.methods.fedprox:FedProx",
        "fedrema": "fedbench.methods.fedrema:FedReMa",
        "fedrep": "fedbench.methods.fedrep:FedRep",
        "fedrod": "fedbench.methods.fedrod:FedRoD",
        "fedsac": "fedbench.methods.fedsac:FedSaC",
        "fedsac_multimodal": "fedbench.methods.fedsac:MultimodalFedSaC",
        "fedyogi": "fedbench.methods.fedopt:FedYogi",
        "fesem": "fedbench.methods.fesem:FeSEM",
        "finetune": "fedbench.methods.finetune:Finetune",
        "floco": "fedbench.methods.sosicfl:SosicFL",
        "floco_plus": "fedbench.methods.sosicfl:SosicFLPlus",
        "ifca": "fedbench.methods.ifca:IFCA",
        "kmeans": "fedbench.methods.kmeans:KMeans",
        "knnper": "fedbench.methods.knnper:KNNPer",
        "lg_fedavg": "fedbench.methods.lg_fedavg:LGFedAvg",
        "local": "fedbench.methods.local:Local",
        "moon": "fedbench.methods.moon:Moon",
        "oracle": "fedbench.methods.oracle:Oracle",
        "per_kind": "fedbench.methods.per_kind:PerKind",
        "perfedavg": "fedbench.methods.perfedavg:PerFedAvg",
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
