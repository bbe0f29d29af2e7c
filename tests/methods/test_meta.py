"""Per-FedAvg, pFedMe, APFL: limits, meta-gradients against autograd, rounds computed by hand."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.engine import schedule
from fedbench.engine.contract import Stage
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.stacked import StackedTrainer
from fedbench.methods.apfl import APFL
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.local import Local
from fedbench.methods.perfedavg import PerFedAvg, halves
from fedbench.methods.pfedme import PFedMe
from fedbench.models.lenet5 import LeNet5
from tests.methods.toys import (
    adapted,
    close,
    cross_entropy,
    descend,
    federation,
    gap,
    initial,
    logits,
    minima,
    models,
    quadratic,
    samples,
    setup,
    simulate,
)

POINTS = ((20, 200), (240, 90), (120, 10))
SIZES = (3, 13, 21)  # in batches of 8: one, two and three steps an epoch
SHARE = np.array(SIZES) / sum(SIZES)
CURVED = (1, 2, 2)
FULL_BATCH: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 50}


# ---- Per-FedAvg


@pytest.mark.parametrize(("order", "power"), [("first", 1), ("hessian_free", 2), ("full", 2)])
def test_a_round_of_perfedavg_by_hand(order: str, power: int) -> None:
    """On quadratics grad f(w - alpha grad f(w)) = a (1 - alpha a) (w - e), times I - alpha a of the Hessian."""
    alpha, beta = 0.2, 0.1
    method = PerFedAvg(alpha=alpha, beta=beta, order=order)
    chosen = quadratic(method, SIZES, POINTS, CURVED, rounds=1, epochs=1, optimizer=OptimizerConfig(lr=9.0))
    w, e = initial(chosen)["head.bias"].numpy(), minima(chosen).numpy()
    trained = []
    for k, steps in enumerate((1, 2, 3)):
        rate = 1 - beta * CURVED[k] * (1 - alpha * CURVED[k]) ** power
        trained.append(e[k] + rate**steps * (w - e[k]))
    state = simulate(chosen)
    assert close(state.server["head.bias"], torch.from_numpy(SHARE @ np.stack(trained)), 1e-9)
    tuned = adapted(chosen, state)["head.bias"].numpy()
    w = state.server["head.bias"].numpy()
    for k in range(3):  # one step at rate alpha
        assert tuned[k] == pytest.approx(w - alpha * CURVED[k] * (w - e[k]), abs=1e-12)


def test_perfedavg_without_an_inner_step_is_fedavg_where_the_halves_agree() -> None:
    for order in ("first", "hessian_free", "full"):
        method = PerFedAvg(alpha=0.0, order=order)
        found = simulate(quadratic(method, SIZES, POINTS, CURVED, cohort=2)).server
        assert close(found, simulate(quadratic(FedAvg(), SIZES, POINTS, CURVED, cohort=2)).server, 1e-9)


@pytest.mark.parametrize(("order", "tolerance"), [("first", 1e-10), ("full", 1e-10), ("hessian_free", 1e-6)])
def test_perfedavgs_step_is_autograds(order: str, tolerance: float) -> None:
    """One client of five samples, halves of three and two: through the inner step, or not."""
    alpha = 0.5
    method = PerFedAvg(alpha=alpha, order=order, delta=1e-4)
    chosen = setup(method, federation((5,)), **FULL_BATCH, optimizer=OptimizerConfig(lr=1.0))
    w = initial(chosen)
    x, y = samples(chosen, 0)
    keyed = rng.torch_rng(0, "batches", 0, 0, 0)
    (rows,) = schedule.batches(5, chosen.protocol.local, Stage(), keyed)
    leaves = {k: v.clone().requires_grad_(True) for k, v in w.items()}
    inner = cross_entropy(logits(leaves, x[rows[:3]]), y[rows[:3]])
    slopes = torch.autograd.grad(inner, list(leaves.values()), create_graph=order != "first")
    ahead = {k: leaves[k] - alpha * slope for k, slope in zip(leaves, slopes, strict=True)}
    outer = cross_entropy(logits(ahead, x[rows[3:]]), y[rows[3:]])
    meta = torch.autograd.grad(outer, list(leaves.values()))
    expected = {k: w[k] - slope for k, slope in zip(w, meta, strict=True)}
    assert close(simulate(chosen).server, expected, tolerance)
    first = simulate(
        setup(PerFedAvg(alpha=alpha), federation((5,)), **FULL_BATCH, optimizer=OptimizerConfig(lr=1.0))
    )
    assert (gap(first.server, expected) > 1e-4) is (order != "first")


def test_halves_cover_a_batch_once_padded_or_not() -> None:
    for real in range(1, 9):
        values = torch.arange(8.0)
        plain = halves(Batch(values[:real], torch.arange(real)))
        padded = halves(Batch(values, torch.arange(8), torch.arange(8) < real))
        seen = [half.x.tolist() for half in plain]
        assert [half.x[half.mask].tolist() for half in padded] == seen
        assert len(seen[0]) == (real + 1) // 2
        assert seen[0] + (seen[1] if real > 1 else []) == list(range(real))
        assert real > 1 or seen == [[0.0], [0.0]]


def test_perfedavg_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UnknownName, match="hessian_free"):
        PerFedAvg(order="hessian")
    with pytest.raises(ConfigError, match="alpha must be at least 0"):
        PerFedAvg(alpha=-0.1)


# ---- pFedMe


def by_hand(method: PFedMe, w: np.ndarray, e: np.ndarray, lr: float) -> tuple[np.ndarray, np.ndarray]:
    """(server's w, thetas) after one round on quadratic clients of one, two and three steps."""
    trained, thetas = [], []
    for k, steps in enumerate((1, 2, 3)):
        own, theta = w, w
        for _ in range(steps):
            theta = own if method.restart else theta
            for _ in range(method.inner_steps):
                theta = theta - method.personal_lr * (CURVED[k] * (theta - e[k]) + method.lam * (theta - own))
            own = own - lr * method.lam * (own - theta)
        trained.append(own)
        thetas.append(theta)
    share = np.full(3, 1 / 3) if method.uniform else SHARE
    return w + method.beta * (share @ np.stack(trained) - w), np.stack(thetas)


PFEDMES: list[dict[str, Any]] = [
    *({"beta": beta} for beta in (0.0, 0.5, 1.0, 2.0)),
    {"restart": True},
    {"uniform": True},
    {"beta": 0.5, "restart": True, "uniform": True},
    {"lr": 0.3},
]
PLAIN = OptimizerConfig(lr=0.1)
OTHERS = OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=0.5, clip=0.01)


