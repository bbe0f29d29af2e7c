"""FedNTD and Finetune by hand; statistics and fixed points of FedNova, SCAFFOLD and FedDyn."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.errors import ConfigError
from fedbench.engine import schedule
from fedbench.engine.contract import Stage
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.feddyn import FedDyn
from fedbench.methods.fednova import FedNova, accumulation
from fedbench.methods.fedntd import FedNTD
from fedbench.methods.finetune import Finetune
from fedbench.methods.moon import Moon
from fedbench.methods.scaffold import Scaffold
from fedbench.models.small import LeNet5
from tests.helpers.tiers import sampled
from tests.methods.quadratics import CURVED, POINTS, UNEQUAL, bias, counted, minima, quadratic
from tests.methods.toys import (
    adapted,
    close,
    cross_entropy,
    descend,
    federation,
    gap,
    initial,
    logits,
    models,
    samples,
    setup,
    simulate,
)


def ntd(x: Tensor, y: Tensor, received: trees.Tree, beta: float, tau: float, w: trees.Tree) -> Tensor:
    total = cross_entropy(logits(w, x), y)
    own, target = (logits(model, x) / tau for model in (w, received))
    for i, label in enumerate(y.tolist()):
        others = [c for c in range(own.shape[1]) if c != label]
        q, p = own[i, others].softmax(0), target[i, others].softmax(0)
        total = total + beta * tau**2 / len(y) * (p * (p / q).log()).sum()
    return total


def test_two_rounds_of_fedntd_by_hand() -> None:
    lr, beta, tau = 0.2, 3.0, 0.5
    options: dict[str, Any] = {"rounds": 2, "epochs": 2, "batch": 50, "optimizer": OptimizerConfig(lr=lr)}
    chosen = setup(FedNTD(beta=beta, tau=tau), federation((5, 9)), **options)
    w = initial(chosen)
    for _ in range(2):
        trained = []
        for k in (0, 1):
            x, y = samples(chosen, k)
            loss = partial(ntd, x, y, w, beta, tau)
            trained.append(descend(loss, descend(loss, w, lr), lr))
        w = {name: (5 * trained[0][name] + 9 * trained[1][name]) / 14 for name in w}
    assert close(simulate(chosen).server, w)


def test_finetune_trains_as_fedavg_and_scores_after_two_plain_steps() -> None:
    chosen = setup(Finetune(steps=2), rounds=2)
    state = simulate(chosen)
    assert close(state.server, simulate(setup(FedAvg(), rounds=2)).server, 0)
    tuned = adapted(chosen, state)
    for k in range(5):
        w = state.server
        x, y = samples(chosen, k)
        keyed = rng.torch_rng(0, "adapt", 2, k, 0)
        order = schedule.batches(len(y), chosen.protocol.local, Stage(iterations=2), keyed)
        assert len(order) == 2
        for rows in order:
            w = descend(lambda v, r=rows, x=x, y=y: cross_entropy(logits(v, x[r]), y[r]), w, 0.1)
        assert close(trees.row(tuned, k), w)


def test_finetune_without_steps_is_fedavg_and_tunes_what_it_is_told() -> None:
    still = setup(Finetune(steps=0), rounds=2)
    state = simulate(still)
    assert close(adapted(still, state), models(still, state), 0)
    head = setup(Finetune(steps=None, epochs=3, tuned=("@head",), lr=0.5), rounds=1)
    state = simulate(head)
    tuned, before = adapted(head, state), models(head, state)
    assert close(tuned["fc.0.weight"], before["fc.0.weight"], 0)
    assert gap({"": tuned["head.weight"]}, {"": before["head.weight"]}) > 1e-2


def test_linear_probing_then_fine_tuning_by_hand() -> None:
    """Two steps on the head, and then two on all leaves, with other mini-batches; nothing of it lasts."""
    chosen = setup(Finetune(steps=2, probed=("@head",)), rounds=1)
    state = simulate(chosen)
    assert close(state.server, simulate(setup(FedAvg(), rounds=1)).server, 0)
    tuned = adapted(chosen, state)
    for k in range(5):
        w = state.server
        x, y = samples(chosen, k)
        for order, moves in ((1, ("head",)), (0, ("fc", "head"))):
            keyed = rng.torch_rng(0, "adapt", 1, k, order)
            for rows in schedule.batches(len(y), chosen.protocol.local, Stage(iterations=2, order=order), keyed):
                w = descend(lambda v, r=rows, x=x, y=y: cross_entropy(logits(v, x[r]), y[r]), w, 0.1, moves)
        assert close(trees.row(tuned, k), w)


@pytest.mark.parametrize("method", [FedNova(), Scaffold(option=1), FedDyn(), Moon()])
def test_running_statistics_are_shared_and_averaged(method: Any) -> None:
    """Of two equal clients after one round: all four methods leave the mean of the clients' statistics."""
    data = federation((6, 6), (1, 16, 16))
    options: dict[str, Any] = {"rounds": 1, "epochs": 1, "model": LeNet5(batch_norm=True)}
    chosen = setup(method, data, **options)
    common = chosen.method.common(simulate(chosen).server, chosen.task)
    fedavg = simulate(setup(FedAvg(), data, **options)).server
    assert common is not None
    names = sorted(chosen.task.buffers)
    assert names
    assert all(close(common[name], fedavg[name], 1e-12) for name in names)
    assert gap({"": fedavg[names[0]]}, {"": initial(chosen)[names[0]]}) > 1e-2


