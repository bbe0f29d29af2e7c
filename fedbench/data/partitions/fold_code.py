"""fold_code<k>: SosicFL's folds as its authors' code deals them (dennis-grinwald/floco, data/utils/schemes/fold.py).

Of a client's 500 samples 20 % are spread over all classes, its group's among them, and 80 % over its group's fold. Each
share is divided by whole numbers and the remainder goes to the share's last class. With ten classes nothing remains:
the text's 80 and 20 % become 90 and 10 % in 2-Fold. With 200 (Tiny-ImageNet) each class gets int(100 / 200) = 0 and the
last one all 100: a fifth of every client's samples is of one class. A model that knows that class scores
local = 20 + .8 global, which is what the published FedAvg does. The 20 % are the text's; the repository's own
configuration has 30 (`primary` 0.7), which would give 30 + .7 global.

Where a class has fewer samples than are asked for, clients share them, as in the code. Deviation: there a sample may be
in one client's training and another's test set; here each class's samples are parted first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.config.domain import at_least, share
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Ints
from fedbench.data.partitions.base import Assignment, Pool, require_clients
from fedbench.data.partitions.fold import Fold


@dataclass(frozen=True)
class FoldCode(Fold):
    """A fold of the classes is primary for a group of clients; remainders are of the last class."""

    name: ClassVar[str] = "fold_code"
    fixes_test: ClassVar[bool] = True

    size: int = at_least(1, 500)  # samples a client, training and test together
    test: float = share(0.2, below=True)  # share of them that is for testing

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """See `PartitionSpec.assign`."""
        wanted = self.counts(pool.stock)
        tests = np.stack(
            [rng.multivariate_hypergeometric(row, int(self.test * self.size + 0.5)) for row in wanted]
        )
        members = pool.by_class(rng)
        held_out = [int(self.test * len(samples) + 0.5) for samples in members]
        return Assignment(
            train=_in_turn([m[n:] for m, n in zip(members, held_out, strict=True)], wanted - tests),
            test=_in_turn([m[:n] for m, n in zip(members, held_out, strict=True)], tests),
            shared=True,
        )

    def counts(self, stock: Ints) -> Ints:
        """Samples of each class for each client, int64 [N, K]; of a scarce class more than there are.

        Raises:
            ConfigError: fewer classes or clients than folds, or fewer samples than clients.
        """
        require_clients(self.num_clients, int(stock.sum()))
        self.require_folds(len(stock))
        return self._table(self.size, len(stock))

    def _table(self, size: int, classes: int) -> Ints:
        counts = np.zeros((self.num_clients, classes), dtype=np.int64)
        everywhere = int((1 - self.primary) * size + 1e-9)
        for members, fold in self.groups(classes):
            for labels, samples in ((np.arange(classes), everywhere), (fold, size - everywhere)):
                counts[np.ix_(members, labels)] += samples // len(labels)
                counts[members, labels[-1]] += samples % len(labels)
        return counts


def _in_turn(members: list[Ints], counts: Ints) -> list[Ints]:
    """`counts` [N, K] samples of each class for each client, from the first again where a class runs out.

    Raises:
        ConfigError: a client is to have more of a class than there are.
    """
    lacking = counts.max(0) - [len(samples) for samples in members]
    label = int(lacking.argmax())
    if lacking[label] > 0:
        raise ConfigError(
            f"the partition gives a client {counts[:, label].max()} samples of label {label}, there are "
            f"{len(members[label])} of that kind; lower partition.size, or raise dataset.limit"
        )
    parts: list[Ints] = []
    first = np.zeros(len(members), dtype=np.int64)
    for row in counts:
        taken = [
            np.take(samples, np.arange(start, start + count), mode="wrap")
            for samples, start, count in zip(members, first, row, strict=True)
            if count
        ]
        parts.append(np.concatenate(taken) if taken else np.zeros(0, dtype=np.int64))
        first += row
    return parts
