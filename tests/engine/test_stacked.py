"""Pieces of the stacked engine against loops: batches as a rectangle, losses, programs alike, models in part shared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.config.schema import LocalConfig, OptimizerConfig, TestConfig
from fedbench.core import trees
from fedbench.core.batch import Batch, Population
from fedbench.core.rng import torch_rng
from fedbench.core.trees import Tree
from fedbench.data.federation import Ragged
from fedbench.engine import graphs, stacked
from fedbench.engine.contract import Client, ClientHook, Clock, Stage
from fedbench.engine.hooks import HookError
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.schedule import Order
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import BatchPlan, Program, StackedTrainer
from fedbench.engine.trainer import Outcome
from fedbench.methods.fedavg import FedAvg
from fedbench.models.task import Task
from fedbench.testing.checks import rerun
from tests.engine.broken import Broken
from tests.methods.toys import cross_entropy, descend, federation, gap, initial, logits, setup, simulate

CLOCK = Clock(0, 3)


@pytest.mark.parametrize(
    ("sizes", "steps", "width"),
    [
        ([[3, 3, 1], [2, 1], []], 0, 0),
        ([[3, 3], [3], [3]], 0, 0),
        ([[3, 3], [3]], 4, 3),
        ([[1, 1], [1]], 0, 2),
        ([[1], [1]], 0, 0),
        ([[2, 2]], 0, 0),
        ([[], []], 0, 0),
    ],
)
def test_batches_as_a_rectangle_are_those_of_a_loop(sizes: list[list[int]], steps: int, width: int) -> None:
    data, generator = federation((9, 13, 8)), torch_rng(0, "test")
    ids = [2, 0, 1][: len(sizes)]
    drawn: Any = [
        (
            Order(torch.randint(data.size(k), (sum(own),), generator=generator), own),
            {"noise": torch.rand(len(own), 2, generator=generator)},
        )
        for k, own in zip(ids, sizes, strict=True)
    ]
    plan = BatchPlan.of(data, ids, drawn, steps, width)
    most = max(steps, *map(len, sizes), 0)
    widest = max([width, *(size for own in sizes for size in own)])
    assert plan.indices.shape == plan.mask.shape == (len(ids), most, widest)
    assert plan.noise["noise"].shape == (len(ids), most, 2)
    now = [[own[t] if t < len(own) else 0 for own in sizes] for t in range(most)]
    assert plan.active == [sum(size > 0 for size in each) for each in now if any(each)]
    assert plan.full == [all(size in (0, widest) for size in each) for each in now if any(each)]
    for row, (client, (order, noise)) in enumerate(zip(ids, drawn, strict=True)):
        owned, batches = data.indices("train", client), list(order)
        for t in range(most):
            batch = batches[t] if t < len(batches) else order.positions[:0]
            assert plan.mask[row, t].tolist() == [place < len(batch) for place in range(widest)]
            assert plan.indices[row, t, : len(batch)].tolist() == owned[batch].tolist()
            expected = noise["noise"][t] if t < len(batches) else torch.zeros(2)
            assert plan.noise["noise"][row, t].tolist() == expected.tolist()


def test_losses_are_the_means_over_the_steps_of_a_loop_by_hand() -> None:
    chosen = setup(FedAvg(), epochs=2)
    message = trees.expand(initial(chosen), 5)
    expected = []
    for client in range(5):
        work, owned, losses = initial(chosen), chosen.federation.indices("train", client), []
        for positions in chosen.order(client, Stage(), CLOCK, "batches"):
            x, y = chosen.federation.gather(owned[positions])
            losses.append(cross_entropy(logits(work, x), y))
            work = descend(lambda w, x=x, y=y: cross_entropy(logits(w, x), y), work, 0.1)  # type: ignore[misc]
        expected.append(float(sum(losses)) / len(losses))
    for trainer in (LoopedTrainer(chosen), StackedTrainer(chosen, 2), StackedTrainer(chosen, 5, rerun)):
        found = trainer.train(torch.arange(5), message, {}, CLOCK, ("local",))
        assert found.loss.dtype == torch.float64
        assert not found.loss.requires_grad
        assert found.loss.tolist() == pytest.approx(expected, rel=1e-12)
        assert {leaf.dtype for pair in found.counts.values() for leaf in pair} == {torch.float64}


@dataclass(frozen=True)
class Rich(FedAvg):
    """Reads what it is sent, keeps and draws in its loss, which also reads the client's size and steps."""

    def init(self, task: Task, population: Population, generator: torch.Generator) -> tuple[Tree, Tree]:
        server, _ = super().init(task, population, generator)
        return server, {"own": torch.arange(float(population.clients))}

    def start(self, client: Client) -> Tree:
        return dict(client.message)

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        return {"weight": torch.rand(steps, generator=generator, dtype=torch.float64)}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        plain = super().loss(work, client, batch)
        moved = sum((work[name] - leaf).square().sum() for name, leaf in client.message.items())
        return plain * batch.noise["weight"] + moved * client.memory["own"] + plain * client.size / client.steps

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        return dict(work), client.memory


