"""FedDBE: the mean of all features, a round by hand, what crosses the network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import LocalConfig, OptimizerConfig
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.feddbe import FedDBE
from fedbench.methods.fedper import FedPer
from fedbench.models.small import LeNet5
from tests.methods.toys import (
    HEAD,
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
    steps,
)

LR, SIZES = 0.2, (5, 9)
TWO: dict[str, Any] = {"rounds": 1, "epochs": 2, "batch": 50, "optimizer": OptimizerConfig(lr=LR)}


@dataclass(frozen=True)
class Unbiased(FedDBE):
    """FedDBE whose biases stay zero."""

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        return tuple(replace(stage, fixed=("running", "bias")) for stage in super().stages(local, clock))

    def step(self, work: Tree, client: Client, batch: Batch) -> Tree:
        return {name: leaf for name, leaf in super().step(work, client, batch).items() if name != "bias"}


def test_without_bias_and_pull_feddbe_is_fedavg() -> None:
    fedavg = simulate(setup(FedAvg(), rounds=3, cohort=0.8)).server
    assert close(simulate(setup(Unbiased(kappa=0.0), rounds=3, cohort=0.8)).server, fedavg)
    assert gap(simulate(setup(Unbiased(kappa=5.0), rounds=3, cohort=0.8)).server, fedavg) > 1e-3
    assert gap(simulate(setup(FedDBE(kappa=0.0), rounds=3, cohort=0.8)).server, fedavg) > 1e-3


def test_with_private_heads_it_is_around_fedper() -> None:
    state, fedper = simulate(setup(Unbiased(kappa=0.0, private=("@head",)))), simulate(setup(FedPer()))
    assert close(state.server, fedper.server)
    assert close({name: state.memory[name] for name in HEAD}, fedper.memory)


def common_mean(chosen: Any, mu: float) -> Tensor:
    """m: two steps of plain training on each client, the features of both followed."""
    m: Tensor = torch.zeros(7, dtype=torch.float64)
    for k, size in enumerate(SIZES):
        w, r = initial(chosen), torch.zeros(7, dtype=torch.float64)
        x, y = samples(chosen, k)
        for _ in range(2):
            r = (1 - mu) * r + mu * features(w, x).mean(0)
            w = descend(lambda v, x=x, y=y: cross_entropy(logits(v, x), y), w, LR)  # type: ignore[misc]
        m = m + size / sum(SIZES) * r
    return m


def objective(x: Tensor, y: Tensor, m: Tensor, r: Tensor, kappa: float, mu: float, w: Tree) -> Tensor:
    z = features(w, x)
    scores = (z + w["bias"]) @ w["head.weight"].t() + w["head.bias"]
    apart = (1 - mu) * r + mu * z.mean(0) - m
    return cross_entropy(scores, y) + kappa * (apart**2).sum() / (2 * len(m))


@pytest.mark.parametrize("mu", [1.0, 0.3])
def test_a_round_by_hand(mu: float) -> None:
    kappa = 4.0
    chosen = setup(FedDBE(kappa=kappa, mu=mu), federation(SIZES), **TWO)
    begun = steps(chosen, 0)[1]
    m = common_mean(chosen, mu)
    assert close(begun.memory["mean"], torch.stack([m, m]))
    assert close(begun.server, initial(chosen), 0)
    trained = []
    for k in (0, 1):
        x, y = samples(chosen, k)
        w, r = {**initial(chosen), "bias": torch.zeros_like(m)}, torch.zeros_like(m)
        for _ in range(2):
            z = features(w, x).mean(0)
            w = descend(partial(objective, x, y, m, r, kappa, mu), w, LR, ("fc", "head", "bias"))
            r = (1 - mu) * r + mu * z
        trained.append(w)
    state = simulate(chosen)
    assert close(state.memory["bias"], torch.stack([w["bias"] for w in trained]))
    assert float(state.memory["bias"].abs().min(1).values.max()) > 0
    assert close(state.server, {name: (5 * trained[0][name] + 9 * trained[1][name]) / 14 for name in state.server})
    x, _ = samples(chosen, 1)
    shown = chosen.method.predict(trees.row(models(chosen, state), 1), x, chosen.task)
    own = {**state.server, "bias": trained[1]["bias"]}
    assert close(shown, (features(own, x) + own["bias"]) @ own["head.weight"].t() + own["head.bias"])


def test_the_mean_crosses_once_and_biases_never() -> None:
    chosen = setup(FedDBE(), federation(SIZES), rounds=2)
    state = simulate(chosen)
    model = 8 * sum(leaf.numel() for leaf in state.server.values())
    assert state.prepared == (2 * 7 * 8, 2 * model + 2 * 7 * 8)
    assert (state.bytes_up, state.bytes_down) == (state.prepared[0] + 4 * model, state.prepared[1] + 4 * model)


def test_a_running_mean_is_the_same_stacked() -> None:
    def chosen() -> Any:
        data = federation((2, 9, 5), (1, 16, 16))
        return setup(FedDBE(mu=0.3, private=("@head",)), data, LeNet5(batch_norm=True), rounds=2, epochs=2)

    here, there = chosen(), chosen()
    looped, other = simulate(here), simulate(there, StackedTrainer(there, 2))
    assert gap({**looped.server, **looped.memory}, {**other.server, **other.memory}) < 1e-8
