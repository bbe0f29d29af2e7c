"""FedBN: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021.

Algorithm 1: all layers but batch normalisation are averaged. Private are its affine parameters **and** running
statistics. On a network without batch normalisation FedBN is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbench.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg of everything but batch normalisation."""

    private: tuple[str, ...] = ("@norm",)  # @stats: running statistics alone, affine parameters averaged

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Li et al., ICLR 2021"
