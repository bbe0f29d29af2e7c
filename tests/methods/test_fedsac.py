"""FedSaC and pFedGraph: limits, and rounds by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.errors import FedbenchError
from fedbench.core.trees import Tree
from fedbench.engine.setup import Setup
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedsac import FedSaC
from fedbench.methods.local import Local
from fedbench.methods.pfedgraph import PFedGraph
from tests.methods.toys import (
    FOUR,
    close,
    cross_entropy,
    derivative,
    federation,
    final,
    gap,
    initial,
    logits,
    models,
    samples,
    setup,
    simulate,
)


def test_without_similarity_complementarity_and_pull_it_is_fedavg() -> None:
    assert close(final(FedSaC(alpha=0.0, beta=0.0, lam=0.0)), final(FedAvg()))
    assert close(final(PFedGraph(alpha=1e9, lam=0.0)), final(FedAvg()), 1e-7)
    assert gap(final(FedSaC(lam=0.0)), final(FedAvg())) > 1e-4


def test_with_all_weight_on_similarity_it_is_local() -> None:
    assert close(final(FedSaC(alpha=0.0, beta=1e9, lam=0.0)), final(Local()))
    assert close(final(PFedGraph(alpha=1e-9, lam=0.0, snap=None)), final(Local()))


def test_without_complementarity_it_is_pfedgraph() -> None:
    same: dict[str, Any] = {"lam": 0.3, "similarity": "updates", "snap": 0.9}
    assert close(final(FedSaC(alpha=0.0, beta=1 / 0.8, **same)), final(PFedGraph(alpha=0.8, **same)))


LR = 0.1
FULL: dict[str, Any] = {"epochs": 2, "batch": 50, "optimizer": OptimizerConfig(lr=LR)}


def length(w: Tree) -> torch.Tensor:
    return torch.cat([w[k].flatten() for k in sorted(w)]).norm()


def inner(a: Tree, b: Tree) -> torch.Tensor:
    return torch.cat([a[k].flatten() for k in sorted(a)]) @ torch.cat([b[k].flatten() for k in sorted(a)])


def nothing(_: Tree) -> float:
    return 0.0


def two_steps(chosen: Setup, client: int, start: Tree, term: Any) -> Tree:
    """Gradient descent on F(w) + term(w) over all of a client's samples."""
    x, y = samples(chosen, client)
    w = start
    for _ in range(2):
        slope = derivative(lambda w: cross_entropy(logits(w, x), y) + term(w), w)
        w = {k: w[k] - LR * slope[k] for k in w}
    return w


def test_the_pull_by_hand() -> None:
    """A round of two clients: both train on F_i - lambda cos(w, w_0), then W mixes."""
    lam = 3.0
    chosen = setup(FedSaC(lam=lam), federation((6, 9)), rounds=1, **FULL)
    w = initial(chosen)

    def pull(v: Tree) -> torch.Tensor:
        return -lam * inner(v, w) / (length(v) * length(w))

    trained = [two_steps(chosen, k, w, pull) for k in (0, 1)]
    assert gap(trained[0], two_steps(chosen, 0, w, nothing)) > 1e-4
    state = simulate(chosen)
    W = chosen.method.collaboration(state.server, chosen.population)
    assert W is not None
    assert 0 < float(W[0, 1]) < 1
    found = models(chosen, state)
    for i in (0, 1):
        expected = {k: W[i, 0] * trained[0][k] + W[i, 1] * trained[1][k] for k in w}
        assert close(trees.row(found, i), expected)


def test_the_codes_push_by_hand() -> None:
    """Round 1 is plain; round 2 adds lambda <sum_j W_ij w_j / |w_j|, w> / |w|."""
    lam = 3.0
    method = FedSaC(lam=lam, attract=False, reference="directions", from_round=1)
    chosen = setup(method, federation((6, 9)), rounds=2, **FULL)
    w = initial(chosen)
    first = [two_steps(chosen, k, w, nothing) for k in (0, 1)]
    once = setup(method, federation((6, 9)), rounds=1, **FULL)
    W = once.method.collaboration(simulate(once).server, once.population)
    assert W is not None
    second = []
    for i in (0, 1):
        mixed = {k: W[i, 0] * first[0][k] + W[i, 1] * first[1][k] for k in w}
        towards = {k: sum(W[i, j] * first[j][k] / length(first[j]) for j in (0, 1)) for k in w}
        second.append(
            two_steps(chosen, i, mixed, lambda v, towards=towards: lam * inner(towards, v) / length(v))  # type: ignore[misc]
        )
    state = simulate(chosen)
    W = chosen.method.collaboration(state.server, chosen.population)
    assert W is not None
    found = models(chosen, state)
    for i in (0, 1):
        assert close(trees.row(found, i), {k: W[i, 0] * second[0][k] + W[i, 1] * second[1][k] for k in w})


def test_traffic_is_the_model_and_the_subspace() -> None:
    chosen = setup(FedSaC(k=2), federation(FOUR), rounds=3)
    state = simulate(chosen)
    parameters = sum(v.numel() for v in initial(chosen).values())
    assert state.bytes_up == 3 * 4 * 8 * (parameters + 7 * 2)
    assert state.bytes_down == 3 * 4 * 8 * parameters


@pytest.mark.parametrize(
    "wrong",
    [
        {"angles": "acute"},
        {"reference": "none"},
        {"similarity": "x"},
        {"solver": "x"},
        {"k": 0},
        {"lam": -1.0},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FedbenchError):
        FedSaC(**wrong)
    with pytest.raises(FedbenchError):
        PFedGraph(alpha=0.0)
