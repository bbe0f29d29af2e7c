"""FedFomo's choices: whose models a client receives, and how it weighs them (Zhang et al., ICLR 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Cohort
from fedbench.methods.parts import passes
from fedbench.models.task import Task

SMALLEST = 1e-12  # squared distance below which two models are the same: no weight


def peers(P: Tensor, cohort: Cohort, M: int, epsilon: float) -> Tensor:
    """Ids [C, M] of those highest in the cohort's rows of P [N, N]; a client's own where there are no others.

    Ties are broken by lot, and with probability `epsilon` a candidate's rank is drawn.
    """
    shape = (len(cohort.ids), len(P))
    lot = torch.rand(shape, generator=cohort.generator, dtype=torch.float64)
    explored = torch.rand(shape, generator=cohort.generator) < epsilon
    shuffled = lot.argsort(1)
    order = P[cohort.ids].gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
    rank = shuffled.gather(1, order).argsort(1).to(torch.float64)
    rank = torch.where(explored, lot * len(P), rank)
    served = torch.zeros(len(P), dtype=torch.bool).index_fill(0, cohort.served, True)
    own = cohort.ids.unsqueeze(1)
    rank = rank.masked_fill(~served | (torch.arange(len(P)) == own), torch.inf)
    best = rank.topk(min(M, len(P) - 1), dim=1, largest=False)
    return torch.where(best.values.isinf(), own, best.indices)


def weights(own: Tree, models: Tree, data: Batch, task: Task) -> Tensor:
    """The weights w_n [M] of `models` [M, ...] for a client with model `own`, by their losses on `data`."""
    theta = task.weights(own)
    before = passes.mean_loss(own, data, task)
    found = []
    for n in range(len(next(iter(models.values()), []))):
        model = {**own, **trees.row(models, n)}
        squared = trees.squared_distance(theta, model)
        gain = before - passes.mean_loss(model, data, task)
        found.append(torch.where(squared > SMALLEST, gain / squared.clamp(min=SMALLEST).sqrt(), 0.0))
    return torch.stack(found) if found else before.new_zeros(0)


def combined(own: Tree, models: Tree, weights: Tensor) -> Tree:
    """`own`, moved towards the `models` [M, ...] by the shares of their positive weights."""
    positive = weights.clamp(min=0)
    share = positive / positive.sum().clamp(min=torch.finfo(weights.dtype).tiny)
    moved = {
        name: own[name] + torch.tensordot(share, leaf - own[name], dims=1) for name, leaf in models.items()
    }
    return {**own, **moved}
