"""Networks outside the contract: replaced where they can be, refused in one line where not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fedbench.config.compose import compose
from fedbench.core.errors import ConfigError, UnknownName
from fedbench.models import MODELS
from fedbench.models.layers import replace_batch_norm
from fedbench.models.modalities import Kinds
from fedbench.models.small import MLP, LeNet5
from fedbench.models.task import Model, check_input
from fedbench.runs.building import build, check_network, refuse_random
from fedbench.runs.config import resolve
from tests.methods.toys import close


def test_replaced_batch_norm_keeps_what_the_layer_was() -> None:
    """Nested layers, momentum and eps, affine values and statistics."""
    inner = nn.BatchNorm1d(3, eps=1e-2, momentum=0.3)
    with torch.no_grad():
        inner.weight.mul_(2)
        inner.running_mean.add_(1)
    theirs = nn.Sequential(nn.Sequential(inner), nn.ReLU())
    ours = replace_batch_norm(nn.Sequential(nn.Sequential(nn.BatchNorm1d(3, eps=1e-2, momentum=0.3)), nn.ReLU()))
    ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if "tracked" not in k})
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    for mode in (True, False):
        assert close(ours.train(mode)(x).detach(), theirs.train(mode)(x).detach(), 1e-6)
    assert close(ours[0][0].running_var, inner.running_var, 1e-6)


@pytest.mark.parametrize(
    ("model", "shape"),
    [(LeNet5(), (1, 8, 8)), (LeNet5(batch_norm=True), (3, 12, 12)), (LeNet5(), (3, 4, 32))],
)
def test_an_input_too_small_is_refused_in_one_line(model: Model, shape: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match=rf"{model.label} does not fit inputs of shape \[{shape[0]}, ") as caught:
        check_input(model.task(shape, 10), 2)
    assert "\n" not in str(caught.value)


class Named(Model):
    """A network given as stages, to break the contract in every way."""

    def __init__(self, **stages: nn.Module) -> None:
        self.stages = stages

    @property
    def label(self) -> str:
        return "named"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        net = nn.Sequential()
        for name, stage in self.stages.items():
            net.add_module(name, stage)
        return net


def test_a_network_that_breaks_the_contract_is_refused() -> None:
    with pytest.raises(ConfigError, match="last is called 'head'"):
        Named(flatten=nn.Flatten(), classifier=nn.Linear(16, 4)).task((1, 4, 4), 4)
    with pytest.raises(ConfigError, match="last is called 'head'"):
        Named().task((1, 4, 4), 4)
    with pytest.raises(ConfigError, match=r"yields \(2, 3\), expected \(2, 4\)"):
        check_input(Named(flatten=nn.Flatten(), head=nn.Linear(16, 3)).task((1, 4, 4), 4), 2)
    with pytest.raises(ConfigError, match=r"does not fit inputs of shape \(1, 4, 4\)"):
        check_input(Named(flatten=nn.Flatten(), head=nn.Linear(15, 4)).task((1, 4, 4), 4), 2)


class OfOneSize(nn.Flatten):
    """As ViT asserts the size of its images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert(x.shape[-1] == 224, f"Wrong image height! Expected 224 but got {x.shape[-1]}!")
        return super().forward(x)


def test_a_network_for_images_of_one_size_is_refused_in_one_line() -> None:
    task = Named(flatten=OfOneSize(), head=nn.Linear(16, 4)).task((1, 4, 4), 4)
    with pytest.raises(ConfigError, match=r"inputs of shape \(1, 4, 4\): Wrong image height! Expected 224 but got 4!$"):
        check_input(task, 2)


def test_batch_norm_after_a_linear_layer_refuses_a_batch_of_one() -> None:
    flat = {"flatten": nn.Flatten(), "norm": nn.BatchNorm1d(16), "head": nn.Linear(16, 4)}
    task = Named(**flat).task((1, 4, 4), 4)
    check_input(task, 2)
    with pytest.raises(ConfigError, match="batch of 1 sample; use a model without it"):
        check_input(task, 1)
    check_input(LeNet5(batch_norm=True).task((1, 20, 20), 4), 1)  # several pixels a channel: one sample will do