@pytest.mark.parametrize("kept", [True, False])
def test_a_program_on_other_tensors_trains_on_all_of_those(kept: bool) -> None:
    """As the program that was made of them, with whatever its loss and its optimiser read."""
    adam = OptimizerConfig(name="adam", lr=0.01, state="kept" if kept else "fresh")
    chosen = setup(Rich(), federation((9, 13, 16)), batch=8, optimizer=adam)
    trainer, made = StackedTrainer(chosen, 9), list[Program]()

    def program(ids: list[int], clock: Clock, seed: int) -> Program:
        model = chosen.federation.placed(chosen.task.init(torch.Generator().manual_seed(seed)))
        memory = {"own": 1.0 + torch.tensor(ids).double()}
        if kept:
            moments = {f"{k}/{name}": torch.rand_like(leaf) for k in (0, 1) for name, leaf in model.items()}
            state = trees.stack([moments] * 2) | {"count": torch.tensor([3.0, 5.0]).double()}
            memory |= trees.join(optimizer=trees.join(**{"0": state}))

        def keep(chunk: Any) -> Outcome:
            (stage,) = chosen.method.stages(chosen.protocol.local, clock)
            work = trees.clone(trainer.map("start", "start", chosen.method.start, chunk))
            own = trees.under(trees.clone(chunk.optimizers), "0")
            made.append(Program(trainer, stage, chunk, work, trainer._plan(chunk, stage, "batches"), own))
            return Outcome({}, {}, torch.zeros(len(ids)))

        trainer.in_chunks(torch.tensor(ids), trees.stack([model] * 2), memory, clock, keep)
        return made[-1]

    first, second = program([1, 2], CLOCK, 0), program([2, 0], Clock(2, 3), 1)
    given = {name: leaf.clone() for name, leaf in second.inputs().items()}
    parts = {"work", "message", "memory", "noise", "own", *["kept"] * kept}
    assert {name.split("/")[0] for name in given} == parts
    other = first.over(given)
    assert all(leaf is given[name] for name, leaf in other.inputs().items())
    before = trees.clone(first.work)
    other.run()
    second.run()
    assert gap(other.work, second.work) == gap(first.work, before) == 0
    assert torch.equal(other.total, second.total)
    state = {name: torch.full_like(leaf, 3) for name, leaf in other.state().items()}
    assert len(state) == (2 if kept else 3 + 2 * len(other.work)), "what is kept is an input"
    if not kept:
        assert all(leaf is state[name] for name, leaf in first.over(given, state).state().items())
    assert first.over(given).state()["at"].tolist() == [0]


def test_programs_are_alike_that_differ_in_values_alone() -> None:
    def program(leaf: Tensor, stage: Stage, **dims: Any) -> Any:
        return SimpleNamespace(inputs=lambda: {"a": leaf}, chunk=SimpleNamespace(dims=dims), stage=stage)

    one, leaf = Stage(FedAvg().loss), torch.zeros(2, 3)
    hook: Any = FedAvg().start
    alike = program(leaf, one, a=0)
    assert stacked._alike(alike, program(leaf + 1, Stage(FedAvg().loss), a=0)), "hooks of equal methods are equal"
    assert stacked._same(Stage(direction=FedAvg().loss), Stage(direction=FedAvg().loss))  # type: ignore[arg-type]
    for other in (
        program(torch.zeros(2, 4), one, a=0), program(leaf.double(), one, a=0), program(leaf, one, a=None),
        program(leaf, replace(one, lr=0.1), a=0), program(leaf, Stage(FedAvg(private=("@head",)).loss), a=0),
        program(leaf, Stage(hook), a=0), program(leaf, replace(one, direction=hook), a=0),
    ):  # fmt: skip
        assert not stacked._alike(alike, other)
        assert not stacked._alike(other, alike)


def test_rows_of_a_program_by_hand() -> None:
    """Three quarters, rounded down, as long as they suffice: 100, 75, 56, 42, 31, ..., 3, 2, 1."""
    expected = {100: 100, 76: 100, 75: 75, 74: 75, 57: 75, 56: 56, 43: 56, 42: 42, 3: 3, 2: 2, 1: 1}
    assert {active: stacked.rows_for(active, 100) for active in expected} == expected
    assert [stacked.rows_for(active, 4) for active in (1, 2, 3, 4)] == [1, 2, 3, 4]


