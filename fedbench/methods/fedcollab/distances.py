"""FedCollab's pairwise distances: Algorithm 1 for all pairs of clients at once (Bao et al., ICML 2023).

For clients i and j a discriminator learns in a federated way which of the two a sample (x, y) comes from. Its balanced
validation accuracy a gives the distance D_ij. As a plain loop:

    for each pair of clients i < j:
        w = initial weights, the same for every pair
        for each of T federated rounds:
            w_i = w - lr * gradient of the logistic loss at w on a batch of i's training samples, all of class 1
            w_j = w - lr * gradient of the logistic loss at w on a batch of j's training samples, all of class 0
            w = (w_i + w_j) / 2
        a = (share of i's validation samples that w calls class 1 + share of j's that it calls class 0) / 2
        D_ij = D_ji = max(0, 2 a - 1)  # not below 0: the solver of the authors' code

`train_discriminators` takes the pairs in chunks, and `_train_chunk` runs the rounds. `Discriminators.step` makes the
two clients' steps and their mean for all pairs of a chunk as one product.

Paper and code differ in when the accuracy is read:
- `report` "last": Algorithm 1 trains T rounds and reads w^T once. The paper does not state T. The 17.8 % of traffic in
  Appendix B.4 (19 discriminators of 105,001 parameters against 11,181,642) are right for T = FL rounds = 200.
- `report` "best": the code reads it after rounds 1, 11, 21, ..., stops after ten checks without gain or 2000 rounds,
  and keeps the maximum. A maximum over noisy checks is biased upwards, visibly so with 7 validation samples on each
  client. results/evidence/coalitions.csv counts the draws of Fashion-MNIST's label shift that each setting solves as
  published. The authors' published distances (.17 within a type of small clients, .29 across) are nearer to "best"
  (.11, .32 on their partition) than to "last" (.06, .21).

Where the paper is silent, this follows the code. A client trains on m_train samples, half of the smallest client's,
stratified by label, and validates on the others. Each client has one batch in a round.
Deviations: the split has exactly m_train samples. The code rounds for each label, which is the same if the shares are
whole, as in label shift. Batches and initial weights are keyed by (seed, pair), not by earlier draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.config.fields import Component, at_least, one_of, positive
from fedbench.config.schema import retired
from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.rng import numpy_rng, torch_rng
from fedbench.core.trees import Tree
from fedbench.engine.contract import Meter

BLOCK = 1024  # validation rows of a product on a CPU, whose [BLOCK, H] floats fit into the second-level cache
WORK_BYTES = 512 * 2**20  # pairs are trained in chunks whose tensors stay under this; no result depends on it


@retired(m_train="smallest", split="stratified", valid_limit=0, chunk=0)
@dataclass(frozen=True)
class DiscriminatorConfig(Component):
    """Hyper-parameters of the pairwise discriminators."""

    section: ClassVar[str] = "method.discriminator"

    hidden: int = at_least(1, 200)  # width of the hidden layer
    rounds: int = at_least(1, 200)  # T, federated rounds of a pair; the code: at most 2000, with report "best"
    batch: int = at_least(1, 32)  # samples of a client in a round (all its training samples if these are fewer)
    lr: float = positive(0.01)  # learning rate of SGD; the paper's label / feature / concept shift: .01 / .01 / .05
    label_weight: float = at_least(0, 2.0)  # omega, weight of the label's half of the first layer
    # the accuracy is read once after all rounds ("last", Algorithm 1), or from the "best" check (code)
    report: str = one_of("last", "best")
    check_every: int = at_least(1, 10)  # "best" only: rounds between checks on the validation samples
    # "best" only: checks without gain that end a pair; 0 never ends one early
    patience: int = at_least(0, 10)

    def checks(self) -> range:
        """Return the rounds, counted from 1, after which validation accuracy is read; the last ends the training."""
        return (
            range(self.rounds, self.rounds + 1)
            if self.report == "last"
            else range(1, self.rounds + 1, self.check_every)
        )


@dataclass(frozen=True)
class Distances:
    """Distances between clients and the rounds that they took; see `train_discriminators`."""

    matrix: npt.NDArray[np.float64]  # [N, N] symmetric, zero diagonal; NaN for pairs that are not requested
    pairs: npt.NDArray[np.int64]  # [P, 2]
    rounds_used: npt.NDArray[np.int64]  # [P] federated rounds until the check that ended the pair


def check_sizes(sizes: Sequence[int]) -> None:
    """Refuse a client with fewer than two samples: one to train a discriminator on, one to validate it."""
    for k, size in enumerate(sizes):
        if size < 2:
            raise ConfigError(
                f"client {k} has too few training samples ({size}), as FedCollab's discriminators need 2; use more "
                "samples, fewer clients, or a partition with a min_size"
            )


def train_discriminators(
    x: Tensor,
    y: Tensor,
    classes: int,
    clients: Sequence[Tensor],
    config: DiscriminatorConfig,
    seed: int,
    pairs: Sequence[tuple[int, int]] | None = None,
    meter: Meter | None = None,
) -> Distances:
    """Return the distances between clients, from a discriminator for every pair.

    Args:
        x: [n, d] flat, normalised features on the device to train on, float32 or float64.
        y: [n] int64 labels.
        classes: L, the number of labels.
        clients: for each of N clients, the rows of x and y it trains on, int64, at least two.
        config: hyper-parameters.
        seed: keys the splits, the common initial weights and the batches.
        pairs: pairs of different clients to measure, by default all of them; a new client that is the last
            of N asks for (0, N - 1), ..., (N - 2, N - 1).
        meter: counts what clients are sent and send: a discriminator a round, one more for the last check; a
            discriminator a round, and at every check the share of right answers.

    Raises:
        ConfigError: a client with fewer than two samples (one to train on, one to validate).
    """
    meter = meter or Meter()
    measured = _checked_pairs(len(clients), pairs)
    sizes = np.array([len(c) for c in clients])
    check_sizes(sizes.tolist())
    m = int(sizes.min()) // 2
    weights = initial(x.shape[1], classes, config.hidden, torch_rng(seed, "discriminator weights"))
    embedding = embed(x, y, weights, config.label_weight)
    scores = np.zeros(len(measured))
    rounds = np.zeros(len(measured), np.int64)
    splits = {k: split(clients[k], y, m, seed, k) for k in np.unique(measured).tolist()}
    validated = max((len(splits[i][1]) + len(splits[j][1]) for i, j in measured.tolist()), default=0)
    chunk = _chunk(embedding, m, validated)
    exchange = Exchange(weights, meter)
    for start in range(0, len(measured), chunk):
        rows = slice(start, start + chunk)
        scores[rows], rounds[rows] = _train_chunk(embedding, measured[rows], m, splits, config, seed, exchange)
    matrix = np.full((len(clients), len(clients)), np.nan)
    np.fill_diagonal(matrix, 0.0)
    i, j = measured.T
    matrix[i, j] = matrix[j, i] = np.clip(2 * scores - 1, 0, None)
    return Distances(matrix, measured, rounds)


def _train_chunk(
    embedding: Embedding,
    pairs: npt.NDArray[np.int64],
    m: int,
    splits: Mapping[int, tuple[Tensor, Tensor]],
    config: DiscriminatorConfig,
    seed: int,
    exchange: Exchange,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the balanced accuracy [P] (the best, of several checks) and the rounds used [P] of a chunk of pairs."""
    device = embedding.phi.device
    train, valid = ({k: rows[part] for k, rows in splits.items()} for part in (0, 1))
    nets = Discriminators(embedding, torch.from_numpy(pairs).to(device), train, valid)
    patience = Patience(len(pairs), config.patience, device)
    drawn = [batches(m, config.batch, numpy_rng(seed, "discriminator batches", *p)) for p in pairs.tolist()]
    best, rounds = np.empty(len(pairs)), np.empty(len(pairs), np.int64)
    active = np.arange(len(pairs))
    checks = config.checks()
    for round_ in range(1, checks[-1] + 1):
        batch = None
        if m > config.batch:
            batch = torch.from_numpy(np.stack([next(drawn[p]) for p in active])).to(device)
        nets.step(config.lr, batch)
        exchange.step(len(active))
        if round_ not in checks:
            continue
        exchange.check(len(active))
        stop = patience.update(nets.balanced_accuracy()) | (round_ == checks[-1])
        if bool(stop.any()):
            ended = stop.cpu().numpy()
            exchange.last(int(ended.sum()))
            best[active[ended]] = patience.best[stop].cpu().numpy()
            rounds[active[ended]] = round_
            active = active[~ended]
            if not len(active):
                break
            nets.keep(~stop)
            patience.keep(~stop)
    return best, rounds


