"""The task contract: networks as functions of trees, and groups of leaves."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn

from fedbench.core import rng, trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError
from fedbench.models.small import MLP, LeNet5
from fedbench.models.task import Model, Task, check_input
from tests.methods.toys import close, gap

CASES: list[tuple[Model, tuple[int, int, int]]] = [
    (MLP(hidden=(9, 7)), (2, 3, 3)),
    (LeNet5(), (3, 32, 32)),
    (LeNet5(batch_norm=True), (1, 16, 16)),
]
IDS = [model.label for model, _ in CASES]


def inputs(task: Task, count: int = 5) -> torch.Tensor:
    return torch.randn(count, *task.shape, generator=torch.Generator().manual_seed(1))


def fresh(task: Task, seed: int = 0) -> trees.Tree:
    return task.init(rng.torch_rng(seed, "init"))


@pytest.mark.parametrize(
    ("model", "shape", "count"),
    [
        (LeNet5(), (3, 32, 32), 62_006),
        (LeNet5(batch_norm=True), (3, 32, 32), 62_006 + 2 * (6 + 16)),
        (LeNet5(), (1, 28, 28), 44_426),
        (MLP(), (1, 28, 28), 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10),
        (MLP(hidden=(5,)), (1, 8, 8), 64 * 5 + 5 + 5 * 10 + 10),
    ],
)
def test_parameter_counts(model: Model, shape: tuple[int, int, int], count: int) -> None:
    task = model.task(shape, 10)
    assert sum(leaf.numel() for leaf in task.weights(fresh(task)).values()) == count


@pytest.mark.parametrize(("model", "shape"), CASES, ids=IDS)
def test_apply_is_the_module_it_was_built_from(model: Model, shape: tuple[int, int, int]) -> None:
    """In evaluation and in training, gradients and running statistics included."""
    task, net = model.task(shape, 4), model.build(shape, 4)
    net.load_state_dict(fresh(task), strict=False)
    tree, x = fresh(task), inputs(task)
    assert close(task.apply(tree, x), net.eval()(x).detach(), 1e-6)
    moving = {k: v.requires_grad_(k in task.parameters) for k, v in trees.clone(tree).items()}
    names = sorted(task.parameters)
    labels = torch.tensor([0, 1, 2, 3, 0])
    loss = task.loss(moving, Batch(x, labels))
    theirs = nn.functional.cross_entropy(net.train()(x), labels)
    theirs.backward()
    assert close(loss.detach(), theirs.detach(), 1e-6)
    grads = dict(zip(names, torch.autograd.grad(loss, [moving[n] for n in names]), strict=True))
    expected = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
    assert gap(grads, expected) < 1e-5
    buffers = {n: b for n, b in net.named_buffers() if not n.endswith("num_batches_tracked")}
    assert set(buffers) == task.buffers
    assert gap({n: moving[n] for n in task.buffers}, buffers) < 1e-6


@pytest.mark.parametrize(("model", "shape"), CASES, ids=IDS)
def test_body_then_head_is_the_whole(model: Model, shape: tuple[int, int, int]) -> None:
    task = model.task(shape, 4)
    tree, x = fresh(task), inputs(task)
    z = task.features(tree, x)
    assert z.dim() == 2
    assert torch.equal(task.head(tree, z), task.apply(tree, x))
    only_head = {k: v for k, v in tree.items() if k.startswith("head.")}
    assert torch.equal(task.head(only_head, z), task.apply(tree, x)), "the head needs its own leaves alone"


def test_evaluation_leaves_statistics_alone() -> None:
    task = LeNet5(batch_norm=True).task((1, 16, 16), 4)
    tree = fresh(task)
    task.apply(tree, inputs(task))
    assert gap(tree, fresh(task)) == 0
    task.apply(tree, inputs(task), train=True)
    changed = {name for name, leaf in fresh(task).items() if not torch.equal(leaf, tree[name])}
    assert changed == task.buffers


def test_groups_and_selectors() -> None:
    task = LeNet5(batch_norm=True).task((1, 16, 16), 4)
    names = sorted(task.parameters | task.buffers)
    head = ["head.bias", "head.weight"]
    statistics = [f"conv.{k}.running_{what}" for k in (1, 5) for what in ("mean", "var")]
    linear = [f"fc.{k}.{what}" for k in (0, 2) for what in ("bias", "weight")]
    assert task.select(names, ["@head"]) == head
    assert task.select(names, ["@body"]) == [n for n in names if n not in head]
    assert task.select(names, ["@stats"]) == statistics
    norm = sorted([*statistics, *(f"conv.{k}.{what}" for k in (1, 5) for what in ("bias", "weight"))])
    assert task.select(names, ["@norm"]) == norm
    assert task.select(names, ["@classifier"]) == [*linear, *head]
    assert task.select(names, ["conv.0.*", "@head"]) == ["conv.0.bias", "conv.0.weight", *head]
    assert task.select(names, ["*"]) == names
    assert task.select(names, ["nothing*"]) == task.select(names, []) == []
    spaced = [*(f"personal/{n}" for n in names), *names]
    assert task.select(spaced, ["personal/@head"]) == [f"personal/{n}" for n in head]
    assert task.select(spaced, ["@head"]) == head, "a group without a namespace is the model's own"
    assert task.select(spaced, ["personal/*"]) == [f"personal/{n}" for n in names]
    with pytest.raises(ConfigError, match=r"@heads.*@head, @body"):
        task.select(names, ["@heads"])


def test_statistics_are_known_in_any_namespace() -> None:
    task = LeNet5(batch_norm=True).task((1, 16, 16), 4)
    assert task.is_buffer("conv.1.running_mean")
    assert task.is_buffer("personal/conv.1.running_var")
    assert not task.is_buffer("personal/conv.1.weight")
    assert set(task.weights(fresh(task))) == task.parameters


def test_initial_weights_are_the_layers_own_and_keyed() -> None:
    """PyTorch's default for nn.Linear: uniform within 1 / sqrt(fan_in), and no two layers alike."""
    task = MLP(hidden=(300, 300)).task((1, 10, 10), 10)
    tree = fresh(task)
    for name, fan_in in (("fc.0.weight", 100), ("fc.2.weight", 300)):
        assert tree[name].abs().max().item() == pytest.approx(fan_in**-0.5, rel=1e-3)
        assert tree[name].std().item() == pytest.approx((3 * fan_in) ** -0.5, rel=1e-2)
    assert gap(tree, fresh(task)) == 0
    assert gap(tree, fresh(task, seed=1)) > 1e-2


def test_networks_are_built_without_touching_global_randomness() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    task = LeNet5(batch_norm=True).task((1, 16, 16), 4)
    fresh(task)
    check_input(task, 2)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_a_pickled_task_is_the_same_function() -> None:
    task = LeNet5(batch_norm=True).task((1, 16, 16), 4)
    copy = pickle.loads(pickle.dumps(task))
    assert torch.equal(copy.apply(fresh(task), inputs(task)), task.apply(fresh(task), inputs(task)))
    assert (copy.groups, copy.shape, copy.classes) == (task.groups, task.shape, task.classes)
