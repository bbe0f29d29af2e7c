"""FedCollab's pairwise distances: Algorithm 1 for all pairs of clients at once (Bao et al., ICML 2023).

For clients i and j a discriminator learns, federatedly, which of the two a sample (x, y) comes from; then
D_ij = max(0, 2 * balanced validation accuracy - 1). Paper and code differ in when that accuracy is read:
- `report` "last": Algorithm 1 trains T rounds and reads w^T once. T is nowhere stated; the 17.8 % of traffic
  in Appendix B.4 (19 discriminators of 105,001 parameters against 11,181,642) holds for T = FL rounds = 200.
- `report` "best": the code reads it after rounds 1, 11, 21, ..., stops after ten checks without gain or 2000
  rounds, and keeps the maximum. A maximum over noisy checks is biased upwards, with 7 validation samples a
  client visibly. Which draws of Fashion-MNIST's label shift either solves as published is counted in
  results/evidence/coalitions.csv. The distances that the authors publish (.17 within a type of
  small clients, .29 across) are nearer to "best" (.11, .32 on their partition) than to "last" (.06, .21).
Where the paper is silent the code is followed: a client trains on m_train samples, half the smallest client's,
stratified by label, and validates on the rest; one batch a client and round.
Deviations: the split has exactly m_train samples (the code rounds label by label; the same wherever the shares
are whole, as in label shift); batches and initial weights are keyed by (seed, pair), not by what ran before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.config.fields import Component, at_least, one_of, positive
from fedbench.config.schema import retired
from fedbench.core.errors import ConfigError
from fedbench.core.rng import numpy_rng, torch_rng
from fedbench.engine.preparation import Meter
from fedbench.methods.fedcollab import draws
from fedbench.methods.fedcollab.exchange import Exchange
from fedbench.methods.fedcollab.network import Discriminators, Embedding, embed, initial, reduces
from fedbench.methods.fedcollab.patience import Patience

WORK_BYTES = 512 * 2**20  # pairs are trained in chunks whose tensors stay under this; no result depends on it


@retired(m_train="smallest", split="stratified", valid_limit=0, chunk=0)
@dataclass(frozen=True)
class DiscriminatorConfig(Component):
    """Hyper-parameters of the pairwise discriminators."""

    section: ClassVar[str] = "method.discriminator"

    hidden: int = at_least(1, 200)  # width of the hidden layer
    rounds: int = at_least(1, 200)  # T, federated rounds a pair; the code: at most 2000, with report "best"
    batch: int = at_least(1, 32)  # samples a client and round (all that it trains on where these are fewer)
    lr: float = positive(0.01)  # SGD; the paper's label / feature / concept shift: .01 / .01 / .05
    label_weight: float = at_least(0, 2.0)  # omega: how much the label's half of the first layer counts
    # accuracy read once, after all rounds (Algorithm 1), or the "best" check (code)
    report: str = one_of("last", "best")
    check_every: int = at_least(1, 10)  # "best" only: rounds between checks on the validation samples
    # "best" only: checks without gain that end a pair; 0 never ends one early
    patience: int = at_least(0, 10)

    def checks(self) -> range:
        """The rounds, counted from 1, after which validation accuracy is read; those after the last are idle."""
        return (
            range(self.rounds, self.rounds + 1)
            if self.report == "last"
            else range(1, self.rounds + 1, self.check_every)
        )


@dataclass(frozen=True)
class Distances:
    """The result of `train_discriminators`."""

    matrix: npt.NDArray[np.float64]  # [N, N] symmetric, zero diagonal; NaN where a pair was not asked for
    pairs: npt.NDArray[np.int64]  # [P, 2]
    rounds_used: npt.NDArray[np.int64]  # [P] federated rounds until the check that ended the pair


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
    """Distances between clients from discriminators trained for every pair, batched.

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
    asked = _checked_pairs(len(clients), pairs)
    sizes = np.array([len(c) for c in clients])
    for k, size in enumerate(sizes):
        if size < 2:
            raise ConfigError(f"client {k} has {size} training samples; FedCollab's discriminators need 2")
    m = int(sizes.min()) // 2
    weights = initial(x.shape[1], classes, config.hidden, torch_rng(seed, "discriminator weights"))
    embedding = embed(x, y, weights, config.label_weight)
    scores = np.zeros(len(asked))
    rounds = np.zeros(len(asked), np.int64)
    parts = {k: draws.split(clients[k], y, m, seed, k) for k in np.unique(asked).tolist()}
    validated = max((len(parts[i][1]) + len(parts[j][1]) for i, j in asked.tolist()), default=0)
    chunk = _chunk(embedding, m, validated)
    for start in range(0, len(asked), chunk):
        at = slice(start, start + chunk)
        scores[at], rounds[at] = _run(embedding, asked[at], m, parts, config, seed, Exchange(weights, meter))
    matrix = np.full((len(clients), len(clients)), np.nan)
    np.fill_diagonal(matrix, 0.0)
    i, j = asked.T
    matrix[i, j] = matrix[j, i] = np.clip(2 * scores - 1, 0, None)
    return Distances(matrix, asked, rounds)


