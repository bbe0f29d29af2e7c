"""What training discriminators sends, round by round."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.engine.preparation import Meter


@dataclass(frozen=True)
class Exchange:
    """What the two clients of each pair and the server send each other, counted by `meter`."""

    weights: Tree  # one discriminator
    meter: Meter

    def step(self, pairs: int) -> None:
        """A round: discriminators down, trained ones up."""
        self.last(pairs)
        self.meter.received(trees.expand(self.weights, 2 * pairs))

    def check(self, pairs: int) -> None:
        """Each client's share of right answers, of the discriminators that the next round or `last` sends."""
        self.meter.received({"share": torch.empty(2 * pairs)})

    def last(self, pairs: int) -> None:
        """Discriminators down."""
        self.meter.sent(trees.expand(self.weights, 2 * pairs))
