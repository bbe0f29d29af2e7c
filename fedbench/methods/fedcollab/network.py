"""FedCollab's client discriminator (Section 4.1): P of them trained and validated as one program.

    logit(x, y) = w2 . relu(Wx x + bx + omega (Wy nu onehot(y) + by)) + b2,   omega = 2, nu = L / sqrt(L - 1)

The first layer is linear in phi(x, y) = [x, 1, omega nu onehot(y), omega], so SGD on (Wx, bx, Wy, by) is SGD on
one matrix W [F, H] with logit = w2 . relu(phi W) + b2. Its gradient is a combination of the pair's training
rows phi, so W never leaves W0 + span(those rows): with Q [F, r] an orthonormal basis of the span, W = W0 + Q U
and SGD on U [r, H], started at 0, is exactly SGD on W. W0 is the same for every pair, so phi W0 is computed once
for all samples, and a step or a check of a pair costs r = 2 m_train (FedCollab's label shift: 14) where the
plain network costs F = 796. Where the basis would not be smaller the rows phi themselves are used (Q = I).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 1024  # validation rows a product on a CPU: [BLOCK, H] floats stay in its second-level cache


@dataclass(frozen=True)
class Embedding:
    """What all discriminators share: the rows phi of every sample and their image under W0."""

    phi: Tensor  # [n, F]
    base: Tensor  # [n, H] = phi W0
    w2: Tensor  # [H] initial
    b2: Tensor  # [] initial


def initial(features: int, classes: int, hidden: int, generator: torch.Generator) -> dict[str, Tensor]:
    """The six tensors of one discriminator, uniform in +-1/sqrt(fan-in) as torch.nn.Linear draws them."""

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
    """Rows phi of samples `x` [n, d] with labels `y` [n], and their products with the initial `weights`."""
    classes = len(weights["Wy"])
    scale = label_weight * classes / max(classes - 1, 1) ** 0.5
    one = x.new_ones(len(x), 1)
    onehot = torch.nn.functional.one_hot(y, classes).to(x.dtype)
    phi = torch.cat([x, one, scale * onehot, label_weight * one], dim=1)
    W0 = torch.cat([weights["Wx"], weights["bx"][None], weights["Wy"], weights["by"][None]]).to(x)
    return Embedding(phi, phi @ W0, weights["w2"].to(x), weights["b2"].to(x))


def reduces(m_train: int, features: int) -> bool:
    """Whether the span of a pair's 2 m_train training rows is used in place of the F coordinates."""
    return 4 * m_train <= features


class Discriminators:
    """P discriminators of pairs with equally many training samples; row 0 of a pair is class 1, row 1 class 0."""

    def __init__(
        self, embedding: Embedding, pairs: Tensor, train: Mapping[int, Tensor], valid: Mapping[int, Tensor]
    ) -> None:
        """`pairs` [P, 2] clients; `train[k]` [m] and `valid[k]` [n_k] rows of the embedding of client k."""
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
        """Client k's validation rows in the coordinates of each of its pairs: [P_k, n_k, r], or [1, n_k, F]."""
        phi = self.embedding.phi[self.valid_rows[k]]
        return phi[None] if self.basis is None else torch.matmul(phi, self.basis[self.sides[k][0]])

    def step(self, lr: float, batch: Tensor | None = None) -> None:
        """One federated round: a gradient step of each client on its batch, then the mean of the two weights.

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
        """Coordinates [P, 2B, r] and initial hidden inputs [P, 2B, H] of a batch."""
        rows = self.train_rows if batch is None else self.train_rows.gather(1, batch)
        base = self.embedding.base[rows]
        if self.basis is None:
            return self.embedding.phi[rows], base
        if batch is None:
            return self.train_z, base
        return self.train_z.gather(1, batch[:, :, None].expand(-1, -1, self.train_z.shape[2])), base

    def balanced_accuracy(self) -> Tensor:
        """Mean over its two clients of the share of validation samples a discriminator gets right: [P] float64."""
        shares = torch.zeros(self.pairs.shape, dtype=torch.float64, device=self.U.device)  # [P, 2]
        for k, (pair, side) in self.sides.items():
            ones = self._ones(k, pair).double() / len(self.valid_rows[k])
            shares[pair, side] = torch.where(side == 0, ones, 1 - ones)
        return shares.mean(1)

    def _ones(self, k: int, pair: Tensor) -> Tensor:
        """How many of client k's validation samples each of its discriminators `pair` calls class 1: [P_k]."""
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
        """[P', n'] from `base` [n', H] and `z` [P' or 1, n', r]."""
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
            kept = rows[pair]
            if self.basis is not None and not bool(kept.all()):
                self.valid_z[k] = self.valid_z[k][kept]
            self.sides[k] = torch.stack([new[pair[kept]], side[kept]])
