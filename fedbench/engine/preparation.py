"""What a method may use once before round 0: the data, the trainer, and a meter for what it sends."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup
from fedbench.engine.train.trainer import Trainer


@dataclass(eq=False)
class Preparation:
    """Passed to Method.prepare; collects traffic and named arrays for the run folder."""

    setup: Setup
    trainer: Trainer
    bytes_up: int = 0
    bytes_down: int = 0
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def clock(self) -> Clock:
        """Round 0."""
        return Clock(0, self.setup.protocol.rounds)

    def everyone(self) -> torch.Tensor:
        """Ids of all clients, int64 [N]."""
        return torch.arange(self.setup.federation.clients)

    def charge(self, up: int, down: int) -> None:
        """Count bytes that crossed the network."""
        self.bytes_up += up
        self.bytes_down += down

    def keep(self, name: str, array: np.ndarray) -> None:
        """Save an array (a distance matrix, cluster centres) with the run."""
        self.arrays[name] = np.asarray(array)
