"""natural: the data's own clients, which a column, an array or folders name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.config.fields import at_least
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import PARTS, Ints
from fedbench.data.partitions.base import Assignment, PartitionSpec, Pool


@dataclass(frozen=True)
class Natural(PartitionSpec):
    """A client for each name or domain; the data, or else the protocol, give its training and test samples.

    Clients without a training sample are left out.
    """

    name: ClassVar[str] = "natural"
    pools: ClassVar[bool] = True
    fixes_test: ClassVar[bool] = True
    by_label: ClassVar[bool] = False

    min_size: int = at_least(1, 1)  # clients with fewer samples, of all parts, are left out
    num_clients: int | None = at_least(2, None)  # number of clients, drawn at random; null: all

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        if pool.domain is None:
            raise ConfigError(
                "partition=natural needs data that name the client of each sample: a column of dataset=table, an array "
                "client of dataset=npz, folders of dataset=images; or divide the samples with partition=dir0.3"
            )
        order = np.argsort(pool.domain, kind="stable")
        owned = np.split(order, np.flatnonzero(np.diff(pool.domain[order])) + 1)
        part = np.zeros(len(pool), np.int8) if pool.part is None else pool.part
        train, val, test = ([rows[part[rows] == code] for rows in owned] for code in range(len(PARTS)))
        kept = [i for i, rows in enumerate(owned) if len(rows) >= self.min_size and len(train[i])]
        if len(kept) < (wanted := self.num_clients or 2):
            raise ConfigError(
                f"partition=natural has {len(kept)} clients with a training sample and partition.min_size="
                f"{self.min_size} samples, {wanted} are needed; the data have {len(owned)}, the largest of "
                f"{max(map(len, owned))} samples: lower partition.num_clients or min_size"
            )
        if self.num_clients is not None:
            kept = sorted(rng.choice(kept, self.num_clients, replace=False).tolist())

        def of(lists: list[Ints]) -> list[Ints]:
            return [pool.index[lists[i]] for i in kept]

        tested = any(len(test[i]) for i in kept)
        if any(map(len, test)) and not any(len(test[i]) for i in range(len(owned)) if len(train[i])):
            raise ConfigError(
                "partition=natural: no client with training samples has a test sample of the data; give test samples "
                "the names of these clients, or leave the split out, so that the protocol splits"
            )
        return Assignment(
            clients=None if tested else of(train),
            train=of(train) if tested else None,
            val=of(val) if any(len(val[i]) for i in kept) else None,
            test=of(test) if tested else None,
        )
