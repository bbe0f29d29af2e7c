"""The papers' networks in both engines and a plain loop; inputs they refuse; pooling."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng
from fedbench.core.errors import FedbenchError
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.models.layers import MaxPool2
from fedbench.models.task import check_input
from tests.helpers.plain import plain_fedavg
from tests.helpers.tiers import tiered
from tests.methods.toys import federation, gap, setup, simulate
from tests.models.scratch import VISION, build


def text_federation() -> Federation:
    """Captions of 11 tokens below 9, padded with zeros; three clients."""
    draw = np.random.default_rng(0)
    x = draw.integers(1, 9, (30, 1, 1, 11)).astype(np.float32)
    x[:, :, :, 8:] *= draw.integers(0, 2, (30, 1, 1, 1))
    data = Dataset("text", x, draw.integers(0, 4, 30), 24, 4, (0.0,), (1.0,), scale=1.0)
    own = [np.arange(0, 7), np.arange(7, 12), np.arange(12, 16)]
    empty = [np.zeros(0, dtype=np.int64)] * 3
    tests = [np.arange(16 + 3 * k, 19 + 3 * k) for k in range(3)]
    return Federation(data, Partition("text", 0, "text", 4, own, empty, tests), dtype=torch.float64)


NETWORKS = [
    ("simple_cnn", (3, 20, 20)),
    ("cnn5", (2, 18, 18)),
    ("fedrema_cnn", (1, 16, 16)),
    ("fedrema_alexnet", (1, 12, 12)),
    ("cub_cnn", (2, 16, 16)),
    ("textcnn", ()),
    ("resnet18", (3, 33, 33)),
    ("mobilenet_v2", (1, 33, 33)),
    ("squeezenet", (3, 21, 21)),
    ("squeezenet", (1, 37, 37)),
]


SMALL = [case for case in NETWORKS if case[0] not in ("resnet18", "mobilenet_v2")]


@pytest.mark.parametrize(("name", "shape"), tiered(NETWORKS, quick=SMALL))
def test_every_network_trains_alike_in_both_engines_and_the_plain_loop(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, **({"vocabulary": 9} if name == "textcnn" else {}))
    data = text_federation() if name == "textcnn" else federation((6, 7), shape, tests=3)
    # Small steps, large batches: normalising two or three values by their own spread blows rounding up, layer by layer.
    work = {"batch": 7, "iterations": 2, "optimizer": OptimizerConfig(lr=1e-3)} if name in VISION else {"batch": 4}
    chosen = setup(FedAvg(), data, model, rounds=1, epochs=1, **work)
    expected = plain_fedavg(chosen, model)
    start = chosen.task.init(rng.torch_rng(0, "init"))
    still = {n for n in start if gap({n: start[n].double()}, {n: expected[n]}) == 0}
    assert not still, f"nothing trains {still}"
    for trainer in (LoopedTrainer(chosen), StackedTrainer(chosen, 99)):
        assert gap(simulate(chosen, trainer).server, expected) < 1e-9


def test_networks_refuse_what_they_cannot_read() -> None:
    for name, shape, reason in (
        ("lenet5", (1, 8, 8), "does not fit"),
        ("cnn5", (1, 8, 8), "does not fit"),
        ("simple_cnn", (1, 8, 8), "does not fit"),
        ("fedrema_cnn", (1, 8, 8), "does not fit"),
        ("textcnn", (3, 32, 32), "token numbers"),
        ("cub_cnn", (1, 1, 40), "does not fit"),
    ):
        with pytest.raises(FedbenchError, match=reason):
            check_input(build(name).task(shape, 10), 4)


def test_pooling_before_the_activation_changes_no_bit() -> None:
    """Outputs and gradients of max pooling and ReLU are those of ReLU and max pooling, ties and odd sizes too."""
    convolution = torch.nn.Conv2d(3, 6, 3)
    x = torch.randn(4, 3, 9, 11, generator=torch.Generator().manual_seed(0))
    x[0] = 0.0  # windows of equal values
    found = []
    for net in (
        torch.nn.Sequential(convolution, MaxPool2(), torch.nn.ReLU()),
        torch.nn.Sequential(convolution, torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
    ):
        convolution.zero_grad()
        out = net(x)
        out.square().sum().backward()
        found.append((out.detach(), convolution.weight.grad.clone(), convolution.bias.grad.clone()))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pooling_without_a_gradient_is_pooling(layout: torch.memory_format) -> None:
    x = torch.randn(4, 6, 9, 11, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=layout)
    with torch.no_grad():
        assert torch.equal(MaxPool2()(x), torch.nn.functional.max_pool2d(x, 2))
        assert torch.equal(torch.vmap(MaxPool2())(x[None])[0], torch.nn.functional.max_pool2d(x, 2))