@pytest.mark.parametrize("optimizer", [PLAIN, OTHERS], ids=["plain", "momentum"])
@pytest.mark.parametrize("options", PFEDMES, ids=str)
def test_two_rounds_of_pfedme_by_hand(options: dict[str, Any], optimizer: OptimizerConfig) -> None:
    """Whatever the protocol's optimiser, w takes plain steps of its rate."""
    method = PFedMe(lam=3.0, inner_steps=4, personal_lr=0.05, **options)
    chosen = quadratic(method, SIZES, POINTS, CURVED, epochs=1, optimizer=optimizer)
    w, e = initial(chosen)["head.bias"].numpy(), minima(chosen).numpy()
    theta = w
    for _ in range(2):
        w, theta = by_hand(method, w, e, method.lr or 0.1)
    state = simulate(chosen)
    assert close(state.server["head.bias"], torch.from_numpy(w), 1e-12)
    assert close(models(chosen, state)["head.bias"], torch.from_numpy(theta), 1e-12)
    assert method.beta > 0 or close(state.server, initial(chosen), 1e-14)


def test_many_inner_steps_reach_the_proximal_point() -> None:
    """argmin a/2 ||theta - e||^2 + lambda/2 ||theta - w||^2 = (a e + lambda w) / (a + lambda)."""
    method = PFedMe(lam=3.0, inner_steps=200, personal_lr=0.1)
    chosen = quadratic(
        method, SIZES, POINTS, CURVED, rounds=1, iterations=1, optimizer=OptimizerConfig(lr=0.1)
    )
    w, e = initial(chosen)["head.bias"].numpy(), minima(chosen).numpy()
    found = models(chosen, simulate(chosen))["head.bias"].numpy()
    for k in range(3):
        assert found[k] == pytest.approx((CURVED[k] * e[k] + 3 * w) / (CURVED[k] + 3), abs=1e-12)


