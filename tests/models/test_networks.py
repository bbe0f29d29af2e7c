"""The papers' networks: sizes, layer by layer, against torchvision, in both engines, and where weights come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.config import compose
from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng
from fedbench.core.errors import ConfigError, DataCorrupt, DataMissing, FedbenchError
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.engine.train.stacked import StackedTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.models import MODELS
from fedbench.models import weights as weight_files
from fedbench.models.base import Model
from fedbench.models.blocks import MaxPool2
from fedbench.models.fit import check_input
from fedbench.runs.config import RunConfig, resolve, run_key
from tests.helpers.plain import plain_fedavg
from tests.helpers.tiers import tiered
from tests.methods.toys import federation, gap, setup, simulate

torchvision = pytest.importorskip("torchvision")
VISION = ("resnet18", "mobilenet_v2", "squeezenet")


def build(name: str, **fields: object) -> Model:
    return MODELS.build({"name": name, **({"pretrained": False} if name in VISION else {}), **fields})


def weights(model: Model, shape: tuple[int, ...], classes: int) -> Tree:
    return model.task(shape, classes).init(rng.torch_rng(0, "init"))


# --- sizes


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        # conv 3*16*25+16, 16*32*25+32, 32*64*9+64; 576*128+128; 128*10+10
        ("simple_cnn", (3, 32, 32), 10, 1216 + 12832 + 18496 + 73856 + 1290),
        ("cnn5", (3, 32, 32), 10, 896 + 18496 + 36928 + 65600 + 650),
        ("fedrema_cnn", (1, 28, 28), 10, 832 + 51264 + 524800 + 5130),
        (
            "fedrema_alexnet",
            (3, 32, 32),
            10,
            896 + 18496 + 73856 + 295168 + 590080 + (2304 * 1024 + 1024) + (1024 * 512 + 512) + 5130,
        ),
        ("cub_cnn", (3, 64, 64), 200, 896 + 18496 + 73856 + 295168 + 256 * 200 + 200),
        ("resnet18", (3, 32, 32), 20, 11_186_772),
        ("resnet18", (3, 224, 224), 1000, 11_689_512),  # torchvision's documentation
        ("mobilenet_v2", (3, 64, 64), 1000, 3_504_872),
        ("squeezenet", (3, 64, 64), 1000, 1_248_424),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, int, int], classes: int, count: int) -> None:
    net = build(name).task(shape, classes).fresh()
    assert sum(leaf.numel() for leaf in net.parameters()) == count


def test_fedcollab_counted_its_resnet_with_ten_classes() -> None:
    """Table 5 prints 11,181,642 for the model that classifies 20 coarse labels: its classifier had 10."""
    sizes = {
        k: sum(p.numel() for p in build("resnet18").task((3, 32, 32), k).fresh().parameters())
        for k in (10, 20)
    }
    assert sizes == {10: 11_181_642, 20: 11_186_772}
    assert sizes[20] - sizes[10] == 10 * (512 + 1)


# --- layer by layer


def conv(x: Tensor, w: Tree, name: str, **how: int) -> Tensor:
    return F.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], **how)


def linear(x: Tensor, w: Tree, name: str) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def simple_cnn(w: Tree, x: Tensor) -> Tensor:
    for name, padding in (("conv.0", 0), ("conv.3", 1), ("conv.6", 1)):
        x = F.max_pool2d(F.leaky_relu(conv(x, w, name, padding=padding)), 2)
    return linear(F.leaky_relu(linear(x.flatten(1), w, "fc.0")), w, "head")


def cnn5(w: Tree, x: Tensor) -> Tensor:
    x = F.max_pool2d(conv(x, w, "conv.0").relu(), 2)
    x = F.max_pool2d(conv(x, w, "conv.3").relu(), 2)
    x = conv(x, w, "conv.6").relu()
    return linear(linear(x.flatten(1), w, "fc.0").relu(), w, "head")


def fedrema_cnn(w: Tree, x: Tensor) -> Tensor:
    x = F.max_pool2d(conv(x, w, "conv.0").relu(), 2)
    x = F.max_pool2d(conv(x, w, "conv.3").relu(), 2)
    return linear(linear(x.flatten(1), w, "fc.0").relu(), w, "head")


def fedrema_alexnet(w: Tree, x: Tensor) -> Tensor:
    x = F.max_pool2d(conv(x, w, "conv.0", padding=1).relu(), 2)
    x = F.max_pool2d(conv(x, w, "conv.3", padding=1).relu(), 2)
    for name in ("conv.6", "conv.8", "conv.10"):
        x = conv(x, w, name, padding=1).relu()
    x = F.max_pool2d(x, 3, stride=2).flatten(1)
    return linear(linear(linear(x, w, "fc.0").relu(), w, "fc.2").relu(), w, "head")


def cub_cnn(w: Tree, x: Tensor) -> Tensor:
    for name in ("conv.0", "conv.3", "conv.6", "conv.9"):
        x = F.max_pool2d(conv(x, w, name, padding=1).relu(), 2)
    return linear(x.mean((2, 3)), w, "head")


def textcnn(w: Tree, x: Tensor) -> Tensor:
    tokens = x.long().flatten(1)
    h = F.embedding(tokens, w["embedding.weight"]) * (tokens != 0).unsqueeze(2)
    h = h.transpose(1, 2)
    for name in ("conv.0", "conv.3", "conv.6", "conv.8", "conv.10"):
        h = F.conv1d(h, w[f"{name}.weight"], w[f"{name}.bias"], padding=1).relu()
        h = F.max_pool1d(h, 2) if name in ("conv.0", "conv.3") else h
    return linear(h.max(2).values, w, "head")


@pytest.mark.parametrize("forward", [simple_cnn, cnn5, fedrema_cnn, fedrema_alexnet, cub_cnn, textcnn])
def test_networks_are_what_their_papers_say(forward) -> None:
    name = forward.__name__
    shape = {"fedrema_cnn": (1, 28, 28), "textcnn": (1, 1, 14)}.get(name, (3, 32, 32))
    model = build(name)
    w = weights(model, shape, 7)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    x = x.abs().mul(4).round() if name == "textcnn" else x
    task = model.task(shape, 7)
    torch.testing.assert_close(task.apply(w, x), forward(w, x))
    assert task.features(w, x).shape == (3, w["head.weight"].shape[1])


def test_simple_cnn_is_xavier_initialised() -> None:
    w = weights(build("simple_cnn"), (3, 32, 32), 10)
    for name, leaf in w.items():
        if name.endswith("bias"):
            assert float(leaf.abs().max()) == 0
            continue
        receptive = leaf[0, 0].numel()
        bound = (6 / (receptive * (leaf.shape[0] + leaf.shape[1]))) ** 0.5
        assert bound * 0.9 < float(leaf.abs().max()) <= bound


def test_fedrema_s_classifier_is_every_linear_layer() -> None:
    task = build("fedrema_alexnet").task((3, 32, 32), 10)
    assert {name.rpartition(".")[0] for name in task.groups["@classifier"]} == {"fc.0", "fc.2", "head"}


# --- torchvision


@pytest.mark.parametrize(
    ("name", "size"), [("resnet18", 32), ("mobilenet_v2", 32), ("squeezenet", 32), ("squeezenet", 64)]
)
def test_torchvision_s_networks_are_the_same_functions(name: str, size: int) -> None:
    """With the same weights, in evaluation: their dropout is off there."""
    model = build(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = model._network(7).eval()  # type: ignore[attr-defined]
        x = torch.randn(4, 3, size, size)
        with torch.no_grad():
            theirs.train()(torch.randn(8, 3, size, size))  # running statistics that are not 0 and 1
            expected = theirs.eval()(x)
    from fedbench.models.norm import replace_batch_norm

    ours = replace_batch_norm(model.stages(theirs, 3)).state_dict()  # type: ignore[attr-defined]
    task = model.task((3, size, size), 7)
    torch.testing.assert_close(task.apply(ours, x), expected, atol=2e-5, rtol=1e-5)


def test_squeezenet_s_head_is_a_linear_classifier() -> None:
    task = build("squeezenet").task((3, 32, 32), 10)
    w = task.init(rng.torch_rng(0, "init"))
    assert sorted(n for n in w if n in task.groups["@head"]) == ["head.linear.bias", "head.linear.weight"]
    assert task.groups["@head"] == task.groups["@classifier"]
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    z = task.features(w, x)
    assert z.shape == (2, 512)
    torch.testing.assert_close(task.head(w, z), linear(z, w, "head.linear").relu())


@pytest.mark.parametrize("name", VISION)
def test_the_first_convolution_takes_other_channels_from_scratch_only(name: str) -> None:
    task = build(name).task((1, 32, 32), 5)
    assert task.apply(task.init(torch.Generator()), torch.zeros(2, 1, 32, 32)).shape == (2, 5)
    with pytest.raises(ConfigError, match="need images of 3 channels, these have 1"):
        build(name, pretrained=True).task((1, 32, 32), 5)


# --- weights


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as torch.hub's."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    weight_files.read.cache_clear()
    return tmp_path / "hub" / "checkpoints"


def imagenet(name: str) -> dict[str, Tensor]:
    """A state dict as torchvision publishes it, with other values."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = build(name)._network(1000)  # type: ignore[attr-defined]
        net.train()(torch.randn(4, 3, 32, 32))
    return net.state_dict()


