"""Networks of torchvision by name: the library's own function, split at its last linear layer."""

from __future__ import annotations

import copy
import hashlib
import sys
import types
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedbench
from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing
from fedbench.models.task import check_input
from fedbench.models.vision import TimmModel, TorchvisionModel
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


@pytest.mark.slow
def test_the_first_convolution_fits_the_images() -> None:
    task = TorchvisionModel(architecture="resnet18").task((1, 32, 32), 3)
    check_input(task, 2)
    assert next(leaf for name, leaf in task.init(torch.Generator()).items() if "conv1" in name).shape[1] == 1


@pytest.mark.slow
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
        (None, "give model.architecture=NAME"),
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


class Made(TimmModel):
    """A network of a library that has this one."""

    def __init__(self, net: nn.Module | None = None, **fields: object) -> None:
        super().__init__(**fields)  # type: ignore[arg-type]
        object.__setattr__(self, "net", net)

    def names(self) -> list[str]:
        return ["known"]

    def create(self, channels: int, classes: int) -> nn.Module:
        net: nn.Module = copy.deepcopy(self.net)
        return net


def network(*after: nn.Module) -> nn.Sequential:
    """A linear layer below the last, two layers that draw, and the last."""
    inner = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.9), nn.ReLU())
    return nn.Sequential(nn.Flatten(), inner, nn.AlphaDropout(0.9), nn.Sequential(nn.Linear(5, 3)), *after)


@pytest.mark.parametrize("after", [(), (nn.Identity(),), (nn.Softmax(1),), (nn.Identity(), nn.ReLU())])
def test_the_last_linear_layer_is_the_head_where_nothing_follows_it(after: tuple[nn.Module, ...]) -> None:
    net = network(*after)
    model = Made(net, architecture="known")
    if any(not isinstance(each, nn.Identity) for each in after):
        with pytest.raises(ConfigError, match=r"^timm's known does not end in a linear layer, which"):
            model.build((1, 2, 2), 3)
        return
    made = model.build((1, 2, 2), 3)
    assert [name for name, _ in made.named_children()] == ["body", "head"]
    assert {name: tuple(leaf.shape) for name, leaf in made.state_dict().items()} == {
        "body.1.0.weight": (5, 4),
        "body.1.0.bias": (5,),
        "head.weight": (3, 5),
        "head.bias": (3,),
    }
    assert not any("Dropout" in type(each).__name__ for each in made.train().modules())
    x = torch.randn(6, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(made(x), net.eval()(x))
    with pytest.raises(ConfigError, match="does not end in a linear layer"):
        Made(nn.Sequential(nn.Conv2d(1, 2, 1)), architecture="known").build((1, 2, 2), 3)
    with pytest.raises(ConfigError, match=r"^model\.architecture=knwn is not a network of timm; nearest: known$"):
        Made(net, architecture="knwn").build((1, 2, 2), 3)


def test_a_body_begins_with_a_file_s_leaves_and_its_name_tells_which(tmp_path: Path) -> None:
    file, net = tmp_path / "w.pth", network()
    torch.save(net.state_dict(), file)
    model = Made(network(), architecture="known", weights=str(file))
    begun = model.begin()
    assert begun.keys() == {"body.1.0.weight", "body.1.0.bias"}
    assert torch.equal(begun["body.1.0.weight"], net[1][0].weight)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
    assert [model.label, Made(architecture="known").label, Made().label] == [
        f"timm-known-{digest}",
        "timm-known",
        "timm",
    ]
    lost = Made(network(), architecture="known", weights=f"{tmp_path}/none.pth")
    assert lost.lacking() == f"model.weights={tmp_path}/none.pth: there is no such file"
    assert (model.lacking(), Made().lacking(), Made().begin()) == ("", "", {})


class DropPath(nn.Module):
    """Of the form of timm's layer of that name."""

    drop_prob = 0.9


class Attention(nn.Module):
    """Of the form of timm's attention, which reads how often to drop from layers that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.attn_drop, self.drop_path = nn.Dropout(0.9), DropPath()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, self.attn_drop.p if self.training else 0.0) * (1 + self.drop_path.drop_prob)


def test_who_reads_how_often_a_random_layer_drops_reads_never() -> None:
    made = Made(nn.Sequential(nn.Flatten(), Attention(), nn.Linear(4, 3)), architecture="known").build((1, 2, 2), 3)
    x = torch.randn(6, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(made.body.train()(x), x.flatten(1))


class NormAct(nn.BatchNorm2d):
    """Of the form of timm's BatchNormAct2d: a batch norm that then drops and activates, here with a leaf of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, momentum=0.3, eps=0.2)
        self.drop, self.act = nn.Dropout(0.9), nn.PReLU(channels, 0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.act(self.drop(super().forward(x)))
        return found


def test_a_batch_norm_of_timm_s_that_activates_still_does(tmp_path: Path) -> None:
    net = nn.Sequential(OrderedDict(body=nn.Sequential(NormAct(2), nn.Flatten()), fc=nn.Linear(8, 3)))
    net.train()(torch.randn(9, 2, 2, 2))  # statistics of its own
    torch.save(net.eval().state_dict(), tmp_path / "w.pth")
    task = Made(net, architecture="known", weights=str(tmp_path / "w.pth")).task((2, 2, 2), 3)
    leaves = task.init(torch.Generator())
    x = torch.randn(6, 2, 2, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(task.features(leaves, x), net.body(x))
    net.body[0].drop.p = 0.0
    torch.testing.assert_close(task.features(leaves, x, train=True), net.train().body(x))
    assert torch.equal(leaves["body.body.0.norm.running_var"], net.body[0].running_var)


def test_timm_is_asked_for_a_network_of_these_channels_and_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def create_model(*given: object, **options: object) -> nn.Module:
        asked.extend([*given, options])
        return network()

    timm = types.SimpleNamespace(create_model=create_model, list_models=lambda: ("a", "b"))
    monkeypatch.setitem(sys.modules, "timm", timm)
    TimmModel(architecture="a").build((5, 2, 2), 3)
    assert asked == ["a", {"pretrained": False, "num_classes": 3, "in_chans": 5}]
    sized = TimmModel(architecture="a", options={"img_size": 8})
    sized.build((5, 2, 2), 3)
    assert (asked[-1], sized.label) == ({**asked[1], "img_size": 8}, "timm-a-img_size8")  # type: ignore[dict-item]
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match="needs timm: pip install timm"):
        TimmModel(architecture="a").build((5, 2, 2), 3)


def test_torchvision_is_asked_for_no_classifiers_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, object]] = []

    def get_model(name: str, **options: object) -> nn.Module:
        asked.append((name, options))
        return nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 1)), nn.Flatten(), nn.Linear(4, 6))

    monkeypatch.setattr("torchvision.models.get_model", get_model)
    for name in ("googlenet", "resnet18"):
        net = TorchvisionModel(architecture=name).build((2, 2, 2), 6)
        shapes = [tuple(leaf.shape) for leaf in net.parameters()]
        assert shapes == [(4, 2, 3, 3), (4,), (4, 4, 1, 1), (4,), (6, 4), (6,)]
    plain: dict[str, object] = {"weights": None, "num_classes": 6}
    more = {"aux_logits": False, "init_weights": True}
    assert asked == [("googlenet", plain | more), ("resnet18", plain)]


