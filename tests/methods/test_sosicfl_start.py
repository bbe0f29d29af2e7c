"""SosicFL's late start: the whole simplex before it, and centres of what is trained by then."""

from __future__ import annotations

import pytest
import torch

from fedbench.core import trees
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.simulation import Simulation, State
from fedbench.methods.fedcollab.fedcollab import FedCollab
from fedbench.methods.parts import simplex
from fedbench.methods.sosicfl import SosicFL
from fedbench.runs.config import canonical
from tests.methods.toys import FOUR, close, federation, gap, setup

GROUPS = [[0, 1], [2, 3], [0, 1], [2, 3]]


def after(method: SosicFL, rounds: int) -> tuple[Simulation, State]:
    chosen = setup(method, federation(FOUR, labels=GROUPS), rounds=6, cohort=0.75)
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    for _ in range(rounds):
        simulation.step(state)
    return simulation, state


def alphas(simulation: Simulation, server: Tree, client: int) -> torch.Tensor:
    """Draws of a client in the round to come, [400, n]."""
    chosen, clock = simulation.setup, Clock(0, 6)
    message = chosen.method.send(server, chosen.cohort(torch.arange(4), clock))
    known = chosen.client(client, trees.row(message, client), {}, clock)
    return chosen.method.draw(torch.Generator().manual_seed(0), 400, known)["alpha"]


def test_before_it_every_client_draws_from_the_whole_simplex() -> None:
    method = SosicFL(endpoints=2, clusters=2, rho=0.3, start_round=2)
    simulation, early = after(method, 1)
    everywhere = alphas(simulation, early.server, 0)[:, 0]
    assert float(everywhere.min()) < 0.05
    assert float(everywhere.max()) > 0.95
    assert close(early.server["region/center"], torch.full((4, 2), 0.5))
    simulation, late = after(method, 2)
    center, radius = late.server["region/center"], float(late.server["region/radius"])
    assert torch.equal(center[0], center[2])
    assert float((center[0] - center[1]).abs().sum()) > 1
    assert float((alphas(simulation, late.server, 0) - center[0]).abs().sum(1).max()) <= radius < 0.35


def test_until_it_comes_training_is_that_of_one_that_never_does() -> None:
    never, late = after(SosicFL(start_round=9), 3)[1], after(SosicFL(start_round=2), 3)[1]
    assert gap(trees.part(never.server, "endpoints"), trees.part(late.server, "endpoints")) > 1e-3
    never, late = after(SosicFL(start_round=9), 2)[1], after(SosicFL(start_round=2), 2)[1]
    assert gap(trees.part(never.server, "endpoints"), trees.part(late.server, "endpoints")) == 0


def test_labels_give_the_same_subregions_whenever_they_are_asked_for() -> None:
    early, late = after(SosicFL(), 0)[1], after(SosicFL(start_round=2), 2)[1]
    for name in ("region/center", "region/radius"):
        assert torch.equal(early.server[name], late.server[name])


def test_heads_are_trained_from_the_endpoints_of_that_round() -> None:
    """The authors' project_clients at round tau: everyone trains the endpoints that the server then has."""
    method = SosicFL(endpoints=3, positions="trained", sampling="unprojected", rho=0.1, start_round=2)
    simulation, before = after(SosicFL(endpoints=3, start_round=9), 2)  # the same two rounds
    chosen, clock = simulation.setup, Clock(2, 6)
    message = chosen.method.send(before.server, chosen.cohort(torch.arange(4), clock))
    trained = LoopedTrainer(chosen).train(torch.arange(4), message, {}, clock).uploads
    heads = trees.flatten(trees.part(trained, "endpoints")).double().numpy()
    expected = torch.from_numpy(simplex.spread_scores(heads, 3))
    found = after(method, 2)[1]
    assert close(found.server["region/center"], expected)
    assert float(found.server["region/radius"]) == pytest.approx(0.1)
    assert gap(trees.part(found.server, "endpoints"), trees.part(before.server, "endpoints")) == 0
    assert not close(after(method, 3)[1].server["region/center"], torch.full((4, 3), 1 / 3))


def test_a_late_start_has_a_key_of_its_own() -> None:
    """Checkpoints of earlier versions hold subregions before the start; what starts at once is as it was."""
    early, late = canonical(SosicFL()), canonical(SosicFL(start_round=5))
    assert (early["start_round"], late["start_round"]) == (0, "prepares after 5")


def test_it_is_refused_inside_another_method() -> None:
    with pytest.raises(ConfigError, match=r"SosicFL prepares after 5 rounds.*method\.base"):
        FedCollab(base={"name": "sosicfl", "start_round": 5})
    assert FedCollab(base={"name": "sosicfl"}).inner.prepare_round == 0
