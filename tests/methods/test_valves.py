"""GPFL and FedCP, small networks that turn features before a head: limits in which they are FedPer, noise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation
from fedbench.methods.fedcp import FedCP
from fedbench.methods.fedper import FedPer
from fedbench.methods.gpfl import GPFL
from tests.methods.toys import (
    BODY,
    FOUR,
    HEAD,
    close,
    derivative,
    federation,
    samples,
    setup,
    simulate,
)


def begun(chosen: Any) -> tuple[Simulation, Any]:
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    return simulation, simulation.begin()


def test_gpfl_with_a_closed_valve_and_no_embeddings_is_fedper() -> None:
    """gamma = beta = 0, E = 0: the loss is FedPer's plus that of a guess, and so are the slopes of body and head."""
    chosen = setup(GPFL(lam=0.0, mu=0.0), federation((9,)))
    _, state = begun(chosen)
    closed = {
        name: torch.zeros_like(leaf) if name.endswith((".scale", ".shift", "embeddings")) else leaf
        for name, leaf in trees.clone(state.server).items()
    }
    x, y = samples(chosen, 0)
    view = chosen.client(0, closed, trees.row(state.memory.take(torch.tensor([0])), 0), Clock(0, 2))
    work = chosen.method.start(view)
    model = {name: work[name] for name in (*BODY, *HEAD)}

    def gpfl(w: Tree) -> Tensor:
        return chosen.method.loss({**work, **w}, view, Batch(x, y))

    def fedper(w: Tree) -> Tensor:
        return FedPer().loss(w, view, Batch(x, y))

    assert close(gpfl(model), fedper(model) + torch.tensor(4.0).double().log(), 1e-9)
    assert close(derivative(gpfl, model), derivative(fedper, model))


def test_fedcp_is_fedper_where_all_features_are_the_clients_own() -> None:
    """A policy that says r = 1 whatever comes, no distance; of the received head its bias would be left."""
    options: dict[str, Any] = {"cohort": 0.75, "rounds": 1}
    chosen = setup(FedCP(lam=0.0), federation(FOUR), **options)
    simulation, state = begun(chosen)
    state.server["policy/scale"].zero_()
    state.server["policy/shift"][:7] = 1e4
    state.server["head/head.bias"].zero_()
    simulation.step(state)
    fedper = simulate(setup(FedPer(), federation(FOUR), **options))
    assert close({name: state.server[name] for name in BODY}, fedper.server)
    assert close({name: state.memory[name] for name in HEAD}, {name: fedper.memory[name] for name in HEAD})


def test_fedcps_noise_is_gumbels() -> None:
    """Its mean is Euler's constant, its variance pi^2 / 6."""
    chosen = setup(FedCP(noise=200), federation((9,)))
    _, state = begun(chosen)
    view = chosen.client(
        0,
        trees.row(chosen.method.send(state.server, chosen.cohort(torch.tensor([0]), Clock(0, 2))), 0),
        {},
        Clock(0, 2),
    )
    drawn = chosen.method.draw(torch.Generator().manual_seed(0), 10, view)["gumbel"]
    assert drawn.shape == (10, 200, 2, 7)
    assert float(drawn.mean()) == pytest.approx(0.5772, abs=0.03)
    assert float(drawn.var()) == pytest.approx(1.645, abs=0.06)
