"""MOON, FedNTD, Finetune, FedNova, SCAFFOLD and FedDyn: limits, fixed points, rounds by hand; options, stacked."""

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
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.feddyn import FedDyn
from fedbench.methods.fednova import FedNova, accumulation
from fedbench.methods.fedntd import FedNTD
from fedbench.methods.fedprox import FedProx
from fedbench.methods.finetune import Finetune
from fedbench.methods.moon import Moon
from fedbench.methods.scaffold import Scaffold
from fedbench.models.small import LeNet5
from tests.methods.quadratics import CURVED, POINTS, UNEQUAL, attraction, bias, counted, local_steps, minima, quadratic
from tests.methods.toys import (
    adapted,
    close,
    cross_entropy,
    descend,
    features,
    federation,
    gap,
    initial,
    logits,
    models,
    samples,
    setup,
    simulate,
)


def test_without_its_contrast_moon_is_fedavg() -> None:
    chosen = setup(FedAvg(), cohort=0.8, rounds=3)
    fedavg = simulate(chosen).server
    assert close(simulate(setup(Moon(mu=0.0), cohort=0.8, rounds=3)).server, fedavg)
    assert gap(simulate(setup(Moon(mu=5.0), cohort=0.8, rounds=3)).server, fedavg) > 1e-3


def test_moons_first_round_is_fedavg_since_its_contrast_is_constant() -> None:
    assert close(simulate(setup(Moon(mu=9.0), rounds=1)).server, simulate(setup(FedAvg(), rounds=1)).server)


def moon(
    x: Tensor, y: Tensor, received: trees.Tree, previous: trees.Tree, mu: float, tau: float, w: trees.Tree
) -> Tensor:
    z = torch.nn.functional.normalize(features(w, x), dim=1)
    near, far = (
        torch.exp((z * torch.nn.functional.normalize(features(model, x), dim=1)).sum(1) / tau)
        for model in (received, previous)
    )
    return cross_entropy(logits(w, x), y) + mu * -(near / (near + far)).log().mean()


def test_two_rounds_of_moon_by_hand() -> None:
    lr, mu, tau = 0.1, 2.0, 0.5
    options: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 50, "optimizer": OptimizerConfig(lr=lr)}
    chosen = setup(Moon(mu=mu, tau=tau), federation((5, 9)), **options)
    w = initial(chosen)
    previous = [w, w]
    for _ in range(2):
        trained = []
        for k in (0, 1):
            x, y = samples(chosen, k)
            trained.append(descend(partial(moon, x, y, w, previous[k], mu, tau), w, lr))
        previous = trained
        w = {name: (5 * trained[0][name] + 9 * trained[1][name]) / 14 for name in w}
    assert close(simulate(chosen).server, w)


def test_without_its_distillation_fedntd_is_fedavg() -> None:
    fedavg = simulate(setup(FedAvg(), cohort=0.8, rounds=3)).server
    assert close(simulate(setup(FedNTD(beta=0.0), cohort=0.8, rounds=3)).server, fedavg)
    assert gap(simulate(setup(FedNTD(beta=5.0), cohort=0.8, rounds=3)).server, fedavg) > 1e-3


def test_fedntds_first_step_is_fedavgs_since_both_models_agree() -> None:
    """KL is least where its arguments are equal, so that its gradient vanishes there."""
    options: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 50}
    assert close(simulate(setup(FedNTD(beta=9.0), **options)).server, simulate(setup(FedAvg(), **options)).server)


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


@pytest.mark.parametrize("method", [Scaffold(option=1, weighted=True), FedDyn(weighted=True), Moon(mu=3.0), FedNTD()])
def test_options_are_the_same_stacked(method: Any) -> None:
    def chosen() -> Setup:
        return setup(method, federation((2, 9, 5), (1, 16, 16)), LeNet5(batch_norm=True), rounds=2, epochs=1)

    here, there = chosen(), chosen()
    looped = simulate(here, LoopedTrainer(here))
    other = simulate(there, StackedTrainer(there, 2))
    assert gap({**looped.server, **looped.memory}, {**other.server, **other.memory}) < 1e-8


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


