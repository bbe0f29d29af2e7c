"""What a method may ask of the engines: stages, directions, noise, augmentation. Looped and stacked, one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedbench.config.schema import LocalConfig, OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch
from fedbench.core.trees import Tree
from fedbench.engine import schedule
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.setup import Setup
from fedbench.methods.fedavg import FedAvg
from fedbench.models.small import MLP, LeNet5
from tests.engine.toys import both
from tests.methods.toys import SIZES, close, federation, gap, setup, simulate

HEAVY = OptimizerConfig(lr=0.05, momentum=0.9, weight_decay=1e-2, clip=1.0)


def on_lenet(method: FedAvg, **options: object) -> Setup:
    return setup(method, federation(SIZES, (1, 16, 16)), LeNet5(batch_norm=True), optimizer=HEAVY, **options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Directed(FedAvg):
    """FedAvg told as a direction: the gradient, and the statistics that the forward pass moved."""

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        return (Stage(direction=self.direction),)

    def direction(self, work: Tree, client: Client, batch: Batch) -> Tree:
        weights, statistics = trees.split(work, client.task.parameters)

        def loss(weights: Tree) -> tuple[Tensor, Tree]:
            moved = trees.map_leaves(torch.clone, statistics)
            return client.task.loss({**weights, **moved}, batch), moved

        gradient, moved = torch.func.grad(loss, has_aux=True)(weights)
        return {**gradient, **moved}


@pytest.mark.parametrize("kind", ["mlp", "batch_norm"])
def test_a_direction_equal_to_the_gradient_is_the_gradient(kind: str) -> None:
    def made(method: FedAvg) -> Setup:
        return on_lenet(method) if kind == "batch_norm" else setup(method, optimizer=HEAVY)

    looped, stacked = both(made(Directed()))
    assert gap(looped.server, simulate(made(FedAvg())).server) < 1e-9
    assert torch.isnan(torch.tensor([r.train_loss for r in looped.history.records])).all(), "no loss to report"
    assert torch.isnan(torch.tensor([r.train_loss for r in stacked.history.records])).all()


@dataclass(frozen=True)
class HeadThenBody(FedAvg):
    """Two stages with their own length, rate and batches."""

    same_batches: bool = False

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        order = 0 if self.same_batches else 1
        return (
            Stage(self.loss, moves=("@head",), epochs=3, optimizer=OptimizerConfig(name="adam", lr=0.01)),
            Stage(self.loss, moves=("@body",), iterations=2, lr=0.02, order=order),
        )


def hand_staged(chosen: Setup, client: int, second_order: int) -> Tree:
    """HeadThenBody's first round on one client, with torch.optim on the toy MLP's leaves."""
    data, local = chosen.federation, chosen.protocol.local
    start = {k: v.double() for k, v in chosen.task.init(rng.torch_rng(chosen.seed, "init")).items()}
    leaves = {k: v.requires_grad_(True) for k, v in start.items()}
    head = [leaves[k] for k in sorted(leaves) if k.startswith("head.")]
    body = [leaves[k] for k in sorted(leaves) if not k.startswith("head.")]
    x, y = data.gather(data.indices("train", client))
    momentum, decay = chosen.protocol.optimizer.momentum, chosen.protocol.optimizer.weight_decay
    plan: list[tuple[torch.optim.Optimizer, Stage, int]] = [
        (torch.optim.Adam(head, lr=0.01), Stage(epochs=3), 0),
        (
            torch.optim.SGD(body, lr=0.02, momentum=momentum, weight_decay=decay),
            Stage(iterations=2),
            second_order,
        ),
    ]
    for optimizer, stage, order in plan:
        keyed = rng.torch_rng(chosen.seed, "batches", 0, client, order)
        for rows in schedule.batches(len(y), local, stage, keyed):
            hidden = torch.relu(x[rows].flatten(1) @ leaves["fc.0.weight"].t() + leaves["fc.0.bias"])
            logits = hidden @ leaves["head.weight"].t() + leaves["head.bias"]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits, y[rows]).backward()
            optimizer.step()
    return {k: v.detach() for k, v in leaves.items()}


@pytest.mark.parametrize("same", [True, False])
def test_stages_have_leaves_lengths_rates_and_batches_of_their_own(same: bool) -> None:
    sgd = OptimizerConfig(lr=0.3, momentum=0.9, weight_decay=0.1)
    chosen = setup(HeadThenBody(private=("*",), same_batches=same), rounds=1, optimizer=sgd)
    looped, _ = both(chosen)
    for client in range(5):
        expected = hand_staged(chosen, client, 0 if same else 1)
        assert close(trees.row(looped.memory, client), expected)
    differently = hand_staged(chosen, 3, 1 if same else 0)
    assert gap(trees.row(looped.memory, 3), differently) > 1e-4, "the stage's order keys its batches"


@dataclass(frozen=True)
class Noisy(FedAvg):
    """Each step's loss is weighted by normal numbers drawn for it; all that is drawn is written down."""

    stage_order: int = 0
    drawn: ClassVar[dict[tuple[int, int, int], Tensor]] = {}

    def stages(self, local: LocalConfig, clock: Clock) -> tuple[Stage, ...]:
        return (Stage(self.loss, order=self.stage_order),)

    def draw(self, generator: torch.Generator, steps: int, client: Client) -> Tree:
        weight = torch.randn(steps, 2, generator=generator, dtype=torch.float64)
        self.drawn[int(client.size), client.clock.round, self.stage_order] = weight
        return {"weight": weight}

    def loss(self, work: Tree, client: Client, batch: Batch) -> Tensor:
        return super().loss(work, client, batch) * batch.noise["weight"].sum().square()


def test_noise_is_drawn_for_every_step_and_keyed_by_client_round_and_order() -> None:
    Noisy.drawn.clear()
    gentle = OptimizerConfig(lr=0.02)
    looped, _ = both(setup(Noisy(), optimizer=gentle))
    assert gap(looped.server, simulate(setup(FedAvg(), optimizer=gentle)).server) > 1e-3
    simulate(setup(Noisy(stage_order=1), optimizer=gentle))
    assert {(size, t): len(noise) for (size, t, order), noise in Noisy.drawn.items() if order == 0} == {
        (size, t): 2 * -(-size // 8) for size in SIZES for t in (0, 1)
    }, "two epochs of ceil(n / 8) steps"
    assert len({tuple(noise[0].tolist()) for noise in Noisy.drawn.values()}) == len(SIZES) * 2 * 2


def test_augmentation_is_the_same_for_either_engine_and_changes_training_only() -> None:
    data = federation(SIZES, (1, 8, 8))
    chosen = setup(FedAvg(), data, MLP(hidden=(7,)), augment=("crop4", "flip"))
    plain = setup(FedAvg(), data, MLP(hidden=(7,)))
    looped, _ = both(chosen)
    assert gap(looped.server, simulate(plain).server) > 1e-3
    before = looped.history.records[0].tallies["local"].correct.tolist()
    assert before == simulate(plain).history.records[0].tallies["local"].correct.tolist()
