"""The papers' networks: sizes, layer by layer, and against torchvision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.core import rng
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.models.task import Model
from tests.models.scratch import VISION, build


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
    sizes = {k: sum(p.numel() for p in build("resnet18").task((3, 32, 32), k).fresh().parameters()) for k in (10, 20)}
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
    from fedbench.models.layers import replace_batch_norm

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
