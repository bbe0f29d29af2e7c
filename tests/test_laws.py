"""Limits in which one method is another, and single rounds computed by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.config import OptimizerConfig
from fedbench.engine import rng, trees
from fedbench.engine.setup import Setup
from fedbench.methods.base import Method
from fedbench.methods.collab import solver
from fedbench.methods.collab.discriminators import DiscriminatorConfig
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedcollab import FedCollab
from fedbench.methods.fedprox import FedProx
from fedbench.methods.local import Local
from tests.methods.toys import close, federation, gap, models, setup, simulate

QUICK = DiscriminatorConfig(hidden=5, rounds=20)
SIZES = (6, 13, 8, 21)


def run(method: Method, **options: Any) -> tuple[Setup, Any]:
    chosen = setup(method, federation(SIZES), cohort=0.75, rounds=3, **options)
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


def test_singletons_are_local() -> None:
    chosen, state = run(Groups(groups=(0, 1, 2, 3)))
    local, alone = run(Local())
    assert close(models(chosen, state), models(local, alone))


@dataclass(frozen=True)
class Groups(FedCollab):
    """FedCollab with its coalitions given."""

    groups: tuple[int, ...] = ()
    discriminator: DiscriminatorConfig = field(default_factory=lambda: QUICK)

    def prepare(
        self, preparation: Any, server: trees.Tree, memory: trees.Tree
    ) -> tuple[trees.Tree, trees.Tree]:
        base = {
            k: v.expand(max(self.groups) + 1, *v.shape[1:]) for k, v in server.items() if k != "coalition"
        }
        return {"coalition": torch.tensor(self.groups), **trees.clone(base)}, memory


@pytest.mark.parametrize("base", [{"name": "fedavg"}, {"name": "fedprox", "mu": 0.5}, {"name": "ditto"}])
def test_inside_a_coalition_runs_the_base_on_its_members_alone(base: dict[str, Any]) -> None:
    chosen = setup(Groups(base=base, groups=(0, 1, 0, 1)), federation(SIZES), rounds=2)
    everyone = models(chosen, simulate(chosen))
    for members in ([0, 2], [1, 3]):
        alone = setup(Groups(base=base, groups=(0, 0)).inner, federation(SIZES, ids=members), rounds=2)
        expected = models(alone, simulate(alone))
        assert close({k: v[members] for k, v in everyone.items()}, expected)


def test_a_newcomer_is_alone_until_it_joins() -> None:
    method = FedCollab(newcomers=(2,), join_round=2, discriminator=QUICK, C=1e6)
    for rounds in (1, 2, 3):
        chosen = setup(method, federation(SIZES), rounds=rounds)
        state = simulate(chosen)
        local = setup(Local(), federation(SIZES), rounds=rounds)
        alone = close(trees.row(models(chosen, state), 2), trees.row(models(local, simulate(local)), 2))
        coalition = state.server["coalition"].tolist()
        assert alone is (rounds < 2)
        assert coalition == ([0, 0, 1, 0] if rounds < 2 else [0, 0, 0, 0])


def test_coalitions_are_what_the_solver_makes_of_the_distances() -> None:
    labels = [[0, 1], [0, 1], [2, 3], [2, 3], [2, 3]]
    data = federation((40, 40, 40, 40, 40), labels=labels)
    chosen = setup(FedCollab(C=5.0, discriminator=DiscriminatorConfig(hidden=20, lr=0.1)), data, rounds=1)
    state = simulate(chosen)
    assert state.server["coalition"].tolist() == [0, 0, 1, 1, 1]
    weights = chosen.method.collaboration(state.server, chosen.population)
    assert weights is not None
    assert weights[0].tolist() == [0.5, 0.5, 0, 0, 0]
    assert state.bytes_up > sum(
        v[0].numel() for v in state.server.values()
    )  # the discriminators' traffic counts
    distances = state.arrays["distances"]
    again = solver.solve(np.full(5, 40), distances, 5.0, 10, np.random.default_rng(0))
    assert again.assignment.tolist() == state.arrays["coalition"].tolist()


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


def test_fedavg_of_two_clients_by_hand() -> None:
    chosen = setup(
        FedAvg(), federation((3, 9)), rounds=1, epochs=1, batch=50, optimizer=OptimizerConfig(lr=0.2)
    )
    w = {k: v.double() for k, v in chosen.task.init(rng.torch_rng(0, "init")).items()}
    g = [gradient(chosen, w, k) for k in (0, 1)]
    assert close(simulate(chosen).server, {k: w[k] - 0.2 * (0.25 * g[0][k] + 0.75 * g[1][k]) for k in w})


def test_private_leaves_stay_at_home() -> None:
    _, state = run(FedAvg(private=("head.*",)))
    assert set(state.memory) == {"head.weight", "head.bias"}
    assert not set(state.memory) & set(state.server)
    assert state.bytes_up == 3 * 3 * 8 * sum(v.numel() for v in state.server.values())
    assert gap(trees.row(state.memory, 0), trees.row(state.memory, 1)) > 1e-3
