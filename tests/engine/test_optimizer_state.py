"""protocol.optimizer.state=kept: each client's optimiser goes on from round to round, by every engine alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedbench.config import groups
from fedbench.config.compose import compose
from fedbench.config.schema import LocalConfig, OptimizerConfig
from fedbench.core import trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine import graphs
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.optim import KEPT
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation, State, load_state, save_state
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.engine.workers import WorkersTrainer
from fedbench.methods.fedala import FedALA
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedrema import FedReMa
from fedbench.methods.local import Local
from fedbench.models.small import LeNet5
from fedbench.runs.config import resolve
from fedbench.testing.checks import rerun
from tests.engine.toys import traced
from tests.helpers.tiers import sampled, tiered
from tests.methods.toys import close, federation, gap, initial, models, samples, setup, simulate

SGD = OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=0.01, clip=0.5, state="kept")
ADAM = OptimizerConfig(name="adam", lr=0.01, state="kept")
ADAMW = OptimizerConfig(name="adamw", lr=0.01, weight_decay=0.3, state="kept")


ENGINES: dict[str, Callable[[Setup], Trainer]] = {
    "stacked": lambda chosen: StackedTrainer(chosen, 2),
    "replayed": lambda chosen: StackedTrainer(chosen, 3, traced),
    "rerun": lambda chosen: StackedTrainer(chosen, 3, rerun),
    "workers": lambda chosen: WorkersTrainer(chosen, 2),
}


def as_looped(engine: str, config: OptimizerConfig) -> State:
    """The state after four rounds, which `engine` and the plain loop share.

    Clients are of different sizes, two of three a round, so that their optimisers' states are of different ages.
    """
    chosen = setup(FedAvg(), federation((13, 21, 5)), rounds=4, epochs=2, cohort=2, optimizer=config)
    plain, other = simulate(chosen), simulate(chosen, ENGINES[engine](chosen))
    assert gap(plain.optimizers, other.optimizers) < 1e-9
    assert gap(plain.server, other.server) < 1e-9
    return plain


def network(chosen: Setup) -> tuple[nn.Sequential, dict[str, Tensor]]:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 7), nn.ReLU(), nn.Linear(7, 4)).double()
    leaves = dict(zip(("fc.0.weight", "fc.0.bias", "head.weight", "head.bias"), net.parameters(), strict=True))
    with torch.no_grad():
        for name, leaf in leaves.items():
            leaf.copy_(initial(chosen)[name])
    return net, leaves


@pytest.mark.parametrize("config", [SGD, ADAM, ADAMW], ids=["sgd", "adam", "adamw"])
@pytest.mark.parametrize("method", [Local(), FedReMa()], ids=["local", "fedrema"])
def test_a_lone_client_trains_as_with_one_torch_optimiser(method: Any, config: OptimizerConfig) -> None:
    chosen = setup(method, federation((9,)), rounds=3, epochs=2, batch=50, optimizer=config)
    x, y = samples(chosen, 0)
    net, leaves = network(chosen)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    if config.name == "adam":
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    if config.name == "adamw":
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.3)
    for _ in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        if config.clip:
            nn.utils.clip_grad_norm_(net.parameters(), config.clip)
        optimizer.step()
    found = trees.row(models(chosen, simulate(chosen)), 0)
    assert close(found, {name: leaf.detach() for name, leaf in leaves.items()})
    fresh = setup(method, federation((9,)), rounds=3, epochs=2, batch=50, optimizer=replace(config, state="fresh"))
    assert gap(found, trees.row(models(fresh, simulate(fresh)), 0)) > 1e-4


def test_fedavg_by_hand_with_a_client_that_is_absent_for_a_round() -> None:
    """Velocity v_k <- .9 v_k + g from the client's own last round, whatever the server made of its model meanwhile."""
    chosen = setup(FedAvg(), federation((6, 9, 4)), rounds=4, epochs=1, batch=50, cohort=2, optimizer=SGD)
    w = dict(initial(chosen))
    velocity: dict[int, dict[str, Tensor]] = {}
    cohorts = [chosen.draw_cohort(Clock(number, 4)).tolist() for number in range(4)]
    assert any(set(a) != set(b) for a, b in itertools.pairwise(cohorts)), "somebody must be absent"
    for cohort in cohorts:
        trained, sizes = [], []
        for client in cohort:
            x, y = samples(chosen, client)
            net, leaves = network(chosen)
            with torch.no_grad():
                for name, leaf in leaves.items():
                    leaf.copy_(w[name])
            nn.functional.cross_entropy(net(x), y).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            before = velocity.get(client, {name: torch.zeros_like(leaf) for name, leaf in w.items()})
            grads = {name: leaf.grad for name, leaf in leaves.items()}
            velocity[client] = {name: 0.9 * before[name] + grads[name] + 0.01 * w[name] for name in w}
            trained.append({name: w[name] - 0.1 * velocity[client][name] for name in w})
            sizes.append(len(y))
        w = {
            name: sum(n * each[name] for n, each in zip(sizes, trained, strict=True)) / sum(sizes)  # type: ignore[misc]
            for name in w
        }
    assert close(trees.row(models(chosen, simulate(chosen)), 0), w)