@pytest.mark.parametrize(
    ("name", "stem"), [("resnet18", "conv1"), ("mobilenet_v2", "features.0.0"), ("squeezenet", "features.0")]
)
def test_weights_begin_everything_but_the_head(name: str, stem: str, hub: Path) -> None:
    state = imagenet(name)
    hub.mkdir(parents=True)
    torch.save(state, hub / weight_files.hub_file(build(name).architecture).name)  # type: ignore[attr-defined]
    model = build(name, pretrained=True)
    assert model.label == name
    task = model.task((3, 32, 32), 6)
    first, second = (task.init(rng.torch_rng(seed, "init")) for seed in (0, 1))
    body = [n for n in first if not n.startswith("head.")]
    assert gap({n: first[n] for n in body}, {n: second[n] for n in body}) == 0
    assert (
        gap(
            {n: v for n, v in first.items() if n not in body},
            {n: v for n, v in second.items() if n not in body},
        )
        > 0
    )
    net = model._network(1000).eval()  # type: ignore[attr-defined]
    net.load_state_dict(state)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = {
            "resnet18": lambda: torch.nn.Sequential(*list(net.children())[:-1])(x).flatten(1),
            "mobilenet_v2": lambda: net.features(x).mean((2, 3)),
            "squeezenet": lambda: net.features(x).flatten(1),
        }[name]()
    torch.testing.assert_close(task.features(first, x), expected, atol=1e-5, rtol=1e-5)
    first[body[0]].add_(1)
    assert gap(second, task.init(rng.torch_rng(1, "init"))) == 0  # leaves are copies


