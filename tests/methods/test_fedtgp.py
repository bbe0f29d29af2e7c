"""FedTGP: without its pull Local, a server's step by hand, margins by hand, prototypes that find the class means."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Population
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import State
from fedbench.methods.fedtgp import FedTGP, contrast, largest_gap, prototypes
from fedbench.methods.local import Local
from fedbench.models.task import Task
from tests.methods.toys import (
    close,
    cross_entropy,
    descend,
    features,
    federation,
    initial,
    logits,
    models,
    samples,
    setup,
    simulate,
)

SIZES = (6, 13, 8)
LABELS = [[0, 1], [1, 2], [1]]  # class 3 is nobody's
WHOLE = {"rounds": 1, "epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=0.1)}
ONE = FedTGP(epochs=1, batch=100, lr=0.5, lam=2.0)


def run(method: Method, **options: object) -> tuple[Setup, State]:
    chosen = setup(method, federation(SIZES, labels=LABELS), **options)  # type: ignore[arg-type]
    return chosen, simulate(chosen)


def test_without_its_pull_and_by_the_head_it_is_local() -> None:
    assert close(models(*run(FedTGP(lam=0.0, epochs=2, inference="head"))), models(*run(Local())))


def made(tgp: Tree) -> Tensor:
    """T, written out."""
    hidden = torch.relu(tgp["embedding"] @ tgp["0.weight"].t() + tgp["0.bias"])
    return hidden @ tgp["1.weight"].t() + tgp["1.bias"]


def received(chosen: Setup, state: State) -> list[tuple[int, Tensor]]:
    """(class, mean feature) of each client and class, from its model and data."""
    found = []
    for k in range(3):
        x, y = samples(chosen, k)
        z = features(trees.row(state.memory, k), x)
        found += [(label, z[y == label].mean(0)) for label in y.unique().tolist()]
    return found


@pytest.mark.parametrize("cap", [100.0, 0.01])
def test_a_step_of_the_server_and_what_clients_make_of_it_by_hand(cap: float) -> None:
    method = FedTGP(epochs=1, batch=100, lr=0.5, lam=2.0, margin=cap)
    fresh, _ = method.init(*_parts(setup(method, federation(SIZES, labels=LABELS))))
    start = {name: leaf.double() for name, leaf in trees.part(fresh, "tgp").items()}
    chosen, state = run(method, **WHOLE)
    pairs = received(chosen, state)
    centres = [torch.stack([p for c, p in pairs if c == label]).mean(0) for label in (0, 1, 2)]
    nearest = [min(float((a - b).norm()) for b in centres if b is not a) for a in centres]
    margin = min(max(nearest), cap)

    def loss(tgp: Tree) -> Tensor:
        T, total = made(tgp), torch.zeros((), dtype=torch.float64)
        for label, p in pairs:
            apart = torch.stack([(p - t).norm() + (margin if j == label else 0.0) for j, t in enumerate(T)])
            total = total + apart[label] + (-apart).logsumexp(0)
        return total / len(pairs)

    stepped = descend(loss, start, 0.5, moves=("embedding", "0", "1"))
    assert close(trees.part(state.server, "tgp"), stepped)
    message = method.send(state.server, chosen.cohort(torch.arange(3), Clock(1, 2)))
    assert bool(message["classes/present"].all()), "also of class 3, which nobody has"
    T = made(stepped)
    x, y = samples(chosen, 0)
    once = trees.row(state.memory, 0)
    expected = descend(
        lambda w: cross_entropy(logits(w, x), y) + 2.0 * (features(w, x) - T[y]).square().mean(), once, 0.1
    )
    assert close(trees.row(run(method, **{**WHOLE, "rounds": 2})[1].memory, 0), expected)


def _parts(chosen: Setup) -> tuple[Task, Population, torch.Generator]:
    return chosen.task, chosen.population, rng.torch_rng(chosen.seed, "init")


def test_nothing_pulls_before_the_server_has_trained() -> None:
    chosen, state = run(ONE, **WHOLE)
    for k in range(3):
        x, y = samples(chosen, k)
        alone = descend(lambda w, x=x, y=y: cross_entropy(logits(w, x), y), initial(chosen), 0.1)
        assert close(trees.row(state.memory, k), alone)


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