@pytest.mark.parametrize("config", [SGD, ADAM], ids=["sgd", "adam"])
def test_what_a_client_keeps_is_found_again_where_a_first_round_has_fewer_stages(config: OptimizerConfig) -> None:
    """FedALA learns A from its second round on; with A of ones it is FedAvg."""
    method = FedALA(eta=0.0)
    assert {len(method.stages(LocalConfig(), Clock(number, 3))) for number in range(3)} == {2}
    ala, avg = (
        setup(each, federation((13, 21, 5)), rounds=3, epochs=2, optimizer=config) for each in (method, FedAvg())
    )
    assert gap(simulate(ala).server, simulate(avg).server) < 1e-12


@pytest.mark.parametrize("engine", tiered(ENGINES, quick=["stacked", "rerun", "workers"]))
@pytest.mark.parametrize("config", sampled([SGD, ADAM, ADAMW], every=4), ids=["sgd", "adam", "adamw"])
def test_every_engine_goes_on_alike(
    engine: str, config: OptimizerConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graphs, "WARM", 0)
    assert as_looped(engine, config).optimizers.initial, "nothing was kept"
    assert not caplog.records, "a step that is not captured is told"


FEW = ("fedavg", "fedrep", "pfedme", "fedbn")
REFUSING = {"dp_fedavg", "fednova", "scaffold"}  # see tests/methods


@pytest.mark.parametrize("preset", tiered(sorted(set(groups.names("method")) - REFUSING), quick=FEW))
def test_every_method_goes_on_alike_as_rows_of_one_program(preset: str) -> None:
    method = resolve(compose([f"method={preset}"])).method
    data, model = federation((13, 21, 5)), None
    if preset in ("fedbn", "finetune_norm"):  # which need batch normalisation
        data, model = federation((13, 21, 5), (1, 16, 16)), LeNet5(batch_norm=True)
    chosen = setup(method, data, model, rounds=2, epochs=1, optimizer=replace(SGD, lr=0.01))
    plain, other = simulate(chosen), simulate(chosen, StackedTrainer(chosen, 3))
    assert gap(plain.server, other.server) < 1e-6
    assert gap(plain.optimizers, other.optimizers) < 1e-6


def test_a_run_that_was_stopped_goes_on_with_it(tmp_path: Path) -> None:
    chosen = setup(FedAvg(), federation((13, 21, 5)), rounds=4, cohort=2, optimizer=SGD)
    whole, simulation = simulate(chosen), Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    simulation.step(state)
    simulation.step(state)
    save_state(tmp_path / "checkpoint", state, "key")
    state = load_state(tmp_path / "checkpoint", "key", torch.device("cpu"))
    while not simulation.done(state):
        simulation.step(state)
    assert gap(whole.server, state.server) == 0
    assert gap(whole.optimizers, state.optimizers) == 0


def test_it_crosses_no_network_and_is_the_methods_no_memory() -> None:
    kept, fresh = (simulate(setup(FedAvg(), optimizer=each)) for each in (SGD, replace(SGD, state="fresh")))
    assert (kept.bytes_up, kept.bytes_down) == (fresh.bytes_up, fresh.bytes_down)
    assert not kept.memory.initial
    assert not fresh.optimizers.initial


def test_plain_sgd_has_nothing_to_keep() -> None:
    state = simulate(setup(FedAvg(), optimizer=OptimizerConfig(state="kept")))
    assert not state.optimizers.initial


@dataclass(frozen=True)
class Halves(FedAvg):
    """The head, then the rest, then the head with an optimiser of its own: three stages, three states."""

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        own = OptimizerConfig(lr=0.1, momentum=0.5)
        return (
            Stage(self.loss, moves=("@head",)),
            Stage(self.loss, fixed=("@head",), order=1),
            Stage(self.loss, moves=("@head",), optimizer=own, order=2),
        )


def test_stages_keep_states_of_their_own() -> None:
    chosen = setup(Halves(), federation((9, 5)), rounds=2, optimizer=SGD)
    state = simulate(chosen)
    head, body = {"head.weight", "head.bias"}, {"fc.0.weight", "fc.0.bias"}
    found = {f"0/0/{name}" for name in head} | {f"1/0/{name}" for name in body}
    assert set(state.optimizers.initial) == found, "the third stage's optimiser is not the protocol's"
    assert gap(simulate(chosen, StackedTrainer(chosen, 2)).optimizers, state.optimizers) < 1e-9


@dataclass(frozen=True)
class Looks(FedAvg):
    """A method whose hooks see what the engine gave them."""

    def start(self, client: Client) -> Tree:
        assert not any(name.startswith(KEPT) for name in client.memory)
        return super().start(client)

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        assert not any(name.startswith(KEPT) for name in (*client.memory, *work))
        return super().loss(work, client, batch)


@pytest.mark.parametrize("engine", [None, "stacked"])
def test_hooks_do_not_see_it(engine: str | None) -> None:
    chosen = setup(Looks(), optimizer=SGD)
    state: State = simulate(chosen, ENGINES[engine](chosen) if engine else None)
    assert state.optimizers.initial


def test_the_papers_whose_code_keeps_it() -> None:
    names = groups.names("protocol")
    kept = {name for name in names if resolve(compose([f"protocol={name}"])).protocol.optimizer.state == "kept"}
    assert kept == {name for name in names if name.startswith(("fedrema", "sosicfl"))}
