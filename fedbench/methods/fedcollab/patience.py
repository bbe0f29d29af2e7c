"""When pairs of FedCollab's discriminators stop training (authors' code)."""

from __future__ import annotations

import torch
from torch import Tensor


class Patience:
    """Best score so far and checks without gain, for P pairs."""

    def __init__(self, count: int, patience: int, device: torch.device | None = None) -> None:
        """`patience` 0 never stops."""
        self.patience = patience
        self.best = torch.full((count,), -torch.inf, dtype=torch.float64, device=device)
        self.since = torch.zeros(count, dtype=torch.int64, device=device)

    def update(self, scores: Tensor) -> Tensor:
        """Fold in one check, [P]; returns which pairs are to stop. A tie is no gain."""
        gain = scores > self.best
        self.best = torch.where(gain, scores, self.best)
        self.since = torch.where(gain, 0, self.since + 1)
        return self.since >= self.patience if self.patience else torch.zeros_like(gain)

    def keep(self, rows: Tensor) -> None:
        """Drop the pairs outside the mask `rows` [P]."""
        self.best, self.since = self.best[rows], self.since[rows]
