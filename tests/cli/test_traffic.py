"""What a method sends is read off the method itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedbench.cli.traffic import describe, probe
from fedbench.core.trees import Tree
from fedbench.engine.contract import Client, Cohort
from fedbench.methods.fedavg import FedAvg
from fedbench.models.small import LeNet5


def test_fedavg_and_its_private_leaves() -> None:
    whole = probe(FedAvg())
    assert (whole.down, whole.up, whole.down_ratio, whole.up_ratio) == (("model",), ("model",), 1, 1)
    assert not whole.prepares
    body = probe(FedAvg(private=("@head",)))
    assert (body.down, body.up) == (("body",), ("body",))
    task = LeNet5(batch_norm=True).task((1, 16, 16), 7)
    model = task.init(torch.Generator())
    head = sum(model[name].numel() for name in task.groups["@head"])
    buffers = [leaf for leaf in model.values() if not leaf.is_floating_point()]
    total = sum(leaf.numel() * leaf.element_size() for leaf in model.values())
    assert buffers == []
    assert body.down_ratio == pytest.approx(1 - 4 * head / total)
    assert probe(FedAvg(private=("*",))).up == ("nothing",)
    assert probe(FedAvg(private=("@norm",))).up == ("model without norm",)


@dataclass(frozen=True)
class TwoPhases(FedAvg):
    """Uploads the model, and from half of the rounds on a table of class counts too."""

    def finish(self, work: Tree, client: Client) -> tuple[Tree, Tree]:
        upload, memory = super().finish(work, client)
        if client.clock.round >= client.clock.rounds // 2:
            upload = {**upload, "seen": torch.zeros(client.task.classes, 2, dtype=torch.float32)}
        return upload, memory

    def aggregate(self, server: Tree, uploads: Tree, cohort: Cohort) -> Tree:
        return super().aggregate(server, {k: v for k, v in uploads.items() if k != "seen"}, cohort)


def test_a_method_of_two_phases_shows_both() -> None:
    found = probe(TwoPhases())
    assert found.down == ("model",)
    assert found.up == ("model", "model + seen [K, 2]")
    assert 1 < found.up_ratio < 1.01


def test_leaves_are_named_by_what_they_make_up() -> None:
    task = LeNet5(batch_norm=True).task((1, 16, 16), 7)
    model = {name: leaf.unsqueeze(0) for name, leaf in task.init(torch.Generator()).items()}

    def words(tree: Tree) -> str:
        return describe(tree, task)

    def without(*names: str) -> Tree:
        return {name: leaf for name, leaf in model.items() if name not in names}

    assert words(model) == "model"
    assert words(without(*task.buffers)) == "model without statistics"
    assert words(without("head.bias")) == "model without head.bias"
    assert words({"fc.0.bias": model["fc.0.bias"]}) == "fc.0.bias"
    assert words({f"control/{name}": leaf for name, leaf in model.items()}) == "control: model"
    assert words({f"model/{name}": leaf for name, leaf in model.items()}) == "model"
    stacked = {name: leaf.unsqueeze(1).expand(1, 3, *leaf.shape[1:]) for name, leaf in model.items()}
    assert words(stacked) == "3 × model"
    assert (
        words({**model, "means": torch.zeros(1, 7, 84), "step": torch.zeros(1)})
        == "model + means [K, d] + step"
    )
    assert words({"head.bias": torch.zeros(1, 8)}) == "head.bias [8]"
    second = {f"net/{name}": torch.zeros(1, 2) for name in ("a", "b", "c")}
    assert words({**second, "step": torch.zeros(1)}) == "net (3 leaves) + step"
    assert words({}) == "nothing"