def _checked_pairs(N: int, pairs: Sequence[tuple[int, int]] | None) -> npt.NDArray[np.int64]:
    """Pairs [P, 2] with i < j, so that a pair's draws do not depend on how it is written."""
    if pairs is None:
        return np.stack(np.triu_indices(N, 1), axis=1).astype(np.int64)
    asked = np.sort(np.array(pairs, np.int64).reshape(-1, 2), axis=1)
    if len(asked) and (asked.min() < 0 or asked.max() >= N or (asked[:, 0] == asked[:, 1]).any()):
        raise ConfigError(f"pairs must be two different clients of 0..{N - 1}")
    return asked


def _chunk(embedding: Embedding, m: int, valid_samples: int) -> int:
    """Pairs whose coordinates, weights and hidden activations fit WORK_BYTES."""
    F, H = embedding.phi.shape[1], embedding.base.shape[1]
    r, kept = (2 * m, F + 2 * m + valid_samples) if reduces(m, F) else (F, 0)
    floats = r * kept + r * H + 2 * m * 4 * H
    return int(max(1, WORK_BYTES // (floats * embedding.phi.element_size())))


def _run(
    embedding: Embedding,
    pairs: npt.NDArray[np.int64],
    m: int,
    parts: Mapping[int, tuple[Tensor, Tensor]],
    config: DiscriminatorConfig,
    seed: int,
    exchange: Exchange,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Best balanced accuracy [P] and rounds used [P] of a chunk of pairs."""
    device = embedding.phi.device
    train, valid = ({k: part[side] for k, part in parts.items()} for side in (0, 1))
    nets = Discriminators(embedding, torch.from_numpy(pairs).to(device), train, valid)
    patience = Patience(len(pairs), config.patience, device)
    drawn = [
        draws.batches(m, config.batch, numpy_rng(seed, "discriminator batches", *p)) for p in pairs.tolist()
    ]
    best, rounds = np.empty(len(pairs)), np.empty(len(pairs), np.int64)
    active = np.arange(len(pairs))
    checks = config.checks()
    for done in range(1, checks[-1] + 1):
        batch = None
        if m > config.batch:
            batch = torch.from_numpy(np.stack([next(drawn[p]) for p in active])).to(device)
        nets.step(config.lr, batch)
        exchange.step(len(active))
        if done not in checks:
            continue
        exchange.check(len(active))
        stop = patience.update(nets.balanced_accuracy()) | (done == checks[-1])
        if bool(stop.any()):
            ended = stop.cpu().numpy()
            exchange.last(int(ended.sum()))
            best[active[ended]] = patience.best[stop].cpu().numpy()
            rounds[active[ended]] = done
            active = active[~ended]
            if not len(active):
                break
            nets.keep(~stop)
            patience.keep(~stop)
    return best, rounds
