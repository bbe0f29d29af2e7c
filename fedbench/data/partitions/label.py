"""Partitions that draw each client's labels or size from a distribution, or give each client some of the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbench.config.fields import at_least
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Ints
from fedbench.data.partitions.base import Assignment, PartitionSpec, Pool, evenly, require_clients, require_size

# dir<alpha>: each class is divided among the clients by a draw from Dirichlet(alpha) (Yurochkin et al. 2019).
#
# FedSaC and pFedSim redraw until every client holds `min_size` samples, and give no more of the remaining classes to a
# client that already holds its fair share of all samples (`cap`, from Li et al., NIID-Bench, ICDE 2022). The cap is
# what pFedSim's published sizes need: CIFAR-10 over 100 clients has a standard deviation of 479 +- 49 (alpha 0.1) and
# 191 +- 18 (0.5) with it, 560 +- 51 and 264 +- 20 without; the paper prints 487 and 170. So with EMNIST, its letters as
# frequent as in English: 2455 +- 294 and 772 +- 79, without the cap 4393 and 2041; the paper prints 2545 and 782 (and a
# mean of 8142, which is that of 814,255 samples: its 805,263 is a slip). CINIC-10 and Tiny-ImageNet agree likewise.

SMALLEST_ALPHA = 1e-6  # every class on one client, for any number of clients; below, exponents overflow
BATCH_NUMBERS = 200_000  # Dirichlet numbers drawn at once: trials go in batches, which are far cheaper than one by one


@dataclass(frozen=True)
class Dirichlet(PartitionSpec):
    """Dirichlet over clients, for each class."""

    name: ClassVar[str] = "dir"
    family_field: ClassVar[str] = "alpha"

    alpha: float = at_least(SMALLEST_ALPHA, 0.1)  # small: few clients have a class; large: close to homo
    num_clients: int = at_least(1, 10)
    min_size: int = at_least(1, 10)  # smallest client, training and test samples together
    cap: bool = True  # true: a client with (all samples) / num_clients gets no samples of later classes
    max_tries: int = at_least(1, 2000)  # draws before giving up

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
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
        batch, best = max(1, min(64, BATCH_NUMBERS // (len(sizes) * clients))), 0
        for done in range(0, self.max_tries, batch):
            drawn = self._draw(sizes, rng, batch)[: self.max_tries - done]  # [B, classes, N]
            least = drawn.sum(1).min(1)
            good = np.flatnonzero(least >= self.min_size)
            if len(good):
                first: Ints = drawn[good[0]]
                return first
            best = max(best, int(least.max()))
        raise ConfigError(
            f"{self.label}: none of {self.max_tries} draws gave each of {clients} clients {self.min_size} of {total} "
            f"samples; {f'set partition.min_size={best}, ' if best else ''}raise partition.alpha, or lower "
            "partition.num_clients"
        )

    def _draw(self, sizes: Ints, rng: np.random.Generator, batch: int) -> Ints:
        """Return `batch` independent draws [B, classes, N]; a draw in which the cap excludes all clients is zero."""
        shares = dirichlet(self.alpha, (batch, len(sizes), self.num_clients), rng)
        fair = sizes.sum() / self.num_clients
        held = np.zeros((batch, self.num_clients), dtype=np.int64)
        counts = np.zeros(shares.shape, dtype=np.int64)
        alive = np.ones(batch, dtype=bool)
        for label, size in enumerate(sizes):
            share = shares[:, label] * (held < fair) if self.cap else shares[:, label]
            weight = share.sum(1)
            alive &= (weight > 0) | (size == 0)  # a class without samples needs no taker
            cuts = np.floor(np.cumsum(share, 1) / np.where(weight > 0, weight, 1)[:, None] * size).astype(np.int64)
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


# dir_prior<beta>: every client has as many samples, its labels drawn from its own Dirichlet(beta) prior.
#
# SosicFL (section 4.1, after Yurochkin et al., ICML 2019, and Gao et al., CVPR 2022): phi_k ~ Dir(beta) over labels,
# client k's labels ~ Multinomial(phi_k). Samples are drawn without replacement: when a class runs out, those who still
# want it draw again from their prior over the classes that are left. Every pass but the last uses up a class, so the
# draw is finite.


@dataclass(frozen=True)
class DirichletPrior(PartitionSpec):
    """Dirichlet over labels, for each client; equal sizes."""

    name: ClassVar[str] = "dir_prior"
    family_field: ClassVar[str] = "beta"

    beta: float = at_least(SMALLEST_ALPHA, 0.3)  # small: a client has few classes; large: close to homo
    num_clients: int = at_least(1, 100)
    # samples of a client, training and test together; null: all samples, divided equally
    size: int | None = at_least(1, None)

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        counts = self.counts(pool.stock, rng)
        return Assignment(clients=pool.deal(counts, rng))

    def counts(self, stock: Ints, rng: np.random.Generator) -> Ints:
        """Samples of each class for each client, int64 [N, K], given those of each class.

        Raises:
            ConfigError: there are fewer samples than the clients need.
        """
        require_clients(self.num_clients, int(stock.sum()))
        size = self.size or int(stock.sum()) // self.num_clients
        require_size(self.num_clients, size, int(stock.sum()))
        priors = dirichlet(self.beta, (self.num_clients, len(stock)), rng)
        counts = np.zeros((self.num_clients, len(stock)), dtype=np.int64)
        while (counts.sum(1) < size).any():
            left = stock - counts.sum(0)
            shares = priors * (left > 0)
            lost = shares.sum(1) == 0  # nothing is left of what the prior allows
            shares[lost] = left
            asked = rng.multinomial(size - counts.sum(1), shares / shares.sum(1, keepdims=True))
            for label in np.flatnonzero(asked.sum(0) > left):
                asked[:, label] = rng.multivariate_hypergeometric(asked[:, label], left[label], method="marginals")
            counts += asked
        return counts


# homo: every client holds a random sample of the same size (up to one); the IID reference.


@dataclass(frozen=True)
class Homogeneous(PartitionSpec):
    """Shuffle, then cut into equal parts."""

    name: ClassVar[str] = "homo"
    by_label: ClassVar[bool] = False

    num_clients: int = at_least(1, 10)

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        require_clients(self.num_clients, len(pool))
        return Assignment(clients=np.array_split(rng.permutation(pool.index), self.num_clients))


# quantity<beta>: clients differ only in size, drawn from Dirichlet(beta); their samples are IID.
#
# The quantity skew of Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022 (section IV-C).

BATCH = 2000  # draws at once


@dataclass(frozen=True)
class Quantity(PartitionSpec):
    """Shuffle, then cut into parts of random size."""

    name: ClassVar[str] = "quantity"
    family_field: ClassVar[str] = "beta"
    by_label: ClassVar[bool] = False

    beta: float = at_least(SMALLEST_ALPHA, 0.5)  # small: one client has nearly everything; large: equal sizes
    num_clients: int = at_least(1, 10)
    min_size: int = at_least(1, 10)  # smallest client, training and test samples together
    max_tries: int = at_least(1, 2000)  # draws before giving up

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        sizes = self.sizes(len(pool), rng)
        return Assignment(clients=np.split(rng.permutation(pool.index), np.cumsum(sizes)[:-1]))

    def sizes(self, samples: int, rng: np.random.Generator) -> Ints:
        """Samples of each client, int64 [N], given how many there are.

        Raises:
            ConfigError: no draw out of `max_tries` gives every client `min_size` samples.
        """
        require_clients(self.num_clients, samples)
        for done in range(0, self.max_tries, BATCH):
            tries = min(BATCH, self.max_tries - done)
            shares = dirichlet(self.beta, (tries, self.num_clients), rng)
            cuts = np.floor(np.cumsum(shares, 1) * samples).astype(np.int64)
            cuts[:, -1] = samples  # the cumulative sum may end a rounding error below 1
            sizes = np.diff(cuts, axis=1, prepend=0)
            good = np.flatnonzero(sizes.min(1) >= self.min_size)
            if len(good):
                first: Ints = sizes[good[0]]
                return first
        raise ConfigError(
            f"{self.label}: none of {self.max_tries} draws gave each of {self.num_clients} clients "
            f"{self.min_size} of {samples} samples; raise partition.beta, or lower partition.min_size or "
            "partition.num_clients"
        )


# pathological<k>: every client holds k classes (McMahan et al. 2017, as FedSaC and pFedGraph divide them).
#
# The classes form K / k blocks; client i holds block i mod (K / k), shared evenly with the other clients of that block.
# FedSaC: 2 classes of CIFAR-10, 20 of CIFAR-100.


@dataclass(frozen=True)
class Pathological(PartitionSpec):
    """Each client has a block of classes."""

    name: ClassVar[str] = "pathological"
    family_field: ClassVar[str] = "skew"

    skew: int = at_least(1, 2)  # classes of a client; must divide the number of classes
    num_clients: int = at_least(1, 10)

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        return Assignment(clients=pool.deal(self.counts(pool.stock), rng))

    def counts(self, stock: Ints) -> Ints:
        """Samples of each class for each client, int64 [N, K], given those of each class.

        Raises:
            ConfigError: `skew` does not divide the classes, there are too few clients to hold all of them, or too few
                samples of a class for those that hold it.
        """
        classes, clients = len(stock), self.num_clients
        require_clients(clients, int(stock.sum()))
        if classes % self.skew:
            divisors = ", ".join(str(k) for k in range(1, classes + 1) if classes % k == 0)
            reason = "are fewer" if self.skew > classes else f"do not divide into blocks of {self.skew}"
            raise ConfigError(
                f"{self.label} gives each client {self.skew} classes, the {classes} classes of the data set {reason}; "
                f"set partition.skew to one of {divisors}"
            )
        blocks = classes // self.skew
        if clients < blocks:
            raise ConfigError(
                f"{self.label}: {clients} clients of {self.skew} classes leave out some of {classes} classes; "
                f"set partition.num_clients to at least {blocks}, or raise partition.skew"
            )
        counts = np.zeros((clients, classes), dtype=np.int64)
        for label, number in enumerate(stock):
            holders = np.arange(label // self.skew, clients, blocks)
            if number < len(holders):
                raise ConfigError(
                    f"{self.label}: {len(holders)} clients share the {number} samples of class {label}, so some would "
                    "have none of it; lower partition.num_clients or raise dataset.limit"
                )
            counts[holders, label] = evenly(int(number), len(holders), turn=label)
        return counts
