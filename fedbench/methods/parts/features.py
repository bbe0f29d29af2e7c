"""Passes over all of a client's samples, and the subspaces that their features span.

Samples are taken in blocks, so that the activations of a large client fit in memory. A subspace represents a client's
data (FedSaC, Eqs. 5-7) by the leading singular directions of its features. Two clients are compared by the angles
between their subspaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.models.task import Task

BLOCK = 512  # samples a forward pass
NEGLIGIBLE = 1e-6  # directions below this share of the largest eigenvalue do not count as directions of the data


def blocks(batch: Batch, size: int = BLOCK) -> Iterator[Batch]:
    """Cut `batch` into pieces of at most `size` samples, padding and mask kept."""
    for first in range(0, len(batch.y), size):
        rows = slice(first, first + size)
        mask = None if batch.mask is None else batch.mask[rows]
        yield Batch(batch.x[rows], batch.y[rows], mask)


def class_sums(values: Callable[[Batch], Tensor], data: Batch, classes: int) -> tuple[Tensor, Tensor]:
    """Return, of each class in `data`, the sum of `values` ([B, d] of a block), [K, d], and the sample count, [K]."""
    parts = [block.class_sums(values(block), classes) for block in blocks(data)]
    return torch.stack([sums for sums, _ in parts]).sum(0), torch.stack([n for _, n in parts]).sum(0)


def class_points(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class means of all clients, [M, d], and whose class each is of, [M], from `class_sums` [C, K, ...]."""
    has = counts > 0
    return (sums / counts.clamp(min=1).unsqueeze(2))[has], has.nonzero()[:, 1]


def shuffled(count: int, epochs: int, size: int, generator: torch.Generator) -> Iterator[Tree]:
    """Yield the `rows` of each mini-batch, of at most `size` of `count` points, over epochs of different orders."""
    for _ in range(epochs if count else 0):
        for rows in torch.randperm(count, generator=generator).split(size):
            yield {"rows": rows}


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """Return KL(softmax(target) || softmax(logits)) of each sample, [B], from logits [B, K]."""
    return functional.kl_div(logits.log_softmax(1), target.softmax(1), reduction="none").sum(1)


def mean_loss(model: Tree, data: Batch, task: Task) -> Tensor:
    """Return the mean loss of `model` in evaluation mode on all of `data`, a scalar."""
    sums = [block.sum(task.losses(task.apply(model, block.x), block.y)) for block in blocks(data)]
    return trees.sum_of(sums) / data.count


# ---- subspaces of features


def products(model: Tree, data: Batch, task: Task, centred: bool = False) -> Tree:
    """Return what `directions` needs of the features X [n, d] of all of `data`.

    `gram` [d, d], X^T X, or n times the covariance if `centred`; `least` [], an eigenvalue that may be rounding alone.
    """
    gram, total = torch.zeros(()), torch.zeros(())
    for block in blocks(data):
        z = task.features(model, block.x)
        z = z if block.mask is None else z * block.mask.to(z.dtype).unsqueeze(1)
        gram, total = gram + z.t() @ z, total + z.sum(0)
    if not centred:
        return {"gram": gram, "least": torch.zeros_like(total[0])}
    count = data.count.to(total.dtype)
    return {
        "gram": gram - torch.outer(total, total) / count,
        "least": NEGLIGIBLE * total.square().sum() / count,  # of what was subtracted
    }


def directions(products: Tree, rank: int) -> Tensor:
    """Return the `rank` leading right singular vectors [d, rank] of X, principal components if it is centred.

    Columns beyond X's rank, of clients with few samples, are zero. Each column's sign makes its largest entry positive.
    """
    gram = products["gram"]
    finite = gram.isfinite().all()  # of a model that diverged it is not, and is passed on so
    values, vectors = eigen(gram)
    rank = min(rank, len(values))
    values, vectors = values[-rank:].flip(0), vectors[:, -rank:].flip(1)
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    real = values > NEGLIGIBLE * values[0].clamp(min=torch.finfo(values.dtype).tiny)
    basis = vectors * largest.sign() * (real & (values > products["least"]))
    return torch.where(finite, basis, torch.nan)


