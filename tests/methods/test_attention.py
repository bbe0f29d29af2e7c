"""FedAMP and FedFomo, which weigh the models of others: limits, rounds by hand, traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedbench.config.schema import OptimizerConfig
from fedbench.core import trees
from fedbench.core.trees import Tree
from fedbench.data.federation import Federation, Ragged
from fedbench.engine.contract import Clock
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.fedamp import FedAMP
from fedbench.methods.fedfomo import FedFomo
from fedbench.methods.local import Local
from tests.methods.quadratics import minima, quadratic
from tests.methods.toys import (
    FOUR,
    close,
    cross_entropy,
    descend,
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

LR = 0.1
FULL: dict[str, Any] = {"epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=LR)}


@pytest.mark.parametrize("attention", ["cosine", "distance"])
def test_without_its_pull_fedamp_is_local(attention: str) -> None:
    local = final(Local(), cohort=0.5)
    assert close(final(FedAMP(lam=0.0, attention=attention), cohort=0.5), local)
    assert gap(final(FedAMP(attention=attention, sigma=0.5), cohort=0.5), local) > 1e-4


def test_attending_to_itself_fedamp_is_a_proximal_point_method() -> None:
    """One step a round from u_i = w_i feels no pull: Local."""
    assert close(final(FedAMP(self_weight=1.0), **FULL), final(Local(), **FULL))
    assert gap(final(FedAMP(self_weight=0.5), **FULL), final(Local(), **FULL)) > 1e-4


def test_attention_by_hand() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 2.0], [4.0, -3.0]], dtype=torch.float64)
    e = [np.exp(2 * c) for c in (0.8, 0.0, -0.6)]  # pairs 01, 02, 12
    expected = [
        [0.3, 0.7 * e[0] / (e[0] + e[1]), 0.7 * e[1] / (e[0] + e[1])],
        [0.7 * e[0] / (e[0] + e[2]), 0.3, 0.7 * e[2] / (e[0] + e[2])],
        [0.7 * e[1] / (e[1] + e[2]), 0.7 * e[2] / (e[1] + e[2]), 0.3],
    ]
    assert close(FedAMP(sigma=2.0).attend(rows), torch.tensor(expected, dtype=torch.float64))
    sigma, alpha = 20.0, 5.0
    found = FedAMP(attention="distance", sigma=sigma, alpha=alpha).attend(rows)
    others = {(0, 1): 13.0, (0, 2): 50.0, (1, 2): 41.0}
    for (i, j), squared in others.items():
        xi = alpha / sigma * np.exp(-squared / sigma)
        assert [float(found[i, j]), float(found[j, i])] == pytest.approx([xi, xi])
    assert found.sum(1).tolist() == pytest.approx([1.0] * 3)
    greedy = FedAMP(attention="distance", sigma=sigma, alpha=1e4).attend(rows)
    assert greedy.diagonal().tolist() == [0.0] * 3
    assert greedy.sum(1).tolist() == pytest.approx([1.0] * 3)


def test_two_rounds_of_fedamp_by_hand() -> None:
    """Quadratic clients, one step a round: w - lr (a_i (w - e_i) + lambda / alpha (w - u_i))."""
    lam, alpha, sigma = 3.0, 2.0, 0.7
    method = FedAMP(attention="distance", lam=lam, alpha=alpha, sigma=sigma)
    chosen = quadratic(method, (3, 4), [(10, 200), (90, 40)], [1, 2], rounds=2, **FULL)
    e, curvature = minima(chosen), torch.tensor([[1.0], [2.0]])
    w = u = initial(chosen)["head.bias"].expand(2, -1)
    for _ in range(2):
        w = w - LR * (curvature * (w - e) + lam / alpha * (w - u))
        xi = alpha / sigma * float(torch.exp(-(w[0] - w[1]).square().sum() / sigma))
        xi = min(xi, 1.0)
        u = torch.stack([(1 - xi) * w[0] + xi * w[1], (1 - xi) * w[1] + xi * w[0]])
    state = simulate(chosen)
    assert close(models(chosen, state)["head.bias"], w)
    assert close(chosen.method.send(state.server, chosen.cohort(torch.arange(2), Clock(2, 2)))["head.bias"], u)


def validated(sizes: tuple[int, ...] = FOUR, empty: tuple[int, ...] = ()) -> Federation:
    """Clients with three validation samples, but for those in `empty`."""
    data = federation(sizes)
    held = [data.sets["val"][k].numpy()[: 0 if k in empty else 3] for k in range(len(sizes))]
    data.sets["val"] = Ragged.of(held, data.device)
    return data


def loss(w: Tree, chosen: Setup, client: int) -> float:
    x, y = chosen.federation.gather(chosen.federation.validation_indices(client))
    return float(cross_entropy(logits(w, x), y))


def test_a_round_of_fedfomo_by_hand() -> None:
    """Round 1 trains alone; in round 2 each client weighs the two others."""
    method = FedFomo(M=2, epsilon=0.0)
    chosen = setup(method, validated((6, 13, 8), empty=(1,)), rounds=2, **FULL)
    data = [samples(chosen, k) for k in range(3)]

    def trained(k: int, w: Tree) -> Tree:
        return descend(lambda v: cross_entropy(logits(v, data[k][0]), data[k][1]), w, LR)

    first = [trained(k, initial(chosen)) for k in range(3)]
    P, second = np.zeros((3, 3)), []
    for i in range(3):
        for n in range(3):
            if n != i:
                apart = torch.cat([(first[n][k] - first[i][k]).flatten() for k in sorted(first[i])]).norm()
                P[i, n] = (loss(first[i], chosen, i) - loss(first[n], chosen, i)) / float(apart)
        share = np.maximum(P[i], 0) / max(np.maximum(P[i], 0).sum(), 1e-300)
        start = {k: v + sum(share[n] * (first[n][k] - v) for n in range(3)) for k, v in first[i].items()}
        second.append(trained(i, start))
    assert (P > 0).any()
    assert (P < 0).any()
    state = simulate(chosen)
    np.testing.assert_allclose(state.server["P"].numpy(), P, atol=1e-12)
    found = models(chosen, state)
    for i in range(3):
        assert close(trees.row(found, i), second[i])
    W = chosen.method.collaboration(state.server, chosen.population)
    assert W is not None
    assert close(W.sum(1), torch.ones(3, dtype=torch.float64))


def test_stacked_fedfomo_reads_the_same_validation_samples() -> None:
    chosen = setup(FedFomo(M=2), validated(empty=(1, 3)), rounds=3, cohort=0.75)
    looped, stacked = simulate(chosen), simulate(chosen, StackedTrainer(chosen, 3))
    assert close(looped.server, stacked.server)
    assert close(looped.memory, stacked.memory)
    full = setup(FedFomo(M=2), validated(), rounds=3, cohort=0.75)
    assert gap(simulate(full).server, looped.server) > 1e-6


def test_a_lone_client_is_local_and_a_client_takes_nothing_from_worse_models() -> None:
    assert close(final(FedFomo(), (9,)), final(Local(), (9,)))
    labels = [[0], [1], [2], [3]]  # nobody's model helps on another's only class
    chosen, local = (setup(each, federation(FOUR, labels=labels), rounds=3, epochs=8) for each in (FedFomo(), Local()))
    state = simulate(chosen)
    assert close(models(chosen, state), models(local, simulate(local)))
    assert float(state.server["P"].max()) <= 0


def test_the_best_known_are_sent_and_others_by_lot() -> None:
    chosen = setup(FedFomo(), federation((3,) * 6))
    P = torch.tensor([[0.0, 5.0, -1.0, 3.0, 0.0, 4.0]] + [[0.0] * 6] * 5, dtype=torch.float64)
    cohort = chosen.cohort(torch.arange(6), Clock(0, 50))
    assert sorted(FedFomo(M=3, epsilon=0.0).peers(P, cohort)[0].tolist()) == [1, 3, 5]
    for epsilon in (0.0, 1.0):
        sent = [
            tuple(
                sorted(FedFomo(M=2, epsilon=epsilon).peers(P, chosen.cohort(torch.arange(6), Clock(t, 50)))[4].tolist())
            )
            for t in range(20)
        ]
        assert len(set(sent)) > 3  # ties, and exploration, are by lot
        assert all(4 not in each and len(set(each)) == 2 for each in sent)
    explored = [
        tuple(FedFomo(M=2, epsilon=1.0, decay=0.1).peers(P, chosen.cohort(torch.arange(6), Clock(t, 50)))[0].tolist())
        for t in range(20)
    ]
    assert len(set(map(frozenset, explored[:10]))) > 1
    assert set(map(frozenset, explored[10:])) == {frozenset({1, 5})}


def test_fedfomos_traffic_is_m_models_down_and_one_up() -> None:
    chosen = setup(FedFomo(M=2), federation(FOUR), rounds=3)
    state = simulate(chosen)
    model = 8 * sum(v.numel() for v in initial(chosen).values())
    assert state.bytes_down == 3 * 4 * (2 * model + 2 * 8)
    assert state.bytes_up == 3 * 4 * (model + 2 * 8 + 2 * 8)
