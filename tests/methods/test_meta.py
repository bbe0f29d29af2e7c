"""Per-FedAvg and APFL: limits, meta-gradients against autograd, rounds computed by hand."""

from __future__ import annotations

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
from fedbench.methods.apfl import APFL
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.local import Local
from fedbench.methods.perfedavg import PerFedAvg, halves
from tests.methods.quadratics import CURVED, POINTS, UNEQUAL, minima, quadratic
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

SHARE = np.array(UNEQUAL) / sum(UNEQUAL)
FULL_BATCH: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 50}


# ---- Per-FedAvg


@pytest.mark.parametrize(("order", "power"), [("first", 1), ("hessian_free", 2), ("full", 2)])
def test_a_round_of_perfedavg_by_hand(order: str, power: int) -> None:
    """On quadratics grad f(w - alpha grad f(w)) = a (1 - alpha a) (w - e), times I - alpha a of the Hessian."""
    alpha, beta = 0.2, 0.1
    method = PerFedAvg(alpha=alpha, beta=beta, order=order)
    chosen = quadratic(method, UNEQUAL, POINTS, CURVED, rounds=1, epochs=1, optimizer=OptimizerConfig(lr=9.0))
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
        found = simulate(quadratic(method, UNEQUAL, POINTS, CURVED, cohort=2)).server
        assert close(found, simulate(quadratic(FedAvg(), UNEQUAL, POINTS, CURVED, cohort=2)).server, 1e-9)


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
    first = simulate(setup(PerFedAvg(alpha=alpha), federation((5,)), **FULL_BATCH, optimizer=OptimizerConfig(lr=1.0)))
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
    assert close(trees.part(state.memory, "personal"), trees.stack(own), 1e-7)  # alpha starts in single precision
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
