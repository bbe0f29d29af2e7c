"""pFedMe: limits, the proximal point, rounds by hand; options of pFedMe, APFL and Per-FedAvg that presets leave out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.config.schema import OptimizerConfig
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.apfl import APFL
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.local import Local
from fedbench.methods.perfedavg import PerFedAvg
from fedbench.methods.pfedme import PFedMe
from fedbench.models.small import LeNet5
from tests.methods.quadratics import CURVED, POINTS, UNEQUAL, minima, quadratic
from tests.methods.toys import close, federation, gap, initial, models, setup, simulate

SHARE = np.array(UNEQUAL) / sum(UNEQUAL)


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
    chosen = quadratic(method, UNEQUAL, POINTS, CURVED, epochs=1, optimizer=optimizer)
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
    chosen = quadratic(method, UNEQUAL, POINTS, CURVED, rounds=1, iterations=1, optimizer=OptimizerConfig(lr=0.1))
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


def test_statistics_of_theta_outlive_a_restart() -> None:
    """A theta that never leaves w has seen the same batches, restarted or not."""
    options: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 4, "model": LeNet5(batch_norm=True)}
    first, second = (
        simulate(setup(PFedMe(lam=0.0, personal_lr=0.0, restart=restart), federation((13, 9), (1, 16, 16)), **options))
        for restart in (True, False)
    )
    assert close(first.server, second.server, 1e-12)
    assert close(first.memory, second.memory, 1e-12)


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
