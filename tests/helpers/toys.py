"""Toy components behind the fixture `toy`: a data set, partitions, a network and methods that compute nothing.

They are a module of their own, not part of conftest.py: type hints are looked up by a class's module name, and
every folder's conftest has the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedbench.core.errors import ConfigError


@dataclass(frozen=True)
class ToyData:
    task: ClassVar[str] = "classification"
    model: str = "net"
    root: str | None = None
    classes: int = 10


@dataclass(frozen=True)
class ToyPartition:
    family_field: ClassVar[str] = "alpha"
    name: ClassVar[str] = "dir"
    alpha: float = 1.0
    min_size: int = 10

    @property
    def label(self) -> str:
        return f"{self.name}{self.alpha:g}"

    def __post_init__(self) -> None:
        if self.alpha <= 0:
            raise ConfigError(f"partition.alpha must be positive, got {self.alpha}")


@dataclass(frozen=True)
class ToyGroups(ToyPartition):
    name: ClassVar[str] = "groups_s"


@dataclass(frozen=True)
class ToyFold:
    family_field: ClassVar[str] = "folds"
    folds: int = 2

    @property
    def label(self) -> str:
        return f"fold{self.folds}"


@dataclass(frozen=True)
class ToyNet:
    networks: ClassVar[tuple[str, ...]] = ("net",)  # one, for clients of one kind
    width: int = 200
    classifier: str = "own"


@dataclass(frozen=True)
class ToyAverage:
    pass


@dataclass(frozen=True)
class ToyProx:
    mu: float = 0.1


@dataclass(frozen=True)
class ToyCollab:
    base: dict[str, Any] = field(default_factory=dict)
    restarts: int = 100


COMPONENTS = {
    "dataset": {"digits": ToyData},
    "partition": {"dir": ToyPartition, "groups_s": ToyGroups, "fold": ToyFold, "label_shift": ToyAverage},
    "model": {"net": ToyNet},
    "method": {"fedavg": ToyAverage, "fedprox": ToyProx, "fedcollab": ToyCollab},
}
YAMLS = {
    "dataset/digits": "name: digits\nmodel: net\nroot: null\nclasses: 10\n",
    "partition/label_shift": "name: label_shift\n",
    "partition/dir": "name: dir\nalpha: 1.0\nmin_size: 10\n",
    "partition/groups_s": "name: groups_s\nalpha: 1.0\nmin_size: 10\n",
    "partition/fold": "name: fold\nfolds: 2\n",
    "model/net": "name: net\nwidth: 200\n",
    "method/fedavg": "name: fedavg\n",
    "method/fedprox": "name: fedprox\nmu: 0.1\n",
    "method/fedprox_code": "defaults:\n  - fedprox\n  - _self_\n\npreset: code\nmu: 0.2\n",
    "method/fedcollab": "defaults:\n  - base: fedavg\n  - _self_\n\nname: fedcollab\nrestarts: 100\n",
}
