"""dir<alpha>: each class is divided among the clients by a draw from Dirichlet(alpha) (Hsu et al. 2019).

FedSaC and pFedSim redraw until every client holds `min_size` samples, and give no more of the remaining
classes to a client that already holds its fair share of all samples (`cap`, from Li et al., NIID-Bench, ICDE
2022). The cap is what pFedSim's published sizes need: CIFAR-10 over 100 clients has a standard deviation of
479 +- 49 (alpha 0.1) and 191 +- 18 (0.5) with it, 560 +- 51 and 264 +- 20 without; the paper prints 487 and 170.
So with EMNIST, its letters as frequent as in English: 2455 +- 294 and 772 +- 79, without the cap 4393 and 2041; the
paper prints 2545 and 782 (and a mean of 8142, which is that of 814,255 samples: its 805,263 is a slip). CINIC-10 and
Tiny-ImageNet agree likewise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.domain import at_least
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Ints
from fedbench.data.partitions.base import Assignment, PartitionSpec, Pool, require_clients

SMALLEST_ALPHA = 1e-6  # every class on one client, for any number of clients; below, exponents overflow
BATCH_NUMBERS = (
    200_000  # Dirichlet numbers drawn at once: trials go in batches, which are far cheaper than one by one
)


@dataclass(frozen=True)
class Dirichlet(PartitionSpec):
    """Dirichlet over clients, for each class."""

    name: ClassVar[str] = "dir"
    family_field: ClassVar[str] = "alpha"

    alpha: float = at_least(SMALLEST_ALPHA, 0.1)  # small: a class sits on few clients; large: close to homo
    num_clients: int = at_least(1, 10)
    min_size: int = at_least(1, 10)  # smallest client, training and test samples together
    cap: bool = True  # a client that holds (all samples) / num_clients gets nothing of later classes
    max_tries: int = at_least(1, 2000)  # draws before giving up

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        """See `PartitionSpec.assign`."""
        counts = self.counts(pool.stock, rng)
        return Assignment(clients=pool.deal(counts.T, rng))

    def counts(self, sizes: Ints, rng: np.random.Generator) -> Ints:
        """Samples of each class for each client, int64 [classes, N], given the samples of each class.

        Raises:
            ConfigError: no draw out of `max_tries` gives every client `min_size` samples.
        """
        total, clients = int(sizes.sum()), self.num_clients
        require_clients(clients, total)
        if clients * self.min_size > total:
            raise ConfigError(
                f"{clients} clients of at least {self.min_size} samples need {clients * self.min_size}, "
                f"there are {total}; lower partition.num_clients or partition.min_size"
            )
        batch = max(1, min(64, BATCH_NUMBERS // (len(sizes) * clients)))
        for done in range(0, self.max_tries, batch):
            drawn = self._draw(sizes, rng, batch)[: self.max_tries - done]  # [B, classes, N]
            good = np.flatnonzero(drawn.sum(1).min(1) >= self.min_size)
            if len(good):
                first: Ints = drawn[good[0]]
                return first
        raise ConfigError(
            f"{self.label}: none of {self.max_tries} draws gave each of {clients} clients {self.min_size} "
            "samples; raise partition.alpha, or lower partition.min_size or partition.num_clients"
        )

    def _draw(self, sizes: Ints, rng: np.random.Generator, batch: int) -> Ints:
        """`batch` independent draws [B, classes, N]; one that the cap leaves without takers is all zeros."""
        shares = dirichlet(self.alpha, (batch, len(sizes), self.num_clients), rng)
        fair = sizes.sum() / self.num_clients
        held = np.zeros((batch, self.num_clients), dtype=np.int64)
        counts = np.zeros(shares.shape, dtype=np.int64)
        alive = np.ones(batch, dtype=bool)
        for label, size in enumerate(sizes):
            share = shares[:, label] * (held < fair) if self.cap else shares[:, label]
            weight = share.sum(1)
            alive &= weight > 0
            cuts = np.floor(np.cumsum(share, 1) / np.where(weight > 0, weight, 1)[:, None] * size).astype(
                np.int64
            )
            cuts[:, -1] = size  # the cumulative sum may end a rounding error below 1
            counts[:, label] = np.diff(cuts, axis=1, prepend=0)
            held += counts[:, label]
        counts[~alive] = 0
        return counts


def dirichlet(alpha: float, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float64]:
    """Symmetric Dirichlet(alpha) draws over the last axis of `shape`.

    Normalised gamma variates, in logarithms by Gamma(alpha) = Gamma(alpha + 1) U^(1 / alpha): unlike NumPy's own
    generator it is as fast at small alpha as at large ones, and an alpha near 0 gives one-hot rows, not 0 / 0.
    """
    logs = np.log(rng.standard_gamma(alpha + 1.0, shape)) - rng.standard_exponential(shape) / alpha
    shares = np.exp(logs - logs.max(-1, keepdims=True))
    normalised: NDArray[np.float64] = shares / shares.sum(-1, keepdims=True)
    return normalised
