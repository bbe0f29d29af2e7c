"""Which test samples a client's model is scored on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedbench.data.federation import Federation


@dataclass(frozen=True, eq=False)
class ScoredSets:
    """The sets of a federation as far as they count for each client.

    Where the global test set is weighted by a client's label shares (`by_class`), classes that weigh nothing are left
    out.
    """

    federation: Federation
    by_class: bool

    @cached_property
    def parts(self) -> tuple[Tensor, ...]:
        """Indices of the global test set, in the parts on which a client is scored or not: classes, or the whole."""
        tests = self.federation.global_test
        if not self.by_class:
            return (tests,)
        labels = self.federation.y[tests]
        return tuple(tests[labels == label] for label in range(self.federation.classes))

    def parts_of(self, client: int) -> list[int]:
        """Places in `parts` of those that a client is scored on."""
        return self.classes(client).nonzero().flatten().tolist() if self.by_class else [0]

    def classes(self, client: int) -> Tensor:
        """Classes of the global test set that a client is scored on, bool [K]."""
        counts = self.federation.population.label_counts[client]
        return counts > 0 if self.by_class else torch.ones_like(counts, dtype=torch.bool)

    def indices(self, name: str, client: int) -> Tensor:
        """Indices of the samples of set `name` (local, val, global) that a client is scored on."""
        if name != "global":
            return self.federation.indices(name, client)
        parts = [self.parts[place] for place in self.parts_of(client)]
        return torch.cat(parts) if parts else self.federation.global_test[:0]