def test_pfedme_with_one_inner_step_of_length_one_over_lambda_is_fedavg() -> None:
    """Then lambda (w - theta) = grad f(w), for the first step of a round."""
    options: dict[str, Any] = {"iterations": 1, "rounds": 4, "cohort": 0.8}
    method = PFedMe(lam=4.0, inner_steps=1, personal_lr=0.25)
    found = simulate(setup(method, **options)).server
    assert close(found, simulate(setup(FedAvg(), **options)).server)


@pytest.mark.parametrize("lr", [0.1, 0.03])
def test_restarting_pfedme_with_one_inner_step_of_length_one_over_lambda_is_fedavg_at_any_rate(
    lr: float,
) -> None:
    """Then lambda (w - theta) = grad f(w) at every step of a round, and not for the first alone."""
    options: dict[str, Any] = {"rounds": 3, "optimizer": OptimizerConfig(lr=lr)}
    expected = simulate(setup(FedAvg(), **options)).server
    method = PFedMe(lam=4.0, inner_steps=1, personal_lr=0.25, restart=True)
    assert close(simulate(setup(method, **options)).server, expected)
    going_on = dataclasses.replace(method, restart=False)
    assert gap(simulate(setup(going_on, **options)).server, expected) > 1e-3


@pytest.mark.parametrize("restart", [True, False])
def test_pfedme_at_rate_one_over_lambda_is_sgd_on_theta(restart: bool) -> None:
    """eta lambda = 1 puts w on theta after each mini-batch, so restarting there changes nothing."""
    method = PFedMe(lam=4.0, inner_steps=1, personal_lr=0.1, restart=restart)
    found = simulate(setup(method, rounds=3, optimizer=OptimizerConfig(lr=0.25))).server
    expected = simulate(setup(FedAvg(), rounds=3, optimizer=OptimizerConfig(lr=0.1))).server
    assert close(found, expected)


def test_without_its_pull_pfedmes_server_rests_and_its_clients_descend_alone() -> None:
    chosen = setup(PFedMe(lam=0.0, inner_steps=1, personal_lr=0.1), rounds=1)
    state = simulate(chosen)
    assert close(state.server, initial(chosen), 1e-12)
    local = setup(Local(), rounds=1)  # at learning rate 0.1
    assert close(models(chosen, state), models(local, simulate(local)))


# ---- APFL


def test_apfls_limits_are_fedavg_and_local() -> None:
    options: dict[str, Any] = {"rounds": 3, "cohort": 0.8}
    fedavg, local = setup(FedAvg(), **options), setup(Local(), **options)
    server, alone = simulate(fedavg), simulate(local)
    for alpha in (0.0, 0.3, 1.0):
        chosen = setup(APFL(alpha=alpha), **options)
        state = simulate(chosen)
        assert close(state.server, server.server)
        if alpha == 0:
            assert close(models(chosen, state), models(fedavg, server))
        if alpha == 1:
            assert close(models(chosen, state), models(local, alone))


def mixture(v: trees.Tree, w: trees.Tree, alpha: float) -> trees.Tree:
    return {k: alpha * v[k] + (1 - alpha) * w[k] for k in v}