@pytest.mark.parametrize(
    ("architecture", "beside"), [("googlenet", ("aux1", "aux2")), ("inception_v3", ("AuxLogits",))]
)
def test_weights_with_classifiers_in_the_middle_are_taken_without_them(
    architecture: str, beside: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the form of torchvision's own files; with weights torchvision asks for inputs in [-1, 1]."""
    asked: list[dict[str, object]] = []

    def get_model(_: str, **options: object) -> nn.Module:
        asked.append(options)
        return nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 4, 1), flat=nn.Flatten(), fc=nn.Linear(4, 6)))

    monkeypatch.setattr("torchvision.models.get_model", get_model)
    state = {**get_model("").state_dict(), **{f"{name}.fc.weight": torch.zeros(2, 2) for name in beside}}
    torch.save(state, tmp_path / "w.pth")
    begun = TorchvisionModel(architecture=architecture, weights=str(tmp_path / "w.pth")).begin()
    assert begun.keys() == {"body.conv.weight", "body.conv.bias"}
    assert torch.equal(begun["body.conv.weight"], state["conv.weight"])
    assert asked[-1]["transform_input"] is True
    state["other.weight"] = torch.zeros(2)
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(DataCorrupt, match="no state dict"):
        TorchvisionModel(architecture=architecture, weights=str(tmp_path / "w.pth")).begin()


def test_options_that_a_network_does_not_take_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model.options=\{'depth': 3\} do not fit torchvision's resnet18: .*depth"):
        TorchvisionModel(architecture="resnet18", options={"depth": 3}).build((3, 32, 32), 4)
    with pytest.raises(ConfigError, match=r"^model.options must be names and values, as"):
        TorchvisionModel(architecture="resnet18", options=[1])


def test_options_reach_a_network_of_torchvision() -> None:
    narrow = TorchvisionModel(architecture="mobilenet_v2", options={"width_mult": 0.25})
    assert narrow.leaf_bytes((3, 32, 32), 4) < TorchvisionModel(architecture="mobilenet_v2").leaf_bytes((3, 32, 32), 4)
