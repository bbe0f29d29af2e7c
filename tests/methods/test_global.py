"""MOON and Finetune: limits, rounds computed by hand; options of all that average, stacked."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.engine import schedule
from fedbench.engine.contract import Stage
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.feddyn import FedDyn
from fedbench.methods.fednova import FedNova
from fedbench.methods.finetune import Finetune
from fedbench.methods.moon import Moon
from fedbench.methods.scaffold import Scaffold
from fedbench.models.small import LeNet5
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


@pytest.mark.parametrize("method", [Scaffold(option=1, weighted=True), FedDyn(weighted=True), Moon(mu=3.0)])
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
