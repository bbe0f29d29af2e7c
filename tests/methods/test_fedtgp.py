"""FedTGP beside its rounds: margins by hand, prototypes that find the class means."""

from __future__ import annotations

import math

import pytest
import torch

from fedbench.core import rng, trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup
from fedbench.methods.fedtgp import FedTGP, contrast, largest_gap, prototypes
from fedbench.models.task import Task
from tests.methods.toys import (
    federation,
    setup,
)

SIZES = (6, 13, 8)
LABELS = [[0, 1], [1, 2], [1]]  # class 3 is nobody's


def _parts(chosen: Setup) -> tuple[Task, Population, torch.Generator]:
    return chosen.task, chosen.population, rng.torch_rng(chosen.seed, "init")


def test_the_largest_gap_by_hand() -> None:
    """On a line at 0, 1 and 4: nearest others are 1, 1 and 3 away."""
    line = torch.tensor([[0.0], [1.0], [4.0]])
    assert float(largest_gap(line)) == 3
    assert float(largest_gap(line[[0, 0, 0]])) == 0
    assert math.isinf(float(largest_gap(line[:1])))


def test_two_classes_alike_do_not_stop_the_server() -> None:
    """A prototype upon its T has a distance of zero, where a root has no slope."""
    point, label = torch.zeros(1, 2), torch.tensor([0])
    T = torch.zeros(2, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(contrast(point, label, T, torch.zeros(())), T)
    assert bool(slope.isfinite().all())


@pytest.mark.slow
def test_many_epochs_bring_each_prototype_nearest_to_its_own_class() -> None:
    """Three clients whose prototypes of class j lie around 3 times the j-th axis; class 3 is nobody's."""
    method = FedTGP(epochs=300, lr=0.05, batch=2)
    chosen = setup(method, federation(SIZES, labels=LABELS))
    server, _ = method.init(*_parts(chosen))
    server = {name: leaf.double() for name, leaf in server.items()}
    points = 3 * torch.eye(4, 7, dtype=torch.float64) + 0.3 * torch.randn(3, 4, 7, generator=torch.Generator())
    counts = torch.tensor([[2.0, 5.0, 1.0, 0.0]] * 3, dtype=torch.float64)
    uploads = {"sums": points * counts.unsqueeze(2), "counts": counts}
    after = method.aggregate(server, uploads, chosen.cohort(torch.arange(3), Clock(0, 1)))

    def wrong(state: Tree) -> int:
        T = prototypes(trees.part(state, "tgp"))
        return sum(int((T - p[j]).square().sum(1).argmin()) != j for p in points for j in range(3))

    assert wrong(after) == 0 < wrong(server)
