"""FedBN: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021.

Algorithm 1: all layers but batch normalisation are averaged. Private are its affine parameters **and** running
statistics, as in the authors' code and in FL-bench: after three rounds of full batches from the same weights ours and
FL-bench's models agree to 1e-7. (FL-bench leaves out a last mini-batch of one sample; here it is trained on, and moves
the statistics.) On a network without batch normalisation it would be FedAvg, and is refused.
Deviation: averages are by n_k / n, as FedAvg's; the authors count clients alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbench.config.fields import selectors
from fedbench.engine.contract import Conformance
from fedbench.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg of everything but batch normalisation."""

    # @stats: running statistics alone, affine parameters averaged
    private: tuple[str, ...] = selectors(("@norm",))

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Li et al., ICLR 2021"

    @property
    def conformance(self) -> Conformance:
        """An MLP, which has no batch normalisation, keeps its head."""
        return Conformance(settings={"private": ("@norm", "@head")})
