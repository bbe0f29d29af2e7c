"""LG-FedAvg: Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020.

Algorithm 1: the lower layers (local representations) stay on their client, the upper ones are averaged by n_k / n;
both train together. The opposite of FedPer. Deviation: no FedAvg warm-up. Batch normalisation below the head is
private.
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