def test_two_rounds_of_feddyn_with_a_private_head_by_hand() -> None:
    """The head has no dynamic terms, and stays on its client."""
    lr, alpha = 0.2, 0.7
    options: dict[str, Any] = {"rounds": 2, "epochs": 2, "batch": 50, "optimizer": OptimizerConfig(lr=lr)}
    chosen = setup(FedDyn(alpha=alpha, private=("@head",)), federation((5, 9)), **options)
    received = {name: leaf for name, leaf in initial(chosen).items() if name.startswith("fc")}
    heads = [{name: leaf for name, leaf in initial(chosen).items() if name not in received}] * 2
    drift = {name: torch.zeros_like(leaf) for name, leaf in received.items()}
    states = [dict(drift)] * 2
    for _ in range(2):
        trained = []
        for k in (0, 1):
            x, y = samples(chosen, k)

            def loss(v: trees.Tree, x: Tensor = x, y: Tensor = y, state: trees.Tree = states[k]) -> Tensor:
                pulls = [(v[n] - w).square().sum() / 2 - (state[n] * v[n]).sum() for n, w in received.items()]  # noqa: B023
                return cross_entropy(logits(v, x), y) + alpha * sum(pulls)

            trained.append(descend(loss, descend(loss, {**received, **heads[k]}, lr), lr))
        heads = [{name: w[name] for name in heads[0]} for w in trained]
        states = [
            {n: state[n] - (w[n] - received[n]) for n in received} for state, w in zip(states, trained, strict=True)
        ]
        mean = {name: (trained[0][name] + trained[1][name]) / 2 for name in received}
        drift = {name: drift[name] + mean[name] - received[name] for name in received}
        received = {name: mean[name] + drift[name] for name in received}
    found = simulate(chosen)
    assert close(trees.part(found.server, "model"), received)
    for k in (0, 1):
        assert close(trees.row(found.memory, k), {**states[k], **heads[k]})


# ---- fixed points

EQUAL = (9, 9, 9)
ONE = OptimizerConfig(lr=0.1)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_accumulation_counts_a_constant_gradient(momentum: float) -> None:
    optimizer = OptimizerConfig(lr=0.1, momentum=momentum)
    for steps in (1, 2, 7, 40):
        found = accumulation(torch.tensor(float(steps)), optimizer, "x")
        assert float(found) == pytest.approx(counted(steps, momentum), rel=1e-12)
    with pytest.raises(ConfigError, match="defined for SGD"):
        accumulation(torch.ones(()), OptimizerConfig(name="adam"), "fednova")