# FedNova, SCAFFOLD and FedDyn: limits, conserved quantities, fixed points, rounds computed by hand.

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


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_with_equal_steps_is_fedavg(momentum: float) -> None:
    options: dict[str, Any] = {"optimizer": OptimizerConfig(lr=0.05, momentum=momentum), "rounds": 3}
    data = federation((6, 8, 7))
    fedavg = simulate(setup(FedAvg(), data, **options)).server
    assert close(simulate(setup(FedNova(), data, **options)).server, fedavg)
    uneven = federation(UNEQUAL)
    fedavg = simulate(setup(FedAvg(), uneven, **options)).server
    assert gap(simulate(setup(FedNova(), uneven, **options)).server, fedavg) > 1e-3


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_round_of_fednova_by_hand(momentum: float) -> None:
    optimizer = OptimizerConfig(lr=0.1, momentum=momentum)
    chosen = quadratic(FedNova(), UNEQUAL, POINTS, CURVED, rounds=1, epochs=2, optimizer=optimizer)
    w, e = initial(chosen)["head.bias"].numpy(), minima(chosen).numpy()
    share, taken = np.array(UNEQUAL) / sum(UNEQUAL), (2, 4, 6)
    passed = np.array([counted(steps, momentum) for steps in taken])
    trained = [local_steps(w, attraction(CURVED[k], e[k]), taken[k], 0.1, momentum) for k in range(3)]
    per_step = (w - np.stack(trained)) / passed[:, None]
    expected = w - (share @ passed) * (share @ per_step)
    assert close(bias(simulate(chosen)), torch.from_numpy(expected), 1e-12)


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


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_two_rounds_of_scaffold_by_hand(option: int, momentum: float) -> None:
    lr, rate = 0.1, 0.7
    method = Scaffold(option=option, server_lr=rate)
    optimizer = OptimizerConfig(lr=lr, momentum=momentum)
    chosen = quadratic(method, UNEQUAL, POINTS, CURVED, rounds=2, epochs=2, optimizer=optimizer)
    x, e = initial(chosen)["head.bias"].numpy(), minima(chosen).numpy()
    c, own = np.zeros(2), np.zeros((3, 2))
    for _ in range(2):
        change, fresh = np.zeros((3, 2)), np.zeros((3, 2))
        for k, steps in enumerate((2, 4, 6)):
            slope = attraction(CURVED[k], e[k])
            y = local_steps(x, attraction(CURVED[k], e[k], c - own[k]), steps, lr, momentum)
            mean = (x - y) / (counted(steps, momentum) * lr)
            change[k] = y - x
            fresh[k] = slope(x) if option == 1 else own[k] - c + mean
        x, c, own = x + rate * change.mean(0), c + (fresh - own).mean(0), fresh
    state = simulate(chosen)
    assert close(bias(state), torch.from_numpy(x), 1e-12)
    assert close(state.memory["head.bias"], torch.from_numpy(own), 1e-12)


@pytest.mark.parametrize(
    ("option", "weighted", "cohort"), [(1, False, 1.0), (2, False, 1.0), (2, True, 1.0), (2, False, 2)]
)
def test_scaffolds_fixed_point_is_the_objectives(option: int, weighted: bool, cohort: float) -> None:
    method = Scaffold(option=option, weighted=weighted)
    options: dict[str, Any] = {"rounds": 70, "epochs": 2, "optimizer": ONE, "cohort": cohort}
    chosen = quadratic(method, UNEQUAL, POINTS, CURVED, **options)
    share = np.array(CURVED) * (np.array(UNEQUAL) if weighted else 1)
    expected = share @ minima(chosen).numpy() / share.sum()
    assert bias(simulate(chosen)).numpy() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_scaffolds_server_variate_is_the_mean_of_the_clients(weighted: bool) -> None:
    chosen = setup(Scaffold(weighted=weighted), rounds=4, cohort=0.6, optimizer=OptimizerConfig(lr=0.05))
    state = simulate(chosen)
    sizes = chosen.population.sizes if weighted else torch.ones(5, dtype=torch.float64)
    assert close(trees.part(state.server, "control"), trees.mean(state.memory, sizes / sizes.sum()), 1e-10)