def test_missing_weights_name_the_way_out(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", offline)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    task = build("resnet18", pretrained=True).task((3, 32, 32), 10)
    with pytest.raises(
        DataMissing, match=r"resnet18-f37072fd\.pth; set model\.download=true, model\.weights=FILE"
    ):
        task.init(torch.Generator())
    task = build("resnet18", pretrained=True, download=True).task((3, 32, 32), 10)
    with pytest.raises(DataMissing, match="could not be downloaded: Network is unreachable"):
        task.init(torch.Generator())
    with pytest.raises(DataMissing, match=r"none\.pth"):
        _ = build("resnet18", pretrained=True, weights=str(hub / "none.pth")).label


@pytest.mark.parametrize("content", ["garbage", "truncated", "other network", "no dict"])
def test_damaged_weights_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    if content == "garbage":
        path.write_bytes(b"not a checkpoint")
    else:
        torch.save(
            {"other network": imagenet("squeezenet"), "no dict": [1, 2]}.get(content, imagenet("resnet18")),
            path,
        )
    if content == "truncated":
        path.write_bytes(path.read_bytes()[:-1000])
    task = build("resnet18", pretrained=True, weights=str(path)).task((3, 32, 32), 10)
    with pytest.raises(DataCorrupt, match=r"weights"):
        task.init(torch.Generator())


def test_tables_tell_scratch_and_other_weights_from_imagenet_s(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    path.write_bytes(b"1")

    def run(*overrides: str) -> RunConfig:
        return resolve(compose.compose(["model=resnet18", *overrides]))

    usual, scratch = run(), run("model.pretrained=false")
    other, fetched = run(f"model.weights={path}"), run("model.download=true")
    labels = [each.labels["model"] for each in (usual, scratch, other, fetched)]
    assert labels == ["resnet18", "resnet18_scratch", "resnet18-6b86b273", "resnet18"]  # sha256 of "1"
    keys = [run_key(each) for each in (usual, scratch, other, fetched)]
    assert keys[0] == keys[3]
    assert len(set(keys)) == 3


# --- engines


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
def test_every_network_trains_alike_in_both_engines_and_the_plain_loop(
    name: str, shape: tuple[int, ...]
) -> None:
    model = build(name, **({"vocabulary": 9} if name == "textcnn" else {}))
    data = text_federation() if name == "textcnn" else federation((6, 7), shape, tests=3)
    # Small steps, large batches: normalising two or three values by their own spread blows rounding up, layer by layer.
    work = (
        {"batch": 7, "iterations": 2, "optimizer": OptimizerConfig(lr=1e-3)}
        if name in VISION
        else {"batch": 4}
    )
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
