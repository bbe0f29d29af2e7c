"""What FedCollab's discriminators draw: a client's training and validation samples, a pair's mini-batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.core.rng import numpy_rng


def split(rows: Tensor, y: Tensor, m: int, seed: int, client: int) -> tuple[Tensor, Tensor]:
    """A client's training rows [m] and validation rows, keyed by (seed, client)."""
    rng = numpy_rng(seed, "discriminator split", client)
    order = rng.permutation(len(rows))
    order = order[_stratified(y[rows].cpu().numpy()[order], m, rng)]
    shuffled = rows[torch.from_numpy(order).to(rows.device)].to(y.device)
    return shuffled[:m], shuffled[m:]


def _stratified(labels: npt.NDArray[np.int64], m: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """An order of shuffled samples whose first m have each label's share: largest remainder, ties at random."""
    kinds, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    share = counts * m / len(labels)
    take = np.floor(share).astype(np.int64)
    rest = np.lexsort((rng.random(len(kinds)), -np.round(share - take, 9)))
    take[rest[: m - int(take.sum())]] += 1
    by_label = np.argsort(inverse, kind="stable")
    place = np.empty(len(labels), np.int64)  # of each sample among those of its label
    place[by_label] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.argsort(place >= take[inverse], kind="stable")


def batches(m: int, batch: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
    """Endless columns [2 * batch] of a pair's 2 m training rows: `batch` different ones of either client."""
    while True:
        chosen = rng.random((16, 2, m)).argpartition(batch, axis=2)[:, :, :batch]
        yield from (chosen + np.array([[0], [m]])).reshape(16, 2 * batch)