def test_two_rounds_of_apfl_by_hand() -> None:
    """Adaptive alpha: a step on it first, from the mixture's gradient; then w and v at their old values."""
    lr, rate = 0.2, 0.7
    options: dict[str, Any] = {**FULL_BATCH, "rounds": 2, "optimizer": OptimizerConfig(lr=lr)}
    chosen = setup(APFL(alpha=0.4, alpha_lr=rate), federation((5, 9)), **options)
    w = initial(chosen)
    own, alphas = [w, w], [0.4, 0.4]
    for _ in range(2):
        trained = []
        for k in (0, 1):
            x, y = samples(chosen, k)
            plain = partial(entropy, x, y)

            def along(a: trees.Tree, v: trees.Tree, w: trees.Tree, f: Any) -> Tensor:
                return f(mixture(v, w, a["a"]))  # type: ignore[no-any-return]

            start = {"a": torch.tensor(alphas[k], dtype=torch.float64)}
            moved = descend(partial(along, v=own[k], w=w, f=plain), start, rate, ["a"])
            alphas[k] = float(moved["a"].clamp(0, 1))

            def mixed(v: trees.Tree, w: trees.Tree, alpha: float, f: Any) -> Tensor:
                return f(mixture(v, w, alpha))  # type: ignore[no-any-return]

            own[k] = descend(partial(mixed, w=w, alpha=alphas[k], f=plain), own[k], lr)
            trained.append(descend(plain, w, lr))
        w = {name: (5 * trained[0][name] + 9 * trained[1][name]) / 14 for name in w}
    state = simulate(chosen)
    assert close(state.server, w)
    assert close(
        trees.part(state.memory, "personal"), trees.stack(own), 1e-7
    )  # alpha starts in single precision
    assert state.memory["alpha"].tolist() == pytest.approx(alphas, abs=1e-6)
    assert alphas[0] != pytest.approx(0.4, abs=1e-4)
    shown = [mixture(own[k], w, alphas[k]) for k in (0, 1)]
    assert close(models(chosen, state), trees.stack(shown), 1e-6)


def entropy(x: Tensor, y: Tensor, w: trees.Tree) -> Tensor:
    return cross_entropy(logits(w, x), y)


def test_alpha_stays_a_share() -> None:
    chosen = setup(APFL(alpha=0.9, alpha_lr=1e3), rounds=4)
    shares = simulate(chosen).memory["alpha"]
    assert 0 <= float(shares.min()) <= float(shares.max()) <= 1
    assert {0.0, 1.0} & set(shares.tolist())
    with pytest.raises(ConfigError, match=r"\[0, 1\]"):
        APFL(alpha=1.5)


# ---- options that the default presets leave out, stacked and with batch normalisation

OPTIONS = [
    PerFedAvg(order="full", alpha=0.1),
    PerFedAvg(order="hessian_free", alpha=0.1),
    PFedMe(beta=0.5),
    PFedMe(restart=True, uniform=True),
    APFL(alpha_lr=0.1),
]


@pytest.mark.parametrize("method", OPTIONS)
def test_options_are_the_same_stacked(method: Method) -> None:
    def chosen() -> Setup:
        data = federation((1, 7, 13), (1, 16, 16))  # in batches of 4: one, two and four steps
        return setup(method, data, LeNet5(batch_norm=True), rounds=2, epochs=1, batch=4)

    here, there = chosen(), chosen()
    looped = simulate(here, LoopedTrainer(here))
    other = simulate(there, StackedTrainer(there, 2))
    assert gap({**looped.server, **looped.memory}, {**other.server, **other.memory}) < 1e-7


def test_statistics_of_theta_outlive_a_restart() -> None:
    """A theta that never leaves w has seen the same batches, restarted or not."""
    options: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 4, "model": LeNet5(batch_norm=True)}
    first, second = (
        simulate(
            setup(
                PFedMe(lam=0.0, personal_lr=0.0, restart=restart), federation((13, 9), (1, 16, 16)), **options
            )
        )
        for restart in (True, False)
    )
    assert close(first.server, second.server, 1e-12)
    assert close(first.memory, second.memory, 1e-12)


def test_pfedme_uploads_the_statistics_of_theta_and_apfl_keeps_the_mixtures() -> None:
    data = federation((6, 6), (1, 16, 16))
    options: dict[str, Any] = {"rounds": 1, "epochs": 1, "model": LeNet5(batch_norm=True)}
    chosen = setup(PFedMe(), data, **options)
    state = simulate(chosen)
    start = initial(chosen)
    for name in chosen.task.buffers:
        assert close(state.server[name], state.memory[f"personal/{name}"].mean(0), 1e-12)
        assert gap({"": state.server[name]}, {"": start[name]}) > 1e-2
    chosen = setup(APFL(alpha=0.0), data, **options)
    state = simulate(chosen)
    for name in chosen.task.buffers:  # at alpha 0 the mixture is w, so that both saw the same
        assert close(state.server[name], state.memory[f"personal/{name}"].mean(0), 1e-12)
