"""Networks of torchvision by name: the library's own function, split at its last linear layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fedbench
from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing
from fedbench.models.task import check_input
from fedbench.models.vision import TorchvisionModel
from tests.helpers.tiers import tiered


@pytest.mark.parametrize(
    ("architecture", "width"),
    tiered(
        [("resnet18", 512), ("shufflenet_v2_x0_5", 1024), ("vgg11", 4096), ("swin_t", 768)],
        quick=[("resnet18", 512), ("shufflenet_v2_x0_5", 1024)],
    ),
)
def test_body_and_head_are_the_librarys_network(architecture: str, width: int) -> None:
    model = TorchvisionModel(architecture=architecture)
    task = model.task((3, 32, 32), 7)
    leaves = task.init(torch.Generator().manual_seed(1))
    net = model.create(3, 7).eval()
    place, _ = model._last_linear(net)
    state = {
        name.removeprefix("body.").replace("head.", f"{place}.", 1) if name.startswith("head.") else name[5:]: leaf
        for name, leaf in leaves.items()
    }
    missing, unexpected = net.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(task.apply(leaves, x), net(x))
    assert task.features(leaves, x).shape == (2, width)


def test_random_layers_are_left_out() -> None:
    net = TorchvisionModel(architecture="efficientnet_b0").build((3, 32, 32), 5)
    assert not any("Drop" in type(module).__name__ or "Stoch" in type(module).__name__ for module in net.modules())


def test_the_first_convolution_fits_the_images() -> None:
    task = TorchvisionModel(architecture="resnet18").task((1, 32, 32), 3)
    check_input(task, 2)
    assert next(leaf for name, leaf in task.init(torch.Generator()).items() if "conv1" in name).shape[1] == 1


def test_weights_of_a_file_fill_the_body(tmp_path: Path) -> None:
    file = tmp_path / "mine.pth"
    net = TorchvisionModel(architecture="mnasnet0_5").create(3, 1000)
    torch.save(net.state_dict(), file)
    model = TorchvisionModel(architecture="mnasnet0_5", weights=str(file))
    leaves = model.task((3, 32, 32), 4).init(torch.Generator())
    first = next(module for module in net.modules() if isinstance(module, nn.Conv2d))
    assert torch.equal(leaves["body.layers.0.weight"], first.weight)
    assert leaves["head.weight"].shape[0] == 4
    assert model.label.startswith("torchvision-mnasnet0_5-")
    other = TorchvisionModel(architecture="resnet18", weights=str(file))
    with pytest.raises(DataCorrupt, match="no state dict of torchvision's resnet18"):
        other.begin()
    with pytest.raises(DataMissing, match="no such file"):
        TorchvisionModel(architecture="resnet18", weights=str(tmp_path / "none.pth")).begin()


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        (None, "model.architecture, and none is not one"),
        ("resnet81", "nearest: resnet18"),
        ("squeezenet1_0", "does not end in a linear layer"),
    ],
)
def test_what_cannot_be_taken_is_said(architecture: str | None, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        TorchvisionModel(architecture=architecture).task((3, 32, 32), 4)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["looped", "stacked"])
def test_a_run_of_it(engine: str, tmp_path: Path) -> None:
    run = fedbench.run(
        "dataset=synthetic",
        "dataset.channels=3",
        "dataset.size=32",
        "dataset.train=200",
        "model=torchvision",
        "model.architecture=shufflenet_v2_x0_5",
        "method=fedavg",
        "partition.num_clients=3",
        "protocol.rounds=1",
        f"hardware.engine={engine}",
        runs_dir=tmp_path,
    )
    assert run.row["model"] == "torchvision-shufflenet_v2_x0_5"
    assert run.row["acc"] > 0
