"""Limits in which one method is another, and single rounds computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.engine import schedule
from fedbench.engine.contract import Stage
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedcollab.distances import DiscriminatorConfig
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.fedprox import FedProx
from fedbench.methods.local import Local
from fedbench.models.small import LeNet5
from tests.methods.toys import FOUR, close, federation, gap, setup, simulate

QUICK = DiscriminatorConfig(hidden=5, rounds=20)


def run(method: Method, **options: Any) -> tuple[Setup, Any]:
    chosen = setup(method, federation(FOUR), cohort=0.75, rounds=3, **options)
    return chosen, simulate(chosen)


@pytest.fixture(scope="module")
def fedavg() -> trees.Tree:
    return run(FedAvg())[1].server  # type: ignore[no-any-return]


def test_without_its_pull_fedprox_is_fedavg(fedavg: trees.Tree) -> None:
    assert close(run(FedProx(mu=0.0))[1].server, fedavg)
    assert gap(run(FedProx(mu=1.0))[1].server, fedavg) > 1e-4


def test_dittos_server_is_fedavg_whatever_the_pull(fedavg: trees.Tree) -> None:
    assert close(run(Ditto(lam=0.7))[1].server, fedavg)


def test_without_its_pull_ditto_is_local() -> None:
    local = run(Local())[1].memory
    assert close(trees.part(run(Ditto(lam=0.0))[1].memory, "personal"), local)
    assert gap(trees.part(run(Ditto(lam=1.0))[1].memory, "personal"), local) > 1e-4


def test_one_coalition_is_the_base_method(fedavg: trees.Tree) -> None:
    state = run(FedCollab(C=1e6, discriminator=QUICK))[1]
    assert state.server["coalition"].tolist() == [0, 0, 0, 0]
    assert close(trees.row(trees.part(state.server, "base"), 0), fedavg)


def test_all_private_is_local() -> None:
    local = run(Local())[1]
    state = run(FedAvg(private=("*",)))[1]
    assert close(state.memory, local.memory)
    assert state.bytes_up == state.bytes_down == 0
    assert (state.server, local.server) == ({}, {})


def gradient(chosen: Setup, weights: trees.Tree, client: int) -> trees.Tree:
    """Of the mean cross-entropy on all of a client's samples, by autograd on a network built anew."""
    x, y = chosen.federation.gather(chosen.federation.indices("train", client))
    leaves = {k: v.clone().requires_grad_(True) for k, v in weights.items()}
    hidden = torch.relu(x.flatten(1) @ leaves["fc.0.weight"].t() + leaves["fc.0.bias"])
    logits = hidden @ leaves["head.weight"].t() + leaves["head.bias"]
    loss = torch.nn.functional.cross_entropy(logits, y)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def test_two_steps_of_fedprox_and_ditto_by_hand() -> None:
    """One client, full batches: w1 = w - lr g(w); w2 = w1 - lr (g(w1) + mu (w1 - w)). Ditto's v alike."""
    lr, mu, lam = 0.1, 0.5, 2.0
    options: dict[str, Any] = {"rounds": 1, "epochs": 2, "batch": 50, "optimizer": OptimizerConfig(lr=lr)}
    chosen = setup(FedProx(mu=mu), federation((9,)), **options)
    w = {k: v.double() for k, v in chosen.task.init(rng.torch_rng(0, "init")).items()}

    def two_steps(strength: float) -> trees.Tree:
        first = gradient(chosen, w, 0)
        w1 = {k: w[k] - lr * first[k] for k in w}
        second = gradient(chosen, w1, 0)
        return {k: w1[k] - lr * (second[k] + strength * (w1[k] - w[k])) for k in w}

    assert close(simulate(chosen).server, two_steps(mu))
    state = simulate(setup(Ditto(lam=lam), federation((9,)), **options))
    assert close(trees.row(trees.part(state.memory, "personal"), 0), two_steps(lam))
    assert close(state.server, two_steps(0.0))


def test_the_pull_of_fedprox_is_on_weights_not_on_statistics() -> None:
    """Against nn.Module and torch.optim, with torch's own batch normalisation."""
    mu, model = 5.0, LeNet5(batch_norm=True)
    sgd = OptimizerConfig(lr=0.05, momentum=0.9)
    chosen = setup(FedProx(mu=mu), federation((13,), (1, 16, 16)), model, rounds=1, optimizer=sgd)
    net = model.build((1, 16, 16), 4).double().train()
    net.load_state_dict(chosen.task.init(rng.torch_rng(0, "init")), strict=False)
    received = [p.detach().clone() for p in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    x, y = chosen.federation.gather(chosen.federation.indices("train", 0))
    keyed = rng.torch_rng(0, "batches", 0, 0, 0)
    for rows in schedule.batches(13, chosen.protocol.local, Stage(), keyed):
        optimizer.zero_grad()
        pull = sum(((p - w) ** 2).sum() for p, w in zip(net.parameters(), received, strict=True))
        (torch.nn.functional.cross_entropy(net(x[rows]), y[rows]) + mu / 2 * pull).backward()
        optimizer.step()
    expected = {k: v for k, v in net.state_dict().items() if not k.endswith("num_batches_tracked")}
    assert close(simulate(chosen).server, expected)


def test_fedavg_of_two_clients_by_hand() -> None:
    chosen = setup(FedAvg(), federation((3, 9)), rounds=1, epochs=1, batch=50, optimizer=OptimizerConfig(lr=0.2))
    w = {k: v.double() for k, v in chosen.task.init(rng.torch_rng(0, "init")).items()}
    g = [gradient(chosen, w, k) for k in (0, 1)]
    assert close(simulate(chosen).server, {k: w[k] - 0.2 * (0.25 * g[0][k] + 0.75 * g[1][k]) for k in w})


def test_private_leaves_stay_at_home() -> None:
    _, state = run(FedAvg(private=("head.*",)))
    assert set(state.memory) == {"head.weight", "head.bias"}
    assert not set(state.memory) & set(state.server)
    assert state.bytes_up == 3 * 3 * 8 * sum(v.numel() for v in state.server.values())
    assert gap(trees.row(state.memory, 0), trees.row(state.memory, 1)) > 1e-3