@pytest.mark.parametrize("method", [FedNova(), Scaffold()])
def test_momentum_that_goes_on_from_the_last_round_is_refused_where_it_would_be_counted_from_zero(method: Any) -> None:
    """SCAFFOLD's option I counts none."""
    kept = OptimizerConfig(lr=0.1, momentum=0.5, state="kept")
    name = type(method).__name__.lower()
    message = f"^{name} needs momentum that starts again in each round; choose protocol.optimizer.state=fresh$"
    with pytest.raises(ConfigError, match=message):
        simulate(setup(method, federation((6, 6)), rounds=1, optimizer=kept))
    simulate(setup(Scaffold(option=1), federation((6, 6)), rounds=1, optimizer=kept))
    assert float(accumulation(torch.tensor(3.0), OptimizerConfig(lr=0.1, state="kept"), name)) == 3


@pytest.mark.slow
def test_fednovas_fixed_point_is_the_objectives_and_fedavgs_is_not() -> None:
    """Equal curvature, lr eta: client k contracts by (1 - eta)^tau_k, so that FedNova weighs e_k by
    p_k (1 - (1 - eta)^tau_k) / tau_k, which tends to p_k with eta; FedAvg without the division."""
    eta, taken, share = 0.05, np.array([1, 2, 3]), np.array(UNEQUAL) / sum(UNEQUAL)
    options: dict[str, Any] = {"rounds": 120, "epochs": 1, "optimizer": OptimizerConfig(lr=eta)}
    found = {}
    for method in (FedNova(), FedAvg()):
        chosen = quadratic(method, UNEQUAL, POINTS, **options)
        found[type(method)] = bias(simulate(chosen)).numpy()
    e = minima(chosen).numpy()
    reached = 1 - (1 - eta) ** taken
    nova, plain = share * reached / taken, share * reached
    assert found[FedNova] == pytest.approx(nova @ e / nova.sum(), abs=1e-4)
    assert found[FedAvg] == pytest.approx(plain @ e / plain.sum(), abs=1e-4)
    best = share @ e
    assert np.linalg.norm(found[FedNova] - best) < 0.15 * np.linalg.norm(found[FedAvg] - best)


@pytest.mark.parametrize(
    ("option", "weighted", "cohort"),
    sampled([(1, False, 1.0), (2, False, 1.0), (2, True, 1.0), (2, False, 2)], every=4),
)
def test_scaffolds_fixed_point_is_the_objectives(option: int, weighted: bool, cohort: float) -> None:
    method = Scaffold(option=option, weighted=weighted)
    options: dict[str, Any] = {"rounds": 70, "epochs": 2, "optimizer": ONE, "cohort": cohort}
    chosen = quadratic(method, UNEQUAL, POINTS, CURVED, **options)
    share = np.array(CURVED) * (np.array(UNEQUAL) if weighted else 1)
    expected = share @ minima(chosen).numpy() / share.sum()
    assert bias(simulate(chosen)).numpy() == pytest.approx(expected, abs=1e-4)


def test_scaffolds_first_round_is_fedavg() -> None:
    data = federation(EQUAL)
    chosen = setup(Scaffold(), data, rounds=1)
    assert close(trees.part(simulate(chosen).server, "model"), simulate(setup(FedAvg(), data, rounds=1)).server)
    with pytest.raises(ConfigError, match="one of 2, 1"):
        Scaffold(option=3)


@pytest.mark.parametrize(("weighted", "cohort"), sampled([(False, 1.0), (True, 1.0), (False, 2)], every=3))
def test_feddyns_fixed_point_is_the_objectives(weighted: bool, cohort: float) -> None:
    options: dict[str, Any] = {"rounds": 70, "epochs": 3, "optimizer": ONE, "cohort": cohort}
    chosen = quadratic(FedDyn(alpha=1.0, weighted=weighted), UNEQUAL, POINTS, CURVED, **options)
    share = np.array(CURVED) * (np.array(UNEQUAL) if weighted else 1)
    expected = share @ minima(chosen).numpy() / share.sum()
    assert bias(simulate(chosen)).numpy() == pytest.approx(expected, abs=1e-4)
