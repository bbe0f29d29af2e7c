"""LG-FedAvg: Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020.

Algorithm 1: the lower layers (local representations) stay on their client, and the upper layers are averaged by n_k /
n. Both train together. It is the opposite of FedPer. As in PFLlib, the classifier layer alone is averaged.

Deviations:
- There is no FedAvg warm-up.
- The authors' code averages the last three of five layers on MNIST, and the two convolutions on CIFAR-10. It counts
  clients equally, and scores each client's best model by test accuracy.

Batch normalisation: below the head it is private.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbench.config.fields import selectors
from fedbench.methods.fedavg import FedAvg


@dataclass(frozen=True)
class LGFedAvg(FedAvg):
    """FedAvg of the classifier layer alone."""

    private: tuple[str, ...] = selectors(("@body",))  # the local representation, see Task.select

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Liang et al., 2020"
