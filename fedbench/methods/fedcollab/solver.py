"""FedCollab's coalition solver: Algorithm 2 on the first line of Eq. 10 (Bao et al., ICML 2023).

For client sizes n, distances D and a coalition K with m_K = sum of n over K, Eq. 10 sums over coalitions
    f(K) = |K| C / sqrt(m_K) + Q_K / m_K,    Q_K = sum_{i,j in K} n_j D_ij,
because alpha_ij = n_j / m_K inside K gives sqrt(sum_j alpha_ij^2 / beta_j) / sqrt(m) = 1 / sqrt(m_K). (The
second line of Eq. 10 squares that norm, which is a slip.) So a move needs only |K|, m_K and Q_K: if client k
joins K, Q_K grows by sum_{j in K} G_kj with G_kj = n_j D_kj + n_k D_jk. One weighted bincount scores every
coalition in O(N). The restarts run in lockstep as rows of the same arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedbench.core.errors import ConfigError
from fedbench.methods.parts.clustered import size_weights

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TOLERANCE = 1e-10  # a move must lower Eq. 10 by this share of its largest value, so that rounding makes no cycles


@dataclass(frozen=True)
class Solution:
    """The best coalition structure over the restarts of `solve`."""

    assignment: Ints  # [N] coalition of each client, coalitions numbered by their smallest member
    value: float  # Eq. 10 at `assignment`
    values: Floats  # [R] the local optimum each restart ended in
    iterations: Ints  # [R] inner iterations (client visits) until a whole pass changed nothing
    trajectories: tuple[Floats, ...] | None  # R x [1 + iterations] Eq. 10 before and after each visit

    @property
    def coalitions(self) -> tuple[tuple[int, ...], ...]:
        """Return the members of each coalition, in ascending order."""
        count = int(self.assignment.max()) + 1
        return tuple(tuple(np.flatnonzero(self.assignment == c).tolist()) for c in range(count))


def objective(assignment: npt.ArrayLike, sizes: npt.ArrayLike, distances: npt.ArrayLike, C: float) -> float:
    """Return Eq. 10, first line, by its definition: `assignment` [N], `sizes` [N], `distances` [N, N]."""
    n, D = _checked(sizes, distances, C)
    A = size_weights(assignment, n)  # [N, N], Eq. 9
    m = n.sum()
    beta = n / m
    quantity = C / np.sqrt(m) * np.sqrt((A**2 / beta).sum(1))  # [N]
    return float((quantity + (A * D).sum(1)).sum())


def canonical(assignment: npt.ArrayLike) -> Ints:
    """Return the same partition with coalitions numbered 0, 1, ... in the order of their smallest member."""
    _, first, inverse = np.unique(np.asarray(assignment), return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def assign_new(
    assignment: npt.ArrayLike, sizes: npt.ArrayLike, distances: npt.ArrayLike, C: float, *, alone: bool = True
) -> int:
    """Return the coalition that a new client joins: the one that minimises Eq. 10 over all N + 1 (Section 4.4).

    The new client is the last of `sizes` [N + 1] and `distances` [N + 1, N + 1]; the others keep `assignment`
    [N], numbered from 0 without gaps. If it may stay `alone`, it is max(assignment) + 1 where that is strictly best.
    """
    n, D = _checked(sizes, distances, C)
    p = np.asarray(assignment, np.int64)
    options = np.arange(p.max(initial=-1) + 2) if alone else np.unique(p)
    return int(options[np.argmin([objective(np.append(p, c), n, D, C) for c in options])])


def solve(
    sizes: npt.ArrayLike,
    distances: npt.ArrayLike,
    C: float,
    restarts: int,
    rng: np.random.Generator,
    trace: bool = False,
) -> Solution:
    """Run Algorithm 2 from `restarts` random visiting orders and keep the best local optimum.

    Every restart starts from singletons and visits the clients in a fresh random permutation a pass; a client
    moves to the coalition, or to one of its own, that lowers Eq. 10 most (ties: it stays, then the lowest
    coalition slot), until a pass moves nobody. Each restart draws from a generator of its own, so the first r
    of R restarts are the r restarts of a smaller call: more restarts are never worse.

    Args:
        sizes: [N] training samples a client, positive.
        distances: [N, N] non-negative with a zero diagonal; need not be symmetric.
        C: capacity constant of Eq. 7; 0 leaves every client alone where all distances are positive.
        restarts: number of random orders, at least 1.
        rng: source of the restarts' generators.
        trace: keep Eq. 10 after every visit (Figure 8).

    Raises:
        ConfigError: sizes, distances, C or restarts outside these ranges.
    """
    n, D = _checked(sizes, distances, C)
    if restarts < 1:
        raise ConfigError(f"the coalition solver needs at least 1 restart, not {restarts}")
    orders = [np.random.default_rng(s) for s in rng.integers(2**63, size=restarts)]
    search = _Search(n, D, C, restarts)
    finals = np.empty((restarts, len(n)), np.int64)
    iterations = np.zeros(restarts, np.int64)
    history: list[list[Floats]] = [[search.value[:1]] for _ in range(restarts)]
    active = np.arange(restarts)
    while len(active):
        visits = np.stack([orders[r].permutation(len(n)) for r in active], axis=1)  # [N, R]
        moved = np.zeros(len(active), bool)
        values = np.empty((len(n), len(active)))
        for step, clients in enumerate(visits):
            moved |= search.visit(clients)
            values[step] = search.value
        iterations[active] += len(n)
        if trace:
            for row, r in enumerate(active):
                history[r].append(values[:, row])
        finals[active[~moved]] = search.p[~moved]
        search.keep(moved)
        active = active[moved]
    structures = [canonical(p) for p in finals]
    reached = np.array([objective(p, n, D, C) for p in structures])
    best = int(reached.argmin())
    curves = tuple(np.concatenate(h) for h in history) if trace else None
    return Solution(structures[best], float(reached[best]), reached, iterations, curves)


class _Search:
    """R restarts in parallel; a coalition is one of N slots, empty if its count is 0."""

    def __init__(self, n: Floats, D: Floats, C: float, restarts: int) -> None:
        N = len(n)
        self.n, self.C = n, C
        self.G = D * n[None, :] + D.T * n[:, None]  # [N, N]
        self.p = np.tile(np.arange(N), (restarts, 1))  # [R, N] slot of each client
        self.count = np.ones((restarts, N))  # [R, N] per slot: |K|
        self.m = np.tile(n, (restarts, 1))  # [R, N] per slot: m_K
        self.Q = np.zeros((restarts, N))  # [R, N] per slot: Q_K
        self.value = np.full(restarts, (C / np.sqrt(n)).sum())  # [R] Eq. 10
        self.least = TOLERANCE * float(self.value[0] + N * D.max())
        self.f = C / np.sqrt(self.m)  # [R, N] per slot: f(K)

    def keep(self, rows: npt.NDArray[np.bool_]) -> None:
        """Drop the restarts that are not in the mask `rows` [R]."""
        for name in ("p", "count", "m", "Q", "value", "f"):
            setattr(self, name, getattr(self, name)[rows])

    def visit(self, clients: Ints) -> npt.NDArray[np.bool_]:
        """Make the best move of client `clients[r]` in each restart r; return which restarts moved, [R]."""
        R, N = self.p.shape
        rows = np.arange(R)
        current = self.p[rows, clients]
        slots = (rows[:, None] * N + self.p).ravel()
        # [R, N]: what client k would add to Q_K of each slot
        joins: Floats = np.bincount(slots, self.G[clients].ravel(), R * N).astype(float).reshape(R, N)
        n = self.n[clients]
        before = self.value
        self._change(rows, current, -1.0, -n, -joins[rows, current])
        m = self.m + n[:, None]
        gain = (self.count + 1.0) * (self.C / np.sqrt(m)) + (self.Q + joins) / m - self.f
        best = gain.argmin(1)
        moves: npt.NDArray[np.bool_] = gain[rows, best] < gain[rows, current] - self.least
        target = np.where(moves, best, current)
        self._change(rows, target, 1.0, n, joins[rows, target])
        self.p[rows, clients] = target
        self.value = np.where(moves, self.value, before)  # a client that stays must not add rounding
        return moves

    def _change(self, rows: Ints, slots: Ints, count: float, n: Floats, Q: Floats) -> None:
        """Add to |K|, m_K and Q_K of one slot a restart and refresh f(K) and Eq. 10."""
        slot = (rows, slots)
        self.count[slot] += count
        self.m[slot] += n
        filled = self.count[slot] > 0
        self.Q[slot] = np.where(filled, self.Q[slot] + Q, 0.0)
        m = np.where(filled, self.m[slot], 1.0)
        f = self.count[slot] * self.C / np.sqrt(m) + self.Q[slot] / m
        self.value = self.value + f - self.f[slot]
        self.f[slot] = f


def _checked(sizes: npt.ArrayLike, distances: npt.ArrayLike, C: float) -> tuple[Floats, Floats]:
    """Return `sizes` [N] and `distances` [N, N] as float64, or raise a ConfigError that says what is wrong."""
    n, D = np.asarray(sizes, np.float64), np.asarray(distances, np.float64)
    if n.ndim != 1 or not len(n) or D.shape != (len(n), len(n)):
        raise ConfigError(f"distances must be [N, N] for sizes [N], N > 0; got {D.shape} for {n.shape}")
    if not np.isfinite(n).all() or n.min() <= 0:
        raise ConfigError("every client of a coalition needs at least one training sample")
    if not np.isfinite(D).all() or D.min() < 0 or np.diag(D).any():
        raise ConfigError("distances must be finite, non-negative and zero on the diagonal")
    if not (np.isfinite(C) and C >= 0):
        raise ConfigError(f"C must be finite and not negative, not {C}")
    return n, D