def test_scaffolds_first_round_is_fedavg() -> None:
    data = federation(EQUAL)
    chosen = setup(Scaffold(), data, rounds=1)
    assert close(trees.part(simulate(chosen).server, "model"), simulate(setup(FedAvg(), data, rounds=1)).server)
    with pytest.raises(ConfigError, match="one of 2, 1"):
        Scaffold(option=3)


@pytest.mark.parametrize("weighted", [False, True])
def test_two_rounds_of_feddyn_by_hand(weighted: bool) -> None:
    """In the paper's symbols: g_k and h."""
    lr, alpha = 0.1, 0.4
    method = FedDyn(alpha=alpha, weighted=weighted)
    chosen = quadratic(method, UNEQUAL, POINTS, CURVED, rounds=2, epochs=2, optimizer=ONE)
    w, e = initial(chosen)["head.bias"].numpy(), minima(chosen).numpy()
    each = alpha * np.mean(UNEQUAL) / np.array(UNEQUAL) if weighted else np.full(3, alpha)
    g, drift = np.zeros((3, 2)), np.zeros(2)
    for _ in range(2):
        trained = np.zeros((3, 2))
        for k, steps in enumerate((2, 4, 6)):
            # a (v - e) - g + alpha (v - w) is a quadratic's gradient again, at curvature a + alpha
            slope = attraction(CURVED[k] + each[k], np.zeros(2), -CURVED[k] * e[k] - g[k] - each[k] * w)
            trained[k] = local_steps(w, slope, steps, lr, 0.0)
        g = g - each[:, None] * (trained - w)
        drift = drift - (trained - w).mean(0)  # h / alpha
        w = trained.mean(0) - drift
    state = simulate(chosen)
    assert close(bias(state), torch.from_numpy(w), 1e-12)
    assert close(state.memory["head.bias"], torch.from_numpy(g / each[:, None]), 1e-12)


@pytest.mark.parametrize(("weighted", "cohort"), [(False, 1.0), (True, 1.0), (False, 2)])
def test_feddyns_fixed_point_is_the_objectives(weighted: bool, cohort: float) -> None:
    options: dict[str, Any] = {"rounds": 70, "epochs": 3, "optimizer": ONE, "cohort": cohort}
    chosen = quadratic(FedDyn(alpha=1.0, weighted=weighted), UNEQUAL, POINTS, CURVED, **options)
    share = np.array(CURVED) * (np.array(UNEQUAL) if weighted else 1)
    expected = share @ minima(chosen).numpy() / share.sum()
    assert bias(simulate(chosen)).numpy() == pytest.approx(expected, abs=1e-4)


def test_feddyns_drift_is_what_its_clients_gave() -> None:
    state = simulate(setup(FedDyn(alpha=0.1), rounds=4, cohort=0.6))
    given = {k: -v.mean(0) for k, v in state.memory.items()}
    assert close(trees.part(state.server, "drift"), given, 1e-10)


def test_feddyns_first_round_is_fedprox_taken_twice() -> None:
    data = federation(EQUAL)
    chosen = setup(FedDyn(alpha=0.3), data, rounds=1)
    prox = simulate(setup(FedProx(mu=0.3), data, rounds=1)).server
    start = initial(chosen)
    found = trees.part(simulate(chosen).server, "model")
    assert close(found, {k: 2 * prox[k] - start[k] for k in start})
