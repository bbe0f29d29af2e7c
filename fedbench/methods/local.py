"""Local: every client trains alone. It is the reference of IPR and RSD, and FedAvg with every leaf private."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fedbench.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Local(FedAvg):
    """No communication at all.

    Server: nothing
    Memory: * [N, ...]
    Message: nothing
    Upload: nothing
    """

    private: tuple[str, ...] = field(default=("*",), init=False)

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "-"
