"""label_shift: FedCollab's four types of clients (Bao et al., ICML 2023, section 5.1, Figure 3, Table 4).

Twenty clients, five of each type, drawn from the train and the test split together:

| clients | odd label | shared labels | training samples | test samples |
|---|---|---|---|---|
| 0-4 (large) | 0 | 1, 2, 3 | 300 + 3 x 600 = 2100 | 50 + 3 x 100 = 350 |
| 5-9 (large) | 4 | 1, 2, 3 | 2100 | 350 |
| 10-14 (small) | 5 | 6, 7, 8 | 2 + 3 x 4 = 14 | 350 |
| 15-19 (small) | 9 | 6, 7, 8 | 14 | 350 |

Which label plays which part is fixed; the seed draws the samples. Fashion-MNIST has exactly the 7,000 samples
that labels 1-3 take. On a smaller data set `scale` shrinks all counts, two of them down to a minimum: small clients
keep enough samples for FedCollab to tell them from large ones, test sets more than a handful. On digits a shared
label has 9 (large), 3 (small) and 8 (test) samples: 32 / 11 training and 28 test samples a client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.config.domain import at_least, share
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Ints
from fedbench.data.partitions.base import Assignment, PartitionSpec, Pool, largest

SHARED = {"large": (1, 2, 3), "small": (6, 7, 8)}
TYPES = (("large", 0), ("large", 4), ("small", 5), ("small", 9))  # size and odd label, five clients each
CLIENTS_PER_TYPE = 5
LABELS = 10


@dataclass(frozen=True)
class LabelShift(PartitionSpec):
    """Counts are samples of each shared label; the odd label has half as many (rounded up)."""

    name: ClassVar[str] = "label_shift"
    pools: ClassVar[bool] = True
    fixes_test: ClassVar[bool] = True

    large: int = at_least(1, 600)  # training samples a shared label on clients 0-9
    small: int = at_least(1, 4)  # training samples a shared label on clients 10-19
    test: int = at_least(1, 100)  # test samples a shared label on every client
    min_small: int = at_least(1, 3)  # `scale` does not shrink `small` below this
    min_test: int = at_least(1, 8)  # `scale` does not shrink `test` below this
    # of all three; null: 1, or the largest that the data set allows
    scale: float | None = share(None, above=True)

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """See `PartitionSpec.assign`."""
        if pool.classes < LABELS:
            raise ConfigError(f"label_shift needs labels 0 to 9, this data set has {pool.classes} classes")
        train, test = self.counts(pool.stock)
        owned = pool.deal(np.concatenate([train, test]), rng)  # train and test sets, as if 2N clients
        return Assignment(train=owned[: len(train)], test=owned[len(train) :])

    def counts(self, available: Ints) -> tuple[Ints, Ints]:
        """(train, test) samples of each label for each client, int64 [20, 10], given those of each class.

        Raises:
            ConfigError: there are too few samples, at `scale` or at any scale.
        """
        stock = available[:LABELS]
        if self.scale is None:
            large = max(1, largest(self.large, lambda size: bool(self._lacking(size, stock).max() <= 0)))
        else:
            large = max(1, int(self.scale * self.large + 1e-9))
        lacking = self._lacking(large, stock)
        if (lacking <= 0).all():
            return self._tables(large)
        label = int(np.argmax(lacking))
        raise ConfigError(
            f"label_shift needs {available[label] + lacking[label]} samples of label {label}, there are "
            f"{available[label]}; lower partition.scale, min_small or min_test, or raise dataset.limit"
        )

    def _lacking(self, large: int, stock: Ints) -> Ints:
        """Samples of each label that are needed beyond the stock [10]."""
        train, test = self._tables(large)
        lacking: Ints = (train + test).sum(0) - stock
        return lacking

    def _tables(self, large: int) -> tuple[Ints, Ints]:
        """(train, test) samples if large clients get `large` of a shared label, the other counts in proportion."""
        small = max(min(self.min_small, self.small), self.small * large // self.large)
        test = max(min(self.min_test, self.test), self.test * large // self.large)
        return _table(large, small), _table(test, test)


def _table(large: int, small: int) -> Ints:
    """Samples of each label for each client [20, 10]; `large` and `small` count those of a shared label."""
    table = np.zeros((len(TYPES) * CLIENTS_PER_TYPE, LABELS), dtype=np.int64)
    for kind, (size, odd) in enumerate(TYPES):
        rows = slice(kind * CLIENTS_PER_TYPE, (kind + 1) * CLIENTS_PER_TYPE)
        count = large if size == "large" else small
        table[rows, SHARED[size]] = count
        table[rows, odd] = (count + 1) // 2
    return table
