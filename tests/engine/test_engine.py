"""Every engine equals a plain PyTorch loop: nn.Module, torch.optim, one client after another."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedbench.config import compose
from fedbench.config.schema import LocalConfig, OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch
from fedbench.core.errors import FedbenchError
from fedbench.core.trees import Tree
from fedbench.engine import schedule
from fedbench.engine.contract import Client, Clock, Stage
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.optim import Optimizer
from fedbench.engine.setup import Setup
from fedbench.engine.stacked import StackedTrainer
from fedbench.engine.trainer import Trainer
from fedbench.engine.workers import WorkersTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.local import Local
from fedbench.models.layers import BatchNorm
from fedbench.models.small import MLP, LeNet5
from fedbench.models.task import Model, Task
from fedbench.runs.building import build
from fedbench.runs.config import resolve
from tests.engine.toys import ADAM, CLIPPED, HEAVY, SGD
from tests.helpers.plain import plain_fedavg, torch_optimizer
from tests.helpers.tiers import sampled, tiered
from tests.methods.toys import SIZES, close, federation, gap, setup, simulate


def conv(sizes: Sequence[int] = SIZES) -> tuple[object, Model]:
    return federation(sizes, shape=(2, 16, 16)), LeNet5(batch_norm=True)


def engines(chosen: Setup) -> list[Trainer]:
    return [LoopedTrainer(chosen), *(StackedTrainer(chosen, chunk) for chunk in (1, 2, 99))]


OPTIMIZERS = {"sgd": SGD, "momentum": HEAVY, "clip": CLIPPED, "adam": ADAM}
WORK = {"epochs": 2, "iterations": 5}
ALL = list(itertools.product(("mlp", "batch_norm"), WORK, OPTIMIZERS))
QUICK = [ALL[0], ALL[5], ALL[11], ALL[14]]  # each of the three in each form


@pytest.mark.parametrize(("kind", "work", "name"), tiered(ALL, quick=QUICK))
def test_every_engine_equals_the_plain_loop(kind: str, work: str, name: str) -> None:
    optimizer = OPTIMIZERS[name]
    data, model = conv() if kind == "batch_norm" else (federation(), MLP(hidden=(7,)))
    chosen = setup(FedAvg(), data, model, optimizer=optimizer, cohort=0.8, **{work: WORK[work]})
    expected = plain_fedavg(chosen, model)
    # Adam makes steps out of rounding where a gradient is zero, as that of a bias before batch normalisation.
    tolerance = 1e-6 if optimizer is ADAM else 1e-9
    for trainer in engines(chosen):
        assert gap(simulate(chosen, trainer).server, expected) < tolerance, trainer


def test_the_engines_agree_in_single_precision_too() -> None:
    chosen = setup(FedAvg(), federation(dtype=torch.float32), MLP(hidden=(7,)), optimizer=HEAVY)
    expected = plain_fedavg(chosen, MLP(hidden=(7,)))
    for trainer in engines(chosen):
        state = simulate(chosen, trainer)
        assert gap(state.server, expected) < 1e-5
        assert next(iter(state.server.values())).dtype == torch.float32


def test_local_is_each_client_alone() -> None:
    chosen = setup(Local(), rounds=3, optimizer=HEAVY)
    for trainer in engines(chosen):
        state = simulate(chosen, trainer)
        for client in range(len(SIZES)):
            alone = setup(FedAvg(), federation(ids=[client]), rounds=3, optimizer=HEAVY)
            expected = plain_fedavg(alone, MLP(hidden=(7,)))
            assert gap(trees.row(state.memory, client), expected) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "batch_norm"])
def test_worker_processes_equal_the_loop(kind: str) -> None:
    data, model = conv((1, 9, 4)) if kind == "batch_norm" else (federation(), MLP(hidden=(7,)))
    chosen = setup(FedAvg(private=("head.*",)), data, model, cohort=0.8, optimizer=HEAVY)
    looped, workers = simulate(chosen), simulate(chosen, WorkersTrainer(chosen, 2))
    assert close(workers.server, looped.server, 1e-12)
    assert close(workers.memory, looped.memory, 1e-12)
    for a, b in zip(looped.history.records, workers.history.records, strict=True):
        assert a.tallies["local"].correct.tolist() == b.tallies["local"].correct.tolist()


def test_a_killed_worker_is_reported() -> None:
    chosen = setup(FedAvg())
    trainer = WorkersTrainer(chosen, 1)
    try:
        os.kill(trainer._processes[0].pid, signal.SIGKILL)
        trainer._processes[0].join()
        with pytest.raises(FedbenchError, match="worker process died"):
            simulate(chosen, trainer)
    finally:
        trainer.close()


# What engines are made of, against PyTorch: cohorts, schedules, optimisers, normalisation, averages, trees.


def test_cohorts_are_drawn_by_seed_and_round_alone() -> None:
    a, b = setup(FedAvg(), cohort=0.6), setup(Local(), cohort=3)
    drawn = [a.draw_cohort(Clock(t, 50)).tolist() for t in range(50)]
    assert drawn == [b.draw_cohort(Clock(t, 50)).tolist() for t in range(50)]
    assert {len(ids) for ids in drawn} == {3}
    assert all(ids == sorted(set(ids)) for ids in drawn)
    assert set().union(*drawn) == set(range(5))
    assert drawn != [setup(FedAvg(), cohort=3, seed=1).draw_cohort(Clock(t, 50)).tolist() for t in range(50)]


def test_schedules_cover_every_sample_once_an_epoch() -> None:
    local = LocalConfig(epochs=3, batch_size=8)
    order = list(schedule.batches(21, local, Stage(), rng.torch_rng(0, "x")))
    assert [len(rows) for rows in order] == [8, 8, 5] * 3
    for epoch in range(3):
        assert sorted(torch.cat(order[3 * epoch : 3 * epoch + 3]).tolist()) == list(range(21))
    assert not torch.equal(torch.cat(order[:3]), torch.cat(order[3:6]))
    iterations = LocalConfig(iterations=4, batch_size=8)
    assert [len(rows) for rows in schedule.batches(21, iterations, Stage(), rng.torch_rng(0, "x"))] == [
        8,
        8,
        5,
        8,
    ]
    assert schedule.steps(21, local) == 9
    assert schedule.steps(21, local, Stage(epochs=1)) == 3
    assert schedule.steps(21, iterations, Stage(iterations=2)) == 2


def named(leaves: list[torch.Tensor]) -> Tree:
    return {str(place): leaf for place, leaf in enumerate(leaves)}


@pytest.mark.parametrize("rates", [(), (0.3, 0.02)], ids=["one rate", "two"])
@pytest.mark.parametrize("config", [SGD, HEAVY, CLIPPED, ADAM])
def test_optimizer_equals_torch_with_a_client_axis_or_without(
    config: OptimizerConfig, rates: tuple[float, ...]
) -> None:
    g = torch.Generator().manual_seed(0)
    shapes = [(3, 2), (4,)]
    start = [torch.randn(2, *shape, generator=g, dtype=torch.float64) for shape in shapes]
    grads = [[torch.randn(2, *s, generator=g, dtype=torch.float64) for s in shapes] for _ in range(4)]
    ours = [p.clone() for p in start]
    optimizer = Optimizer(config, named(ours), axes=1)
    for step, grad in enumerate(grads):
        active = 2 if step < 2 else 1  # the second client stops after two steps
        if rates:
            optimizer.lr = torch.tensor(rates[:active], dtype=torch.float64)
        optimizer.step([g[:active] for g in grad], active)
    for client, steps in ((0, 4), (1, 2)):
        net = nn.ParameterList([nn.Parameter(p[client].clone()) for p in start])
        own = replace(config, lr=rates[client]) if rates else config
        reference = torch_optimizer(own, net)
        alone = [p[client].clone() for p in start]
        single = Optimizer(own, named(alone))
        for grad in grads[:steps]:
            single.step([g[client] for g in grad])
            for p, each in zip(net, grad, strict=True):
                p.grad = each[client].clone()
            if config.clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), config.clip)
            reference.step()
        for row, one, theirs in zip(ours, alone, net, strict=True):
            assert close(row[client], theirs.detach(), 1e-12)
            assert close(one, theirs.detach(), 1e-12)


def test_batch_norm_equals_torch_and_ignores_padding() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, 4, 4, generator=g, dtype=torch.float64)
    ours, theirs = BatchNorm(3).double(), nn.BatchNorm2d(3).double()
    padded = BatchNorm(3).double()
    for _ in range(3):
        expected = theirs(x[:4])
        assert close(ours(x[:4]), expected.detach(), 1e-12)
        padded.mask = torch.tensor([True] * 4 + [False] * 2)
        assert close(padded(x)[:4].detach(), expected.detach(), 1e-12)
        for layer in (ours, padded):
            assert close(layer.running_mean, theirs.running_mean, 1e-12)
            assert close(layer.running_var, theirs.running_var, 1e-12)
    assert close(ours.eval()(x).detach(), theirs.eval()(x).detach(), 1e-12)


def test_batch_averages_leave_padding_out() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [100.0, 100.0]])
    batch = Batch(values, torch.tensor([1, 0, 0]), torch.tensor([True, True, False]))
    assert batch.mean(values).tolist() == [2.0, 3.0]
    sums, counts = batch.class_sums(values, 3)
    assert sums.tolist() == [[3.0, 4.0], [1.0, 2.0], [0.0, 0.0]]
    assert counts.tolist() == [1.0, 1.0, 0.0]
    assert Batch(values, batch.y).mean(values).tolist() == pytest.approx([104 / 3, 106 / 3])


def test_mixing_is_a_stochastic_matrix_product() -> None:
    tree = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "n": torch.tensor([2, 5])}
    mixed = trees.mix(torch.tensor([[0.25, 0.75], [1.0, 0.0]]), tree)
    assert mixed["a"].tolist() == [[2.5, 3.5], [1.0, 2.0]]
    assert mixed["n"].tolist() == [4, 2]
    with pytest.raises(ValueError, match="row-stochastic"):
        trees.mix(torch.tensor([[0.5, 0.6], [1.0, 0.0]]), tree)
    with pytest.raises(ValueError, match="row-stochastic"):
        trees.mix(torch.tensor([[1.5, -0.5], [1.0, 0.0]]), tree)


def test_trees_round_trip() -> None:
    tree = {"b": torch.randn(3, 2), "a": torch.randn(3, 4, 5)}
    assert close(trees.unflatten(trees.flatten(tree), tree), tree, 0)
    assert trees.part(trees.join(x=tree), "x") == trees.under(trees.join(x=tree), "x") == tree
    assert trees.under(tree, "x") == {}
    with pytest.raises(
        LookupError, match="in the namespace 'x'; the tree's namespaces: 'y', 'z'; if there may be none"
    ):
        trees.part({**tree, **trees.join(y=tree, z=tree)}, "x")
    with pytest.raises(LookupError, match="in the namespace 'x'; the tree's namespaces: none"):
        trees.part(tree, "x")
    shared = trees.expand({"w": torch.ones(2, 2)}, 4)
    assert trees.is_shared(shared["w"])
    assert trees.row_bytes(shared) == 16
    replaced = trees.put(shared, torch.tensor([2]), {"w": torch.zeros(1, 2, 2)})
    assert replaced["w"].sum().item() == 12
    assert shared["w"].sum().item() == 16
    assert trees.take(replaced, torch.tensor([2, 0]))["w"].sum(dim=(1, 2)).tolist() == [0, 4]


class Contiguous(LoopedTrainer):
    """The layout that torch begins with."""

    filters = torch.contiguous_format  # type: ignore[assignment]


def trainer(cls: type[LoopedTrainer], model: str, channels: int) -> LoopedTrainer:
    """A trainer of four clients with 32 images of 20 x 20 each."""
    size = ["dataset.size=20", f"dataset.channels={channels}", "dataset.train=128", "dataset.test=40"]
    local = ["protocol.local.batch_size=8", "protocol.optimizer.lr=0.01", "protocol.eval_every=1"]
    data = ["dataset=synthetic", *size, "partition=homo", "partition.num_clients=4"]
    run = resolve(compose.compose([*data, f"model={model}", *local, "hardware=cpu", "method=fedavg"]))
    return cls(build(run))


def start(each: LoopedTrainer) -> Tree:
    return each.setup.task.init(torch.Generator().manual_seed(0))


def seen_by(each: LoopedTrainer) -> Client:
    return each.setup.client(0, start(each), {}, Clock(1, 2))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("model", sampled(["simple_cnn", "lenet5_bn"], every=2))
def test_either_layout_gives_the_same_upload_and_scores(model: str, channels: int) -> None:
    outcomes = []
    for cls in (LoopedTrainer, Contiguous):
        each = trainer(cls, model, channels)
        outcomes.append(each.train_one(0, seen_by(each), ("local",)))
    ours, plain = outcomes
    begun = start(trainer(Contiguous, model, channels))
    assert any(not torch.equal(plain.uploads[name], leaf) for name, leaf in begun.items())
    for name, leaf in plain.uploads.items():
        torch.testing.assert_close(ours.uploads[name], leaf, rtol=1e-4, atol=1e-6)
        assert ours.uploads[name].is_contiguous()
    assert {k: [t.tolist() for t in v] for k, v in ours.counts.items()} == {
        k: [t.tolist() for t in v] for k, v in plain.counts.items()
    }


@pytest.mark.parametrize(
    ("model", "channels", "last"), [("simple_cnn", 1, True), ("simple_cnn", 3, True), ("lenet5_bn", 3, False)]
)
def test_weights_have_channels_last_while_they_train_but_with_batch_norm(
    model: str, channels: int, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    loss = Task.loss

    def watched(self: Task, leaves: Tree, *rest: Any, **more: Any) -> Any:
        seen.extend(leaf.stride(1) for leaf in leaves.values() if leaf.dim() == 4)
        return loss(self, leaves, *rest, **more)

    monkeypatch.setattr(Task, "loss", watched)
    each = trainer(LoopedTrainer, model, channels)
    each.train_one(0, seen_by(each), ())
    assert seen
    assert all((stride == 1) == last for stride in seen)
