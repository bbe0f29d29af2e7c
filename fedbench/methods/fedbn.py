"""FedBN: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021.

Algorithm 1: all layers but batch normalisation are averaged. Its affine parameters **and** running statistics are
private, as in the authors' code and in FL-bench. After three rounds of full batches from the same weights our models
and FL-bench's agree to 1e-7. FL-bench leaves out a last mini-batch of one sample; here it is trained on, and moves the
statistics. A network without batch normalisation is refused, because FedBN would be FedAvg on it.
Deviation: averages are weighted by n_k / n, as in FedAvg. The authors count clients equally.
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

    # @stats: only running statistics are private, affine parameters are averaged
    private: tuple[str, ...] = selectors(("@norm",))

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Li et al., ICLR 2021"

    @property
    def conformance(self) -> Conformance:
        """An MLP, which has no batch normalisation, keeps its head."""
        return Conformance(settings={"private": ("@norm", "@head")})
