"""cwFedAvg: rounds by loops over clients and classes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedbench.core.trees import Tree
from fedbench.methods.cwfedavg import CwFedAvg
from tests.methods.test_histories import LR, SIZES, average, combined, loss_on, played, same, stacked
from tests.methods.toys import BODY, HEAD, close, descend, federation, initial, samples

FOUR = range(4)


def lengths(w: Tree) -> list[Tensor]:
    """p~ of a model: the length of each row of its output layer, over their sum."""
    each = [(row * row).sum().sqrt() for row in w["head.weight"]]
    return [length / sum(each) for length in each]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("empirical", [False, True])
def test_rounds_of_cwfedavg(empirical: bool, whole: bool) -> None:
    """Clients 0 to 3, of whom three take part: class 2 has no client of its own in a round without the second."""
    lam, own = 0.7, sorted([*BODY, *HEAD]) if whole else HEAD
    method = CwFedAvg(
        lam=lam, classwise=("*",) if whole else ("@head",), distribution="empirical" if empirical else "approximated"
    )
    chosen, found = played(method, data=federation(SIZES, labels=[[0], [0, 1], [1, 2], [3, 0]]), rounds=4)
    data = [samples(chosen, k) for k in FOUR]
    counted = [[float((data[k][1] == c).double().mean()) for c in FOUR] for k in FOUR]
    shares = found[0].memory["own/shares"]
    assert close(shares, torch.tensor(counted, dtype=torch.float64), 1e-7)  # kept in single precision
    server = initial(chosen)
    p = [[float(v) for v in (counted[k] if empirical else lengths(server))] for k in FOUR]
    classes = [{n: server[n] for n in own} for _ in FOUR]

    def mixtures() -> list[Tree]:
        return [{**server, **combined(p[k], classes, own)} for k in FOUR]

    away = 0
    for each in found:
        received = mixtures()
        same(each.message, stacked([received[k] for k in each.ids]))
        trained: dict[int, Tree] = {}
        for k in each.ids:

            def loss(w: Tree, k: int = k) -> Tensor:
                gaps = [(shares[k][c] - share) ** 2 for c, share in enumerate(lengths(w))]
                return loss_on(data[k])(w) + lam / 2 * sum(gaps) ** 0.5

            trained[k] = descend(loss, received[k], LR)
            if not empirical:
                p[k] = [float(v) for v in lengths(trained[k])]
        same(each.uploads, stacked([trained[k] for k in each.ids]))
        server = average(trained)
        for c in FOUR:
            counts = [SIZES[k] * p[k][c] for k in each.ids]
            if sum(counts) > 0:
                classes[c] = combined([n / sum(counts) for n in counts], [trained[k] for k in each.ids], own)
            else:
                away += 1
        same({n: leaf for n, leaf in each.server.items() if n == "p"}, {"p": torch.tensor(p, dtype=torch.float64)})
        same(each.scored, stacked(mixtures()))
    assert (away > 0) is empirical, "no class is without a client"


def test_clients_of_one_class_share_an_output_layer_with_its_others_alone() -> None:
    """True shares, one class a client: every class's model is an average of its own clients."""
    method = CwFedAvg(distribution="empirical", lam=0.0)
    chosen, found = played(method, cohort=4, rounds=1, data=federation(SIZES, labels=[[0], [1], [0], [2]]))
    w = initial(chosen)
    trained = [descend(loss_on(samples(chosen, k)), w, LR) for k in FOUR]
    pair = combined([5 / 13, 8 / 13], [trained[0], trained[2]], HEAD)
    heads = [pair, trained[1], pair, trained[3]]
    same({n: found[0].scored[n] for n in HEAD}, stacked(heads, HEAD))