def eigen(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues [d], ascending, and vectors [d, d] of a symmetric matrix; of zeros if it is not finite."""
    found: tuple[Tensor, Tensor] = _Eigh.apply(torch.where(gram.isfinite().all(), gram, 0))  # of nan eigh would fail
    return found


class _Eigh(torch.autograd.Function):
    """`torch.linalg.eigh`, and in double precision where that fails: [..., d] and [..., d, d] of gram [..., d, d].

    LAPACK's divide and conquer does not converge, or gives nan, for some finite matrices of a rank far below d, such as
    those of clients with a few samples. Whether it fails depends on values, which vmap hides, so this is an
    autograd.Function.
    """

    @staticmethod
    def forward(gram: Tensor) -> tuple[Tensor, Tensor]:
        try:
            values, vectors = torch.linalg.eigh(gram)
        except RuntimeError:  # of LinAlgError, which is one, torch exports no name
            if gram.dim() > 2:
                each = [_Eigh.apply(one) for one in gram]
                return torch.stack([one[0] for one in each]), torch.stack([one[1] for one in each])
            values, vectors = gram.new_full(gram.shape[:-1], torch.nan), torch.full_like(gram, torch.nan)
        failed = ~(values.isfinite().all(-1) & vectors.isfinite().all(-1).all(-1))
        # LAPACK's failure: a GPU has another solver, and asking would make the host wait.
        if gram.is_cpu and failed.any():
            exact, axes = torch.linalg.eigh(gram.to(torch.float64))
            values = torch.where(failed[..., None], exact.to(values.dtype), values)
            vectors = torch.where(failed[..., None, None], axes.to(vectors.dtype), vectors)
        return values, vectors

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: nobody takes its gradient."""

    @staticmethod
    def vmap(_: Any, in_dims: tuple[int | None], gram: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """All clients at once."""
        return _Eigh.apply(gram.movedim(in_dims[0] or 0, 0)), (0, 0)


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Return |x_i - y_j|^2 [B, C] between rows of x [B, d] and y [C, d]."""
    return x.square().sum(1).unsqueeze(1) + y.square().sum(1) - 2 * x @ y.t()


def discrepancy(x: Tensor, y: Tensor, batch: Batch, widths: Iterable[float | Tensor]) -> Tensor:
    """Return the squared maximum mean discrepancy between the rows of x and y [B, d] that are real samples.

    The kernel is sum_a exp(-|z - z'|^2 / a) over `widths` a; means are over all pairs.
    """
    widths = tuple(widths)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        squared = squared_distances(a, b)
        return torch.stack([(-squared / width).exp() for width in widths]).sum(0)

    return batch.mean(batch.mean(kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)))


def complementarity(U: Tensor, greedy: bool = False) -> Tensor:
    """Return C_ij = cos(mean_l phi_l) [C, C] from bases U [C, d, k], over as many angles as the smaller has directions.

    cos phi_l is the l-th singular value of U_i^T U_j, or, if `greedy`, the next largest of its signed entries with rows
    and columns used once. 0 for a client without directions, 1 on the diagonal.
    """
    U = U.mT.contiguous().mT  # by columns, as eigh leaves them: sums do not depend on who stacked the clients
    U = U.to(torch.float64)
    products = torch.einsum("ida,jdb->ijab", U, U)
    ranks = (U.square().sum(1) > 0.5).sum(1)
    count = torch.minimum(ranks.unsqueeze(0), ranks.unsqueeze(1))  # [C, C]
    cosines = _greedy(products, U) if greedy else torch.linalg.svdvals(products)
    counted = torch.arange(U.shape[2], device=U.device) < count.unsqueeze(2)
    angles = cosines.clamp(-1, 1).arccos() * counted
    C = (angles.sum(2) / count.clamp(min=1)).cos()
    return C.masked_fill(count == 0, 0.0).fill_diagonal_(1.0)


def _greedy(products: Tensor, U: Tensor) -> Tensor:
    """Return the code's matching: k picks [C, C, k] of products [C, C, k, k], missing directions last."""
    k = U.shape[2]
    missing = U.square().sum(1) < 0.5  # [C, k]
    left = products.masked_fill(missing.view(-1, 1, k, 1) | missing.view(1, -1, 1, k), -2.0).clone()
    picks = []
    for _ in range(k):
        value, index = left.flatten(2).max(2)
        picks.append(value)
        used = functional.one_hot(index // k, k).bool().unsqueeze(3)
        used = used | functional.one_hot(index % k, k).bool().unsqueeze(2)
        left = left.masked_fill(used, -3.0)
    return torch.stack(picks, dim=2)