def _checked_pairs(N: int, pairs: Sequence[tuple[int, int]] | None) -> npt.NDArray[np.int64]:
    """Return the pairs [P, 2] with i < j, so that a pair's draws do not depend on how it is written."""
    if pairs is None:
        return np.stack(np.triu_indices(N, 1), axis=1).astype(np.int64)
    measured = np.sort(np.array(pairs, np.int64).reshape(-1, 2), axis=1)
    if len(measured) and (measured.min() < 0 or measured.max() >= N or (measured[:, 0] == measured[:, 1]).any()):
        raise ConfigError(f"pairs must be two different clients of 0..{N - 1}")
    return measured


def _chunk(embedding: Embedding, m: int, valid_samples: int) -> int:
    """Return how many pairs' coordinates, weights and hidden activations fit WORK_BYTES."""
    F, H = embedding.phi.shape[1], embedding.base.shape[1]
    r, stored = (2 * m, F + 2 * m + valid_samples) if reduces(m, F) else (F, 0)
    floats = r * stored + r * H + 2 * m * 4 * H
    return int(max(1, WORK_BYTES // (floats * embedding.phi.element_size())))


# ---- what a client trains on


def split(rows: Tensor, y: Tensor, m: int, seed: int, client: int) -> tuple[Tensor, Tensor]:
    """Return a client's training rows [m] and validation rows, keyed by (seed, client)."""
    rng = numpy_rng(seed, "discriminator split", client)
    order = rng.permutation(len(rows))
    order = order[_stratified(y[rows].cpu().numpy()[order], m, rng)]
    shuffled = rows[torch.from_numpy(order).to(rows.device)].to(y.device)
    return shuffled[:m], shuffled[m:]


def _stratified(labels: npt.NDArray[np.int64], m: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return an order of shuffled samples whose first m have each label's share: largest remainder, ties at random."""
    present, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    share = counts * m / len(labels)
    take = np.floor(share).astype(np.int64)
    rest = np.lexsort((rng.random(len(present)), -np.round(share - take, 9)))
    take[rest[: m - int(take.sum())]] += 1
    by_label = np.argsort(inverse, kind="stable")
    rank = np.empty(len(labels), np.int64)  # of each sample among those of its label
    rank[by_label] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.argsort(rank >= take[inverse], kind="stable")


def batches(m: int, batch: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
    """Yield columns [2 * batch] of a pair's 2 m training rows: `batch` of either client, without end."""
    while True:
        columns = rng.random((16, 2, m)).argpartition(batch, axis=2)[:, :, :batch]
        yield from (columns + np.array([[0], [m]])).reshape(16, 2 * batch)


# ---- the discriminators of a chunk of pairs


class Discriminators:
    """P discriminators of pairs with equally many training samples; a pair's first client is class 1, its second 0.

        logit(x, y) = w2 . relu(Wx x + bx + omega (Wy nu onehot(y) + by)) + b2,   omega = 2, nu = L / sqrt(L - 1)

    (Section 4.1.) The first layer is linear in phi(x, y) = [x, 1, omega nu onehot(y), omega], so SGD on (Wx, bx, Wy,
    by) is SGD on one matrix W [F, H] with logit = w2 . relu(phi W) + b2. Its gradient is a combination of the pair's
    training rows phi, so W never leaves W0 + span(those rows): with Q [F, r] an orthonormal basis of the span,
    W = W0 + Q U and SGD on U [r, H], started at 0, is exactly SGD on W. W0 is the same for every pair, so phi W0 is
    computed once for all samples, and a step or a check of a pair costs r = 2 m_train (FedCollab's label shift: 14)
    where the plain network costs F = 796. Where the basis would not be smaller the rows phi are used (Q = I).
    """

    def __init__(
        self, embedding: Embedding, pairs: Tensor, train: Mapping[int, Tensor], valid: Mapping[int, Tensor]
    ) -> None:
        """Take `pairs` [P, 2] of clients; `train[k]` [m] and `valid[k]` [n_k] are rows of the embedding of client k."""
        self.embedding = embedding
        self.pairs = pairs
        both = torch.stack([torch.cat([train[i], train[j]]) for i, j in pairs.tolist()])  # [P, 2m]
        phi, base = embedding.phi, embedding.base
        self.train_rows = both
        self.valid_rows = {k: valid[k] for k in pairs.unique().tolist()}
        self.basis: Tensor | None = None
        if reduces(both.shape[1] // 2, phi.shape[1]):
            self.basis = torch.linalg.qr(phi[both].transpose(1, 2)).Q  # [P, F, r]
            self.train_z = torch.bmm(phi[both], self.basis)  # [P, 2m, r]
        P, H = len(pairs), base.shape[1]
        r = phi.shape[1] if self.basis is None else self.basis.shape[2]
        self.U = phi.new_zeros(P, r, H)
        self.w2 = embedding.w2.repeat(P, 1)  # [P, H]
        self.b2 = embedding.b2.repeat(P)  # [P]
        self.sides = {k: (pairs == k).nonzero().T for k in self.valid_rows}  # [2, P_k]: pair, side
        self.valid_z = {k: self._project(k) for k in self.valid_rows}

    def _project(self, k: int) -> Tensor:
        """Return client k's validation rows in the coordinates of each of its pairs: [P_k, n_k, r], or [1, n_k, F]."""
        phi = self.embedding.phi[self.valid_rows[k]]
        return phi[None] if self.basis is None else torch.matmul(phi, self.basis[self.sides[k][0]])

    def step(self, lr: float, batch: Tensor | None = None) -> None:
        """Make one federated round: a gradient step of each client on its batch, then the mean of the two weights.

        Both clients start from the same weights and take one step, so the mean of their weights is one step on
        the mean of their gradients. `batch` [P, 2B] holds columns of the training rows, B of either client;
        None is all of them.
        """
        z, base = self._batch(batch)
        R = torch.baddbmm(base, z, self.U).relu_()  # [P, 2B, H]
        g = torch.baddbmm(self.b2[:, None, None], R, self.w2[:, :, None])[:, :, 0].sigmoid_()  # [P, 2B]
        B = g.shape[1] // 2
        g[:, :B] -= 1
        g *= -lr / (2 * B)
        dH = torch.where(R > 0, self.w2[:, None, :], 0.0).mul_(g[:, :, None])  # [P, 2B, H]
        self.U.baddbmm_(z.transpose(1, 2), dH)
        self.w2 += torch.bmm(g[:, None, :], R)[:, 0]
        self.b2 += g.sum(1)

    def _batch(self, batch: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return coordinates [P, 2B, r] and initial hidden inputs [P, 2B, H] of a batch."""
        rows = self.train_rows if batch is None else self.train_rows.gather(1, batch)
        base = self.embedding.base[rows]
        if self.basis is None:
            return self.embedding.phi[rows], base
        if batch is None:
            return self.train_z, base
        return self.train_z.gather(1, batch[:, :, None].expand(-1, -1, self.train_z.shape[2])), base

    def balanced_accuracy(self) -> Tensor:
        """Return the mean over a pair's clients of the share of validation samples it gets right: [P] float64."""
        shares = torch.zeros(self.pairs.shape, dtype=torch.float64, device=self.U.device)  # [P, 2]
        for k, (pair, side) in self.sides.items():
            ones = self._ones(k, pair).double() / len(self.valid_rows[k])
            shares[pair, side] = torch.where(side == 0, ones, 1 - ones)
        return shares.mean(1)

    def _ones(self, k: int, pair: Tensor) -> Tensor:
        """Return how many of client k's validation samples each of its discriminators `pair` calls class 1: [P_k]."""
        base, z = self.embedding.base[self.valid_rows[k]], self.valid_z[k]
        counts = torch.zeros_like(pair)
        nets, rows = (len(pair), len(base)) if z.is_cuda else (1, BLOCK)
        for c in range(0, len(pair), nets):
            own = z if self.basis is None else z[c : c + nets]
            for s in range(0, len(base), rows):
                logits = self._logits(base[s : s + rows], own[:, s : s + rows], pair[c : c + nets])
                counts[c : c + nets] += (logits >= 0).sum(1)
        return counts

    def _logits(self, base: Tensor, z: Tensor, pair: Tensor) -> Tensor:
        """Return logits [P', n'] from `base` [n', H] and `z` [P' or 1, n', r]."""
        R = torch.baddbmm(base[None], z.expand(len(pair), -1, -1), self.U[pair]).relu_()
        return torch.baddbmm(self.b2[pair][:, None, None], R, self.w2[pair][:, :, None])[:, :, 0]

    def keep(self, rows: Tensor) -> None:
        """Drop the discriminators outside the mask `rows` [P]: a pair that stopped costs nothing more."""
        for name in ("pairs", "train_rows", "U", "w2", "b2"):
            setattr(self, name, getattr(self, name)[rows])
        new = rows.cumsum(0) - 1
        if self.basis is not None:
            self.basis, self.train_z = self.basis[rows], self.train_z[rows]
        for k, (pair, side) in self.sides.items():
            remaining = rows[pair]
            if self.basis is not None and not bool(remaining.all()):
                self.valid_z[k] = self.valid_z[k][remaining]
            self.sides[k] = torch.stack([new[pair[remaining]], side[remaining]])


@dataclass(frozen=True)
class Embedding:
    """The part that all discriminators share: the rows phi of every sample and their image under W0."""

    phi: Tensor  # [n, F]
    base: Tensor  # [n, H] = phi W0
    w2: Tensor  # [H] initial
    b2: Tensor  # [] initial


def initial(features: int, classes: int, hidden: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the six tensors of one discriminator, uniform in +-1/sqrt(fan-in) as torch.nn.Linear draws them."""

    def uniform(fan_in: int, *shape: int) -> Tensor:
        bound = fan_in**-0.5
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)

    return {
        "Wx": uniform(features, features, hidden),
        "bx": uniform(features, hidden),
        "Wy": uniform(classes, classes, hidden),
        "by": uniform(classes, hidden),
        "w2": uniform(hidden, hidden),
        "b2": uniform(hidden),
    }


def embed(x: Tensor, y: Tensor, weights: dict[str, Tensor], label_weight: float) -> Embedding:
    """Return the rows phi of samples `x` [n, d] with labels `y` [n], and their products with the initial `weights`."""
    classes = len(weights["Wy"])
    scale = label_weight * classes / max(classes - 1, 1) ** 0.5
    one = x.new_ones(len(x), 1)
    onehot = torch.nn.functional.one_hot(y, classes).to(x.dtype)
    phi = torch.cat([x, one, scale * onehot, label_weight * one], dim=1)
    W0 = torch.cat([weights["Wx"], weights["bx"][None], weights["Wy"], weights["by"][None]]).to(x)
    return Embedding(phi, phi @ W0, weights["w2"].to(x), weights["b2"].to(x))


def reduces(m_train: int, features: int) -> bool:
    """Return whether the span of a pair's 2 m_train training rows is used in place of the F coordinates."""
    return 4 * m_train <= features


# ---- when a pair ends, and what is sent


class Patience:
    """Best score so far and checks without gain, for P pairs."""

    def __init__(self, count: int, patience: int, device: torch.device | None = None) -> None:
        """A `patience` of 0 never stops."""
        self.patience = patience
        self.best = torch.full((count,), -torch.inf, dtype=torch.float64, device=device)
        self.since = torch.zeros(count, dtype=torch.int64, device=device)

    def update(self, scores: Tensor) -> Tensor:
        """Fold in one check, [P]; return which pairs are to stop. A tie is no gain."""
        gain = scores > self.best
        self.best = torch.where(gain, scores, self.best)
        self.since = torch.where(gain, 0, self.since + 1)
        return self.since >= self.patience if self.patience else torch.zeros_like(gain)

    def keep(self, rows: Tensor) -> None:
        """Drop the pairs outside the mask `rows` [P]."""
        self.best, self.since = self.best[rows], self.since[rows]


@dataclass(frozen=True)
class Exchange:
    """The traffic between the two clients of each pair and the server, counted by `meter`."""

    weights: Tree  # one discriminator
    meter: Meter

    def step(self, pairs: int) -> None:
        """Count a round: discriminators down, trained ones up."""
        self.last(pairs)
        self.meter.received(trees.expand(self.weights, 2 * pairs))

    def check(self, pairs: int) -> None:
        """Count each client's share of right answers, of the discriminators that the next round or `last` sends."""
        self.meter.received({"share": torch.empty(2 * pairs)})

    def last(self, pairs: int) -> None:
        """Count the discriminators that go down for the last check."""
        self.meter.sent(trees.expand(self.weights, 2 * pairs))
