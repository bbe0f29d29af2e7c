"""Training that diverged: told by losses, trees and scores that are not finite, and raised for the client they are of.

Scores need no wait of their own for a device: a sample whose scores are not finite counts as nan, so the counts tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedbench.core.errors import Diverged
from fedbench.core.trees import Tree


def diverged(completed: int, who: str, what: str) -> Diverged:
    """The error for `what` of `who` in the round that is number `completed` (0: before the first) of the run's."""
    return Diverged(
        f"training diverged in round {completed} on {who}: {what} not finite; lower protocol.optimizer.lr or set "
        "protocol.optimizer.clip, or lower the method's own learning rate"
    )


def norms(*trees: Tree) -> Tensor:
    """The norm of each floating point leaf [C, ...] of `trees`: finite only if the leaf is, but for overflow."""
    floats = [leaf for tree in trees for leaf in tree.values() if leaf.is_floating_point()]
    return torch.stack(torch._foreach_norm(floats)) if floats else torch.zeros(1)


def check_finite(completed: int, ids: Tensor, loss: Tensor, *trees: Tree) -> None:
    """Raise Diverged for the first of the clients `ids` [C] whose `loss` [C] or row of `trees` is not finite."""
    leaves = [(name, leaf) for tree in trees for name, leaf in tree.items()]
    for row, client in enumerate(ids.tolist()):
        bad = [name for name, leaf in leaves if not bool(leaf[row].isfinite().all())]
        if bad or not bool(loss[row].isfinite()):
            what = f"leaf '{bad[0]}' is" if bad else "the training loss is"
            raise diverged(completed, f"client {client}", what)


def samples(scores: Tensor) -> Tensor:
    """What each sample with `scores` [..., K] counts, float64 [...]: 1, or nan where one of them is not finite."""
    wrong = ~scores.isfinite().all(-1)
    return torch.ones_like(wrong, dtype=torch.float64).masked_fill(wrong, torch.nan)


def check_scores(completed: int, ids: Tensor, totals: Sequence[Tensor]) -> None:
    """Raise Diverged for the first of the clients `ids` [C] with a nan in its row of a total [C, K], on the CPU."""
    wrong = [total.isnan().any(1) for total in totals]
    if wrong and bool((rows := torch.stack(wrong).any(0)).any()):
        raise diverged(completed, f"client {int(ids[rows][0])}", "its model's scores are")
