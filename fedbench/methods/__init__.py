"""All methods by name. Adding one: its file here, its YAML in conf/method/, one line below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.registry import Registry

if TYPE_CHECKING:
    from fedbench.methods.base import Method

METHODS: Registry[Method] = Registry(
    "method",
    {
        "ditto": "fedbench.methods.ditto:Ditto",
        "fedavg": "fedbench.methods.fedavg:FedAvg",
        "fedcollab": "fedbench.methods.fedcollab:FedCollab",
        "fedprox": "fedbench.methods.fedprox:FedProx",
        "local": "fedbench.methods.local:Local",
    },
)