@pytest.mark.parametrize("lacking", ["affine", "track_running_stats"])
def test_batch_norm_without_weights_or_statistics_is_refused_in_one_line(lacking: str) -> None:
    norm = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(16, **{lacking: False}))
    with pytest.raises(ConfigError, match=r"^batch norm '1': only affine=True with track_running_stats=True is"):
        Named(flatten=nn.Flatten(), norm=norm, head=nn.Linear(16, 4)).task((1, 4, 4), 4)


def _tied() -> dict[str, nn.Module]:
    one, head = nn.Linear(16, 16), nn.Linear(16, 16)
    head.weight = one.weight
    return {"one": one, "head": head}


class Hidden(nn.Module):
    """Has a buffer that a state dict leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(16.0), persistent=False)


class Dropping(nn.Module):
    """Draws random numbers without a layer that says so."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, self.training)


TWICE = nn.Linear(16, 16)


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        (_tied(), r"one\.weight and head\.weight are one weight"),
        ({"hidden": Hidden(), "head": nn.Linear(16, 16)}, r"hidden\.places is in no state dict"),
        ({"norm": nn.BatchNorm1d(16, momentum=None), "head": nn.Linear(16, 16)}, "norm averages all batches"),
        ({"one": TWICE, "head": TWICE}, "a stage stands twice"),
    ],
)
def test_what_would_train_otherwise_than_in_torch_is_refused(stages: dict[str, nn.Module], reason: str) -> None:
    """Tied weights would be two leaves."""
    data: Any = SimpleNamespace(shape=(1, 4, 4), classes=16)
    with pytest.raises(ConfigError, match=f"^model named: {reason}"):
        check_network(Named(**stages), data)
    again = nn.Sequential(TWICE, nn.ReLU(), TWICE)  # which one call gives its leaves
    check_network(Named(again=again, norm=nn.BatchNorm1d(16), head=nn.Linear(16, 16)), data)


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), Dropping(), nn.RReLU(-1, 1)])
def test_a_network_that_draws_random_numbers_is_refused(layer: nn.Module) -> None:
    stages = {"flatten": nn.Flatten(), "one": nn.Linear(16, 16)}
    with pytest.raises(ConfigError, match="draws random numbers in training"):
        refuse_random(Named(**stages, drop=layer, head=nn.Linear(16, 4)).task((1, 4, 4), 4))
    refuse_random(Named(**stages, drop=nn.Dropout(0.0), head=nn.Linear(16, 4)).task((1, 4, 4), 4))


def test_a_run_with_such_a_network_is_refused() -> None:
    run = resolve(compose(["dataset=synthetic", "dataset.size=4", "method=fedavg"]))
    flat = {"flatten": nn.Flatten()}
    tied = {"one": (one := nn.Linear(16, 16)), "two": nn.Linear(16, 16), "head": nn.Linear(16, 10)}
    tied["two"].weight = one.weight
    for stages, reason in (
        (tied, "are one weight"),
        ({"drop": nn.Dropout(0.5), "head": nn.Linear(16, 10)}, "draws random numbers"),
    ):
        with pytest.raises(ConfigError, match=reason):
            build(replace(run, model=Named(**flat, **stages)))


def test_settings_out_of_range_are_refused() -> None:
    for hidden in ((), (0,), (5, -1)):
        with pytest.raises(ConfigError, match=r"model\.hidden must"):
            MLP(hidden=hidden)
    with pytest.raises(UnknownName, match="nearest: lenet5"):
        MODELS.build({"name": "lenet"})
    with pytest.raises(UnknownName, match="nearest: batch_norm"):
        MODELS.build({"name": "lenet5", "batchnorm": True})
    assert MODELS.build({"name": "mlp", "hidden": [3, 4]}) == MLP(hidden=(3, 4))


@pytest.mark.parametrize("place", ["model.classifier", "model.kinds.b.classifier"])
def test_a_split_that_clients_of_several_kinds_do_not_follow_is_refused(place: str) -> None:
    split = {"b": "linear"} if "kinds" in place else {}
    kinds = {name: {"name": "mlp", "classifier": split.get(name, "own")} for name in "ab"}
    with pytest.raises(ConfigError, match=f"^{place}=linear: .* use classifier=own$"):
        Kinds(kinds=kinds, classifier="own" if split else "linear")
