"""What engines are made of, against PyTorch: cohorts, schedules, optimisers, normalisation, averages, trees."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedbench.config.schema import LocalConfig, OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch
from fedbench.engine import schedule
from fedbench.engine.contract import Clock, Stage
from fedbench.engine.hardware import client_bytes, fitting_chunk
from fedbench.engine.optim import Optimizer
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.local import Local
from fedbench.models.layers import BatchNorm
from fedbench.models.small import MLP
from tests.engine.toys import ADAM, CLIPPED, HEAVY, SGD
from tests.helpers.plain import torch_optimizer
from tests.methods.toys import close, federation, setup


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


@pytest.mark.parametrize("config", [SGD, HEAVY, CLIPPED, ADAM])
def test_optimizer_equals_torch_with_a_client_axis_or_without(config: OptimizerConfig) -> None:
    g = torch.Generator().manual_seed(0)
    shapes = [(3, 2), (4,)]
    start = [torch.randn(2, *shape, generator=g, dtype=torch.float64) for shape in shapes]
    grads = [[torch.randn(2, *s, generator=g, dtype=torch.float64) for s in shapes] for _ in range(4)]
    ours = [p.clone() for p in start]
    optimizer = Optimizer(config, ours, axes=1)
    for step, grad in enumerate(grads):
        active = 2 if step < 2 else 1  # the second client stops after two steps
        optimizer.step([g[:active] for g in grad], active)
    for client, steps in ((0, 4), (1, 2)):
        net = nn.ParameterList([nn.Parameter(p[client].clone()) for p in start])
        reference = torch_optimizer(config, net)
        alone = [p[client].clone() for p in start]
        single = Optimizer(config, alone)
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
    assert trees.part(trees.join(x=tree), "x") == tree
    shared = trees.expand({"w": torch.ones(2, 2)}, 4)
    assert trees.is_shared(shared["w"])
    assert trees.row_bytes(shared) == 16
    replaced = trees.put(shared, torch.tensor([2]), {"w": torch.zeros(1, 2, 2)})
    assert replaced["w"].sum().item() == 12
    assert shared["w"].sum().item() == 16
    assert trees.take(replaced, torch.tensor([2, 0]))["w"].sum(dim=(1, 2)).tolist() == [0, 4]


def test_predicted_memory_grows_with_what_it_is_made_of() -> None:
    small = client_bytes(setup(FedAvg(), federation(), MLP(hidden=(7,))))
    assert client_bytes(setup(FedAvg(), federation(), MLP(hidden=(700,)))) > 20 * small
    assert client_bytes(setup(FedAvg(), federation(), MLP(hidden=(7,)), batch=80)) > 5 * small / 2
    assert fitting_chunk(setup(FedAvg(), federation(), MLP(hidden=(7,)))) == 5  # all of the cohort
