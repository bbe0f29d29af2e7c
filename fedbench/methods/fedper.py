"""FedPer: Arivazhagan et al., Federated Learning with Personalization Layers, 2019.

Algorithms 1 and 2: base layers are averaged by n_k / n. Personalisation layers (here the classifier layer) never leave
their client. Both train together.
Batch normalisation: affine parameters and running statistics below the head are shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbench.config.fields import selectors
from fedbench.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedPer(FedAvg):
    """FedAvg of everything but the personalisation layers."""

    private: tuple[str, ...] = selectors(("@head",))  # the personalisation layers, see Task.select

    family: ClassVar[str] = "personalised"
    paper: ClassVar[str] = "Arivazhagan et al., 2019"
