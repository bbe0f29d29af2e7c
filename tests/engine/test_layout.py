"""Convolution weights train with channels last on a CPU: faster, and the same arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedbench.config import compose
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.models.task import Task
from fedbench.runs.config import resolve
from fedbench.runs.execution import build


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
@pytest.mark.parametrize("model", ["simple_cnn", "lenet5_bn"])
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
