"""FedAvgM, FedAdagrad, FedAdam and FedYogi: torch.optim on the clients' mean change, limits, other methods inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.method import Method
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedbench.methods.fedper import FedPer
from fedbench.methods.finetune import Finetune
from fedbench.methods.scaffold import Scaffold
from tests.helpers.tiers import sampled
from tests.methods.toys import (
    ONE_STEP,
    adapted,
    close,
    cross_entropy,
    descend,
    federation,
    gap,
    initial,
    logits,
    models,
    normalised,
    samples,
    setup,
    simulate,
)

SIZES = (5, 9)


def base(method: Method, **options: Any) -> Tree:
    return trees.part(simulate(setup(method, **options)).server, "base")


def change(chosen: Any, w: Tree) -> Tree:
    """The size-weighted mean change of clients that take one step of rate 0.2 on all their samples."""
    total: Tree = {name: torch.zeros_like(leaf) for name, leaf in w.items()}
    for k, size in enumerate(SIZES):
        x, y = samples(chosen, k)
        trained = descend(lambda v, x=x, y=y: cross_entropy(logits(v, x), y), w, 0.2)  # type: ignore[misc]
        total = {name: total[name] + size / sum(SIZES) * (trained[name] - w[name]) for name in w}
    return total


OPTIMIZERS: list[tuple[Method, Callable[[list[Tensor]], torch.optim.Optimizer]]] = [
    (FedAvgM(momentum=0.7, server_lr=0.5), lambda w: torch.optim.SGD(w, lr=0.5, momentum=0.7)),
    (
        FedAdagrad(server_lr=0.3, tau=0.01),
        lambda w: torch.optim.Adagrad(w, lr=0.3, eps=0.01, initial_accumulator_value=1e-4),
    ),
    (
        FedAdam(server_lr=0.05, beta1=0.8, beta2=0.95, tau=1e-14, first=0.0, correct=True),
        lambda w: torch.optim.Adam(w, lr=0.05, betas=(0.8, 0.95), eps=1e-14),
    ),
]


@pytest.mark.parametrize(("method", "optimizer"), OPTIMIZERS, ids=lambda each: type(each).__name__)
def test_three_rounds_are_torch_optims_on_the_mean_change(
    method: Method, optimizer: Callable[[list[Tensor]], torch.optim.Optimizer]
) -> None:
    chosen = setup(method, federation(SIZES), **{**ONE_STEP, "rounds": 3})
    w = {name: leaf.clone() for name, leaf in initial(chosen).items()}
    stepping = optimizer(list(w.values()))
    for _ in range(3):
        for name, moved in change(chosen, w).items():
            w[name].grad = -moved
        stepping.step()
    found = trees.part(simulate(chosen).server, "base")
    assert gap(found, initial(chosen)) > 1e-2
    assert close(found, w, 1e-8)


@pytest.mark.parametrize(
    ("method", "second"),
    [
        (FedAdam(beta1=0.6, beta2=0.7, tau=0.02), lambda v, q: 0.7 * v + 0.3 * q),
        (FedYogi(beta1=0.6, beta2=0.7, tau=0.02), lambda v, q: torch.where(v > q, v - 0.3 * q, v + 0.3 * q)),
        (FedAdagrad(beta1=0.6, tau=0.02), lambda v, q: v + q),
    ],
    ids=["adam", "yogi", "adagrad"],
)
def test_three_rounds_of_algorithm_2_by_hand(method: FedAdagrad, second: Callable[[Tensor, Tensor], Tensor]) -> None:
    """m and v start at 0 and tau^2, and are not corrected."""
    chosen = setup(method, federation(SIZES), **{**ONE_STEP, "rounds": 3})
    w = initial(chosen)
    m = {name: torch.zeros_like(leaf) for name, leaf in w.items()}
    v = {name: torch.full_like(leaf, 0.0004) for name, leaf in w.items()}
    for _ in range(3):
        D = change(chosen, w)
        m = {name: 0.6 * m[name] + 0.4 * D[name] for name in w}
        v = {name: second(v[name], D[name] ** 2) for name in w}
        w = {name: w[name] + method.server_lr * m[name] / (v[name] ** 0.5 + 0.02) for name in w}
    assert close(trees.part(simulate(chosen).server, "base"), w, 1e-7)  # tau^2 is a float32


@pytest.mark.parametrize(
    ("method", "tolerance"),
    sampled(
        [
            (FedAvgM(momentum=0.0), 1e-12),
            (FedAdagrad(server_lr=1e9, tau=1e9, first=0.0), 1e-8),
            (FedAdam(server_lr=1e9, tau=1e9, first=0.0, beta1=0.0, beta2=0.0), 1e-8),
            (FedYogi(server_lr=1e9, tau=1e9, first=0.0, beta1=0.0, beta2=0.0), 1e-8),
        ],
        every=2,
    ),
    ids=lambda each: type(each).__name__,
)
def test_without_memory_and_adaptivity_the_server_averages(method: Method, tolerance: float) -> None:
    fedavg = simulate(setup(FedAvg(), rounds=3, cohort=0.8)).server
    assert close(base(method, rounds=3, cohort=0.8), fedavg, tolerance)
    assert gap(base(FedAvgM(), rounds=3, cohort=0.8), fedavg) > 1e-3


def test_statistics_are_averaged_and_affine_parameters_stepped() -> None:
    fedavg = simulate(normalised(FedAvg(), rounds=1)).server
    chosen = normalised(FedAvgM(server_lr=0.5), rounds=1)
    found = trees.part(simulate(chosen).server, "base")
    before = initial(chosen)
    for name, leaf in found.items():
        still = 0.0 if name in chosen.task.buffers else 0.5
        assert close(leaf, still * before[name] + (1 - still) * fedavg[name])
    assert chosen.task.buffers


def test_a_leaf_that_nobody_uploads_rests() -> None:
    method = FedAdam()
    chosen = setup(method, federation(SIZES))
    server = simulate(chosen).server
    sent = trees.expand({"head.bias": torch.ones(4, dtype=torch.float64)}, 2)
    updated = method.aggregate(server, sent, chosen.cohort(torch.arange(2), Clock(5, 9)))
    changed = {name for name in server if not torch.equal(server[name], updated[name])}
    assert changed == {"base/head.bias", "step/head.bias/m", "step/head.bias/v"}


def test_fedadam_fine_tuned_trains_as_fedadam_and_tunes_as_finetune() -> None:
    tuned = setup(FedAdam(base={"name": "finetune", "steps": 2}), rounds=2)
    state = simulate(tuned)
    assert close(state.server, simulate(setup(FedAdam(), rounds=2)).server, 0)
    alone = setup(Finetune(steps=2), rounds=2)
    plain = simulate(alone)
    plain.server = trees.part(state.server, "base")
    assert close(adapted(tuned, state), adapted(alone, plain), 0)
    assert gap(adapted(tuned, state), models(tuned, state)) > 1e-3


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_private_heads_stay_at_home_and_have_no_state(name: str) -> None:
    state = simulate(setup(FedAvgM(momentum=0.0, base={"name": name}), rounds=2))
    assert set(state.memory) == {"head.weight", "head.bias"}
    assert not [leaf for leaf in state.server if "head" in leaf]
    if name == "fedper":
        plain = simulate(setup(FedPer(), rounds=2))
        assert close(trees.part(state.server, "base"), plain.server)
        assert close(state.memory, plain.memory)


def test_a_server_that_does_more_than_average_is_refused() -> None:
    with pytest.raises(ConfigError, match="the server of Scaffold does more than average; FedAdam takes fedavg"):
        FedAdam(base=Scaffold())


def test_a_method_whose_clients_upload_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^method.base: clients of Local upload nothing; choose another one"):
        simulate(setup(FedAdam(base={"name": "local"})))