@dataclass(frozen=True)
class Halved(FedAvg):
    """A learning rate that is halved in the second round."""

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        return (Stage(self.loss, lr=0.1 / (1 + clock.round)),)


def test_another_program_warms_up_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two rounds takes four steps of two whole batches, of which the first three warm up."""
    monkeypatch.setattr(graphs, "WARM", 3)
    captured, replays = list[tuple[int, bool]](), list[int]()

    def capture(program: Program, rows: int, full: bool) -> Any:
        captured.append((rows, full))
        again = rerun(program, rows, full)
        return lambda: (replays.append(rows), again())  # type: ignore[func-returns-value]

    chosen = setup(Halved(), federation((16, 16)))
    found = simulate(chosen, StackedTrainer(chosen, 2, capture))
    assert gap(found.server, simulate(chosen, StackedTrainer(chosen, 2)).server) < 1e-12
    assert captured == [(2, True)] * 2
    assert replays == [2, 2]


def test_steps_that_are_replayed_name_the_clients_of_their_own_round() -> None:
    broken = setup(Broken(hook="loss"), federation((9, 9, 9, 9, 9)), cohort=2, score="trained", seed=1)
    first, second = (broken.draw_cohort(Clock(number, 2)).tolist() for number in (0, 1))
    assert first != second
    with pytest.raises(HookError, match=rf"in round 2 for 2 clients, {second[0]}, {second[1]}:"):
        simulate(broken, StackedTrainer(broken, 2, rerun))


@pytest.mark.parametrize(("at_once", "clients", "width"), [(6, 3, 2), (7, 3, 2), (2, 3, 1), (0, 1, 1), (9, 1, 9)])
def test_scoring_takes_so_many_samples_at_once(
    at_once: int, clients: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    class Seen(FedAvg):
        def predict(self, model: Tree, x: Tensor, task: Task) -> Tensor:
            seen.append(len(x))
            return super().predict(model, x, task)

    monkeypatch.setattr(stacked, "EVALUATION_SAMPLES", at_once)
    chosen = setup(Seen(), federation((4,) * 3, tests=9))
    message = trees.stack([initial(chosen)] * clients)
    counts = StackedTrainer(chosen, 5).evaluate(torch.arange(clients), message, {}, CLOCK, ("local",))
    assert seen == [*[width] * (9 // width), *[9 % width] * (9 % width > 0)]
    assert counts["local"][1].sum() == 9 * clients


@dataclass(frozen=True)
class Validating(FedAvg):
    """Its models depend on the validation samples."""

    @property
    def reads_data(self) -> frozenset[ClientHook]:
        return frozenset({"start"})

    def start(self, client: Client) -> Tree:
        held = client.validation
        return {name: leaf + held.mean(held.x.flatten(1).mean(1)) for name, leaf in client.message.items()}


def scored(chosen: Setup, message: Tree, engine: Any) -> list[Any]:
    counts = engine.evaluate(torch.arange(5), message, {}, CLOCK, ("local", "global"))
    return [leaf.tolist() for pair in counts.values() for leaf in pair]


@pytest.mark.parametrize("empty", [[], [1, 3], [0, 1, 2, 3, 4]])
def test_training_samples_stand_for_validation_samples_of_those_who_have_none(empty: list[int]) -> None:
    data = federation()
    lists = [np.array([], dtype=np.int64) if k in empty else data.sets["val"][k].numpy() for k in range(5)]
    data.sets["val"] = Ragged.of(lists, data.device)
    chosen = setup(Validating(), data, test=TestConfig(sets="both", val_fraction=0.1))
    message, ids = trees.expand(initial(chosen), 5), torch.arange(5)
    one, other = (each.train(ids, message, {}, CLOCK) for each in (LoopedTrainer(chosen), StackedTrainer(chosen, 5)))
    assert gap(one.uploads, other.uploads) < 1e-12


def test_models_that_share_a_part_are_each_scored() -> None:
    chosen = setup(FedAvg(), test=TestConfig(sets="both"))
    each = [chosen.federation.placed(chosen.task.init(torch.Generator().manual_seed(k))) for k in range(5)]
    message = trees.expand(each[0], 5) | {name: torch.stack([m[name] for m in each]) for name in ("head.weight",)}
    found = [scored(chosen, message, engine) for engine in (LoopedTrainer(chosen), StackedTrainer(chosen, 5))]
    assert found[0] == found[1]
    assert len({tuple(row) for row in found[0][2]}) > 1
