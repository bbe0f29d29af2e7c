"""Clients that stop early, and uploads that never arrive: by hand, by every engine, after any interruption."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from fedbench.config.fields import typed
from fedbench.config.schema import ProtocolConfig, WorkConfig
from fedbench.core import trees
from fedbench.core.errors import FedbenchError
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.setup import Setup
from fedbench.engine.simulation import Simulation, pack, unpack
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.workers import WorkersTrainer
from fedbench.methods import METHODS
from fedbench.methods.fedavg import FedAvg
from fedbench.testing.checks import equal, everything, rerun
from tests.helpers import pair
from tests.helpers.tiers import sampled
from tests.methods.toys import federation, gap, setup, simulate

SIZES = (6, 13, 8, 21, 30, 5, 17)
WORK = WorkConfig(partial=0.5, fraction=0.3, dropout=0.4)


def toy(name: str = "fedavg", work: WorkConfig = WORK, **options: Any) -> Setup:
    method = METHODS.build({"name": name, **options.pop("fields", {})})
    return setup(method, federation(SIZES), **{"rounds": 4, "cohort": 0.8, "work": work, **options})


@pytest.mark.slow
def test_draws_are_of_seed_round_and_client_alone() -> None:
    """Whatever the method or the company; shares are about as asked for."""
    one, other = toy(), toy("local", cohort=0.2, iterations=5)
    every = [(client, Clock(number, 4)) for client in range(7) for number in range(60)]
    drawn = [one.falls_short(*each) for each in every]
    assert drawn == [other.falls_short(*each) for each in every]
    assert drawn != [toy(seed=1).falls_short(*each) for each in every]
    stopped = sum(share == 0.3 for share, _ in drawn) / len(drawn)
    lost = sum(not arrives for _, arrives in drawn) / len(drawn)
    both = sum(share == 0.3 and not arrives for share, arrives in drawn) / len(drawn)
    assert {share for share, _ in drawn} == {0.3, 1.0}
    assert (stopped, lost, both) == pytest.approx((0.5, 0.4, 0.2), abs=0.07)


def test_a_client_that_stops_early_does_its_first_steps() -> None:
    short, full = toy(work=WorkConfig(partial=1.0, fraction=0.3)), toy(work=WorkConfig())
    for client, size in enumerate(SIZES):
        for stage in (Stage(), Stage(iterations=10), Stage(epochs=3, order=1)):
            whole, part = (each.order(client, stage, Clock(1, 4), "batches") for each in (full, short))
            assert len(part) == math.ceil(0.3 * len(whole) - 1e-9)
            assert part.positions.tolist() == whole.cut(0, len(part)).positions.tolist()
            before = [each.order(client, stage, Clock(1, 4), "adapt").positions.tolist() for each in (full, short)]
            assert before[0] == before[1]  # what fits a model before it is scored is not cut
        assert short.steps(client, Clock(1, 4)) == math.ceil(0.3 * 2 * math.ceil(size / 8))


def test_a_round_is_that_of_a_loop_by_hand() -> None:
    """Everybody trains as far as it comes; the average is over those who arrive, weighted by their samples."""
    chosen = toy(cohort=1.0)
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state, heard = simulation.begin(), list[int]()
    for number in range(3):
        before, up, down = trees.clone(state.server), state.bytes_up, state.bytes_down
        simulation.step(state)
        ends, sizes = [], []
        for client, size in enumerate(SIZES):
            share, arrives = chosen.falls_short(client, Clock(number, 4))
            order = toy(work=WorkConfig()).order(client, Stage(), Clock(number, 4), "batches")
            owned, work = chosen.federation.indices("train", client), before
            for positions in list(order)[: math.ceil(share * len(order) - 1e-9)]:
                leaves = {name: leaf.clone().requires_grad_() for name, leaf in work.items()}
                x, y = chosen.federation.gather(owned[positions])
                loss = torch.nn.functional.cross_entropy(chosen.task.apply(leaves, x), y)
                steps = torch.autograd.grad(loss, list(leaves.values()))
                work = {
                    name: leaf.detach() - 0.1 * step for (name, leaf), step in zip(leaves.items(), steps, strict=True)
                }
            if arrives:
                ends.append(work)
                sizes.append(float(size))
        heard.append(len(ends))
        weights = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
        assert gap(state.server, trees.mean(trees.stack(ends), weights)) < 1e-12
        model = trees.row_bytes(trees.stack([before]))
        assert (state.bytes_up - up, state.bytes_down - down) == (len(ends) * model, len(SIZES) * model)
    assert 0 < min(heard) < len(SIZES)


def test_a_server_that_hears_from_nobody_goes_on_as_it_was() -> None:
    chosen = toy(cohort=1, work=WorkConfig(dropout=0.5), rounds=8)
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state, arrivals = simulation.begin(), []
    for number in range(8):
        before, up = trees.clone(state.server), state.bytes_up
        client = int(chosen.draw_cohort(Clock(number, 8))[0])
        simulation.step(state)
        arrivals.append(chosen.falls_short(client, Clock(number, 8))[1])
        assert (gap(before, state.server) > 0, state.bytes_up > up) == (arrivals[-1], arrivals[-1])
    assert set(arrivals) == {True, False}


def test_what_a_lost_client_learnt_it_keeps() -> None:
    """Local sends nothing, so nothing is lost; with the same draws it stops early as often."""
    stops = WorkConfig(partial=0.5, fraction=0.3)
    lost, kept = simulate(toy("local")), simulate(toy("local", stops))
    assert gap(lost.memory, kept.memory) == 0
    assert gap(simulate(toy("local", WorkConfig())).memory, kept.memory) > 1e-3


@pytest.mark.parametrize("name", sampled(["fednova", "ditto", "apfl", "scaffold", "fedrep"], every=3))
def test_engines_agree(name: str) -> None:
    """Of stages that are counted in epochs and in iterations, so that who has most steps differs between them."""
    fields = {"fedrep": {"head_iterations": 9}}.get(name, {})
    options: dict[str, Any] = {"iterations": 12} if name == "fedrep" else {}
    chosen = toy(name, fields=fields, score="trained", **options)
    expected = simulate(chosen)
    for trainer in (StackedTrainer(chosen, 2), StackedTrainer(chosen, 99, rerun)):
        found = simulate(chosen, trainer)
        assert max(gap(found.server, expected.server), gap(found.memory, expected.memory)) < 1e-9
        assert gap(everything(found), everything(expected)) < 1e-6
    if name == "fednova":
        assert equal(everything(simulate(chosen, WorkersTrainer(chosen, 2))), everything(expected))


def test_fednova_is_told_the_steps_that_were_done() -> None:
    """So that a client which stops early weighs as its paper says."""
    chosen = toy("fednova", WorkConfig(partial=0.5, fraction=0.3))
    clock = Clock(0, 4)
    ids = torch.arange(7)
    steps = [len(chosen.order(client, Stage(), clock, "batches")) for client in range(7)]
    assert chosen.cohort(ids, clock).steps.tolist() == steps
    message = trees.expand(chosen.task.init(torch.Generator().manual_seed(0)), 7)
    uploads = LoopedTrainer(chosen).train(ids, chosen.federation.placed(message), {}, clock).uploads
    assert uploads["steps"].tolist() == steps
    assert set(steps) == {2, 6, 8}


def test_a_resumed_run_goes_on_alike() -> None:
    chosen = toy("scaffold")
    simulation = Simulation(chosen, LoopedTrainer(chosen))
    state = simulation.begin()
    while not simulation.done(state):
        state = unpack(*pack(state), torch.device("cpu"))
        simulation.step(state)
    assert equal(everything(state), everything(simulate(chosen)))


def test_of_every_kind_of_client_some_fall_short() -> None:
    """Clients 0 and 1 see images, the others captions."""
    chosen = pair.pair(FedAvg(), rounds=3, cohort="5", work=WORK)
    state = pair.simulate(chosen)
    expected = 0
    for number in range(3):
        for client in range(5):
            arrives = chosen.falls_short(client, Clock(number, 3))[1]
            own = chosen.modalities[pair.KIND[client]].task.parameters
            expected += arrives * sum(state.server[name].numel() * 8 for name in own)
    assert state.bytes_up == expected
    assert all(bool(leaf.isfinite().all()) for leaf in state.server.values())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"partial": 1.5}, "protocol.work.partial must lie in [0, 1], got 1.5"),
        ({"partial": 0.5, "fraction": 0}, "protocol.work.fraction must lie in (0, 1], got 0"),
        ({"dropout": 1.0}, "protocol.work.dropout must lie in [0, 1), got 1.0"),
        (
            {"fraction": 0.2},
            "protocol.work.fraction=0.2 has no effect without partial work; set protocol.work.partial",
        ),
        ({"late": 0.2}, "late"),
    ],
)
def test_impossible_work_is_refused_in_one_line(values: dict[str, float], message: str) -> None:
    with pytest.raises(FedbenchError, match=re.escape(message)) as caught:
        typed(ProtocolConfig, {"work": values}, "protocol")
    assert "\n" not in str(caught.value)
