"""Limits in which one method is another; what is private; the proximal pull under batch normalisation."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.engine import schedule
from fedbench.engine.contract import Stage
from fedbench.engine.method import Method
from fedbench.engine.setup import Setup
from fedbench.methods.apfl import APFL
from fedbench.methods.cwfedavg import CwFedAvg
from fedbench.methods.ditto import Ditto
from fedbench.methods.fedala import FedALA
from fedbench.methods.fedamp import FedAMP
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedcac import FedCAC
from fedbench.methods.fedcollab.distances import DiscriminatorConfig
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.feddistill import FedDistill
from fedbench.methods.fedgen import FedGen
from fedbench.methods.fedntd import FedNTD
from fedbench.methods.fedproto import FedProto
from fedbench.methods.fedprox import FedProx
from fedbench.methods.fedtgp import FedTGP
from fedbench.methods.fml import FML
from fedbench.methods.local import Local
from fedbench.methods.moon import Moon
from fedbench.methods.pfedsim import PFedSim
from fedbench.methods.sosicfl import SosicFL, SosicFLPlus
from fedbench.models.small import LeNet5
from tests.methods.toys import FOUR, close, federation, gap, models, setup, simulate

QUICK = DiscriminatorConfig(hidden=5, rounds=20)


LAWS: list[tuple[Method, Method, Method]] = [  # at its limit, elsewhere, what it is at its limit
    (FedProx(mu=0.0), FedProx(mu=1.0), FedAvg()),
    (FedNTD(beta=0.0), FedNTD(beta=5.0), FedAvg()),
    (CwFedAvg(lam=0.0, classwise=()), CwFedAvg(lam=0.0), FedAvg()),
    (Moon(mu=0.0), Moon(mu=5.0), FedAvg()),
    (FedALA(eta=0.0), FedALA(), FedAvg()),
    (FedCAC(tau=0.0), FedCAC(), FedAvg()),
    (FedGen(generative_weight=0.0, latent_weight=0.0), FedGen(), FedAvg()),
    (PFedSim(rho=1.0), PFedSim(rho=0.5), FedAvg()),
    (SosicFL(endpoints=1), SosicFL(endpoints=2), FedAvg()),
    (SosicFL(endpoints=1, simplex=("*",)), SosicFL(endpoints=2, simplex=("*",)), FedAvg()),
    (APFL(alpha=0.0), APFL(alpha=0.3), FedAvg()),
    (APFL(alpha=1.0), APFL(alpha=0.3), Local()),
    (Ditto(lam=0.0), Ditto(lam=1.0), Local()),
    (FedAMP(lam=0.0), FedAMP(attention="distance", sigma=0.5), Local()),
    (FedProto(lam=0.0, inference="head"), FedProto(inference="head"), Local()),
    (FedDistill(lam=0.0), FedDistill(), Local()),
    (FedTGP(lam=0.0, epochs=2, inference="head"), FedTGP(epochs=2, inference="head"), Local()),
    (FML(alpha=1.0), FML(), Local()),
    (SosicFLPlus(endpoints=1, lam=0.7), SosicFLPlus(endpoints=2, lam=0.7), Ditto(lam=0.7)),
]


def run(method: Method, **options: Any) -> tuple[Setup, Any]:
    chosen = setup(method, federation(FOUR), cohort=0.75, rounds=3, **options)
    return chosen, simulate(chosen)


@functools.cache
def network(method: Method) -> trees.Tree:
    """The network of every client after three rounds, without what a method adds to it."""
    chosen, state = run(method)
    found = models(chosen, state)
    return {name: found[name] for name in chosen.task.parameters}


@pytest.mark.parametrize(("limit", "elsewhere", "other"), LAWS, ids=lambda each: type(each).__name__)
def test_at_a_limit_a_method_is_another(limit: Method, elsewhere: Method, other: Method) -> None:
    assert close(network(limit), network(other))
    assert gap(network(elsewhere), network(other)) > 1e-4


@pytest.fixture(scope="module")
def fedavg() -> trees.Tree:
    return run(FedAvg())[1].server  # type: ignore[no-any-return]


def test_dittos_server_is_fedavg_whatever_the_pull(fedavg: trees.Tree) -> None:
    assert close(run(Ditto(lam=0.7))[1].server, fedavg)


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


def test_private_leaves_stay_at_home() -> None:
    _, state = run(FedAvg(private=("head.*",)))
    assert set(state.memory) == {"head.weight", "head.bias"}
    assert not set(state.memory) & set(state.server)
    assert state.bytes_up == 3 * 3 * 8 * sum(v.numel() for v in state.server.values())
    assert gap(trees.row(state.memory, 0), trees.row(state.memory, 1)) > 1e-3
