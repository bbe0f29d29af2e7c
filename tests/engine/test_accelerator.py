"""Runs under a GPU's rules of placement, without one: nothing is refused, and the host hardly waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.config import groups
from fedbench.config.schema import OptimizerConfig
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine import schedule
from fedbench.engine.contract import Client
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedrep import FedRep
from fedbench.models import MODELS
from fedbench.models.small import MLP
from fedbench.testing.toys import KINDS, Subject, federation, setup
from tests.helpers.accelerator import DEVICE, Accelerator
from tests.helpers.pretended import ENGINES, Trial, federated, trial
from tests.helpers.tiers import tiered

PRESETS = sorted(file.stem for file in (groups.conf_dir() / "method").glob("*.yaml"))
# Of each kind of server: means, a graph, coalitions, models of all, statistics of classes, learning, drawn noise,
# subspaces.
FEW = [
    "fedavg",
    "cfl",
    "fedfomo",
    "fedgen",
    "fednova",
    "fedproto",
    "fedrema",
    "ifca",
    "perfedavg",
    "pfedgraph",
    "sosicfl",
    "fedsac",
]
MOST = 8  # waits a round


def check(found: Trial) -> None:
    assert found.apart < 1e-6
    assert found.step == 0, found.kinds
    assert found.round <= MOST, found.kinds


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("preset", tiered(FEW, quick=["cfl", "fedsac"]))
def test_a_cohort_of_sixteen_waits_as_often_as_one_of_four(preset: str, engine: str) -> None:
    subject = Subject.of(preset)
    for cohort in (4, 16):
        check(trial(federated(subject, "mlp", cohort), ENGINES[engine]))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset(preset: str, kind: str, engine: str) -> None:
    subject = Subject.of(preset)
    check(trial(lambda device: subject.toy(kind, device=device), ENGINES[engine]))


NETWORKS: dict[str, tuple[tuple[int, int, int], dict[str, object]]] = {
    **dict.fromkeys(["lenet5", "cnn5", "simple_cnn", "fedrema_alexnet"], ((3, 32, 32), {})),
    **dict.fromkeys(["resnet18", "mobilenet_v2", "squeezenet"], ((3, 32, 32), {"pretrained": False})),
    "fedrema_cnn": ((1, 28, 28), {}),
    "cub_cnn": ((3, 64, 64), {}),
    "textcnn": ((1, 1, 14), {"vocabulary": 9}),
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network(name: str, engine: str) -> None:
    shape, fields = NETWORKS[name]
    model = MODELS.build({"name": name, **fields})

    def toy(device: torch.device) -> Setup:
        data = federation((16, 16), shape, classes=10, device=device)
        return setup(FedAvg(), data, model, rounds=2, epochs=1, optimizer=OptimizerConfig(lr=0.01))

    check(trial(toy, ENGINES[engine]))


@dataclass(frozen=True)
class Noisy(FedRep):
    """FedRep, two stages with different mini-batches, with noise that the server has a say in."""

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        """Read off the message: not known before it is sent."""
        return {"scale": client.message["fc.0.bias"].sum().expand(steps) + 1}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        """FedRep's, scaled."""
        return batch.noise["scale"] * super().loss(work, client, batch)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_next_rounds_mini_batches_are_drawn_before_the_host_waits(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of rounds 2 and 3 in the round before; all of them as a CPU draws them."""
    drawn: list[tuple[int, int]] = []  # (round that is under way, waits in it so far) of each draw
    batches = schedule.batches

    def watched(*arguments: Any) -> schedule.Order:
        drawn.append((len(rounds), sum(counts.total() for counts in gpu.waits.values())))
        return batches(*arguments)

    def toy(device: torch.device) -> Setup:
        data = federation((9, 5, 13), device=device)
        return setup(Noisy(), data, MLP(hidden=(3,)), rounds=3, epochs=1, cohort=2)

    found = trial(toy, ENGINES[engine])
    assert found.apart == 0
    check(found)
    rounds: list[int] = []
    with Accelerator() as gpu:
        chosen = toy(DEVICE)
        simulation = Simulation(chosen, ENGINES[engine](chosen))
        state = simulation.begin()
        monkeypatch.setattr(schedule, "batches", watched)
        while not simulation.done(state):
            gpu.waits.clear()
            simulation.step(state)
            rounds.append(state.round)
    assert [under_way for under_way, _ in drawn] == [0] * 8 + [1] * 4
    assert max(waits for _, waits in drawn) == 1, "for the leaf that `draw` reads"
