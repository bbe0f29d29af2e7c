"""Leaves of every small network, written down: names, shapes, distributions, stages, groups, and the name in tables."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedbench.core.errors import ConfigError
from tests.helpers.tiers import sampled
from tests.models.scratch import VISION, build

K = 7
# name, fields, shape of a sample, label, stages, layers with the shape of their weights ("bn": batch normalisation)
SMALL: list[tuple[str, dict[str, Any], tuple[int, ...], str, str, dict[str, Any]]] = [
    (
        *("simple_cnn", {}, (3, 32, 32), "simple_cnn", "conv fc"),
        {"conv.0": (16, 3, 5, 5), "conv.3": (32, 16, 5, 5), "conv.6": (64, 32, 3, 3), "fc.0": (128, 576)},
    ),
    (
        *("cnn5", {}, (3, 32, 32), "cnn5", "conv fc"),
        {"conv.0": (32, 3, 3, 3), "conv.3": (64, 32, 3, 3), "conv.6": (64, 64, 3, 3), "fc.0": (64, 1024)},
    ),
    (
        *("fedrema_cnn", {}, (1, 28, 28), "fedrema_cnn", "conv fc"),
        {"conv.0": (32, 1, 5, 5), "conv.3": (64, 32, 5, 5), "fc.0": (512, 1024)},
    ),
    *(
        (
            *("fedrema_alexnet", {"activations": how}, (3, 32, 32), f"fedrema_alexnet{end}", "conv fc"),
            {
                "conv.0": (32, 3, 3, 3),
                "conv.3": (64, 32, 3, 3),
                "conv.6": (128, 64, 3, 3),
                f"conv.{fourth}": (256, 128, 3, 3),
                f"conv.{fifth}": (256, 256, 3, 3),
                "fc.0": (1024, 2304),
                f"fc.{second}": (512, 1024),
            },
        )
        for how, end, fourth, fifth, second in (("all", "", 8, 10, 2), ("code", "_code", 7, 8, 1))
    ),
    *(
        (
            *("cub_cnn", {"width": w}, (3, 33, 20), "cub_cnn" if w == 256 else f"cub_cnn-{w}", "conv pool"),
            {
                "conv.0": (w // 8, 3, 3, 3),
                "conv.3": (w // 4, w // 8, 3, 3),
                "conv.6": (w // 2, w // 4, 3, 3),
                "conv.9": (w, w // 2, 3, 3),
            },
        )
        for w in (256, 40)
    ),
    *(
        (
            *("textcnn", {"width": w, "vocabulary": v}, (1, 1, 9), "textcnn" if w == 256 else f"textcnn-{w}"),
            "embedding conv pool",
            {
                "embedding": (v, w // 2),
                "conv.0": (w // 2, w // 2, 3),
                "conv.3": (w // 2, w // 2, 3),
                "conv.6": (w, w // 2, 3),
                "conv.8": (w, w, 3),
                "conv.10": (w, w, 3),
            },
        )
        for w, v in ((256, 8192), (24, 90))
    ),
    (
        *("cnn1d", {}, (6, 1, 20), "cnn1d", "conv pool"),
        {"conv.0": (32, 6, 1, 5), "conv.3": (64, 32, 1, 5), "conv.6": (64, 64, 1, 3)},
    ),
    ("mlp", {}, (3, 5, 4), "mlp200x200", "flatten fc", {"fc.0": (200, 60), "fc.2": (200, 200)}),
    ("mlp", {"hidden": (30,)}, (2, 5, 4), "mlp30", "flatten fc", {"fc.0": (30, 40)}),
    (
        *("lenet5", {}, (3, 32, 32), "lenet5", "conv fc"),
        {"conv.0": (6, 3, 5, 5), "conv.3": (16, 6, 5, 5), "fc.0": (120, 400), "fc.2": (84, 120)},
    ),
    (
        *("lenet5", {"batch_norm": True}, (1, 28, 28), "lenet5_bn", "conv fc"),
        {
            "conv.0": (6, 1, 5, 5),
            "conv.1": "bn",
            "conv.4": (16, 6, 5, 5),
            "conv.5": "bn",
            "fc.0": (120, 256),
            "fc.2": (84, 120),
        },
    ),
]


@pytest.mark.parametrize("case", SMALL, ids=[case[3] for case in SMALL])
def test_leaves_are_those_written_down(case: tuple[Any, ...]) -> None:
    name, fields, shape, label, stages, layers = case
    task = build(name, **fields).task(shape, K)
    last = list(layers.values())[-1][0]
    norms = {layer: list(layers.values())[k - 1][0] for k, layer in enumerate(layers) if layers[layer] == "bn"}
    plain = {layer: size for layer, size in {**layers, "head": (K, last)}.items() if size != "bn"}
    expected = {f"{layer}.weight": size for layer, size in plain.items()}
    expected |= {f"{layer}.bias": size[:1] for layer, size in plain.items() if layer != "embedding"}
    statistics = {f"{layer}.running_{what}": (norms[layer],) for layer in norms for what in ("mean", "var")}
    expected |= {f"{layer}.{what}": (norms[layer],) for layer in norms for what in ("weight", "bias")} | statistics
    leaves = task.init(torch.Generator().manual_seed(5))
    assert {leaf: tuple(found.shape) for leaf, found in leaves.items()} == expected
    assert list(leaves) == sorted(leaves)
    assert (build(name, **fields).label, task.stages, task.boundary) == (label, [*stages.split(), "head"], "head")
    linear = {leaf for leaf in expected if leaf.rpartition(".")[0] in plain and leaf.startswith(("fc.", "head."))}
    head = {"head.weight", "head.bias"}
    assert task.groups == {
        "@head": head,
        "@body": expected.keys() - head,
        "@classifier": linear,
        "@norm": {leaf for leaf in expected if leaf.rpartition(".")[0] in norms},
        "@stats": set(statistics),
    }
    assert (task.buffers, task.parameters) == (set(statistics), expected.keys() - statistics.keys())
    for leaf, found in leaves.items():
        layer = leaf.rpartition(".")[0]
        assert not found.requires_grad
        if layer in norms:
            assert bool((found == (leaf.endswith(("weight", "var")))).all())
        elif layer == "embedding":
            assert (float(found.mean()), float(found.std())) == pytest.approx((0, 1), abs=0.05)
        elif name != "simple_cnn":  # see test_networks
            bound = math.prod(plain[layer][1:]) ** -0.5
            assert float(found.abs().max()) <= bound * (1 + 1e-6), "uniform within 1 / sqrt(values that a unit sees)"
            assert found.numel() < 500 or float(found.std()) == pytest.approx(bound / 3**0.5, rel=0.07)
            assert found.numel() < 5 or float(found.abs().max()) > 0.4 * bound


@pytest.mark.parametrize(
    ("name", "fields", "shape", "stage"),
    [
        ("lenet5", {"batch_norm": True}, (1, 28, 28), "fc"),
        ("fedrema_alexnet", {}, (3, 16, 16), "fc"),
        ("cub_cnn", {"width": 8}, (3, 16, 16), "head"),
    ],
)
def test_where_the_body_ends_follows_one_setting(
    name: str, fields: dict[str, Any], shape: tuple[int, ...], stage: str
) -> None:
    for classifier in ("own", "last", "linear"):
        task = build(name, classifier=classifier, **fields).task(shape, K)
        every = {leaf for leaf in task.parameters if leaf.startswith(("fc.", "head."))}
        last = {leaf for leaf in every if leaf.startswith("head.")}
        assert task.groups["@head"] == (every if classifier == "linear" else last)
        assert task.groups["@body"] == (task.parameters | task.buffers) - task.groups["@head"]
        assert task.groups["@classifier"] == (last if classifier == "last" else every)
        assert task.boundary == (stage if classifier == "linear" else "head")


@pytest.mark.parametrize("name", sampled(VISION, every=3))
def test_a_first_convolution_for_other_channels_is_of_the_same_geometry(name: str) -> None:
    """Drawn from a normal of variance 2 / (values that a place of the input reaches), without a bias beside zero."""
    torch.manual_seed(0)
    theirs, ours = (
        next(m for m in build(name).build((c, 32, 32), K).modules() if hasattr(m, "stride")) for c in (3, 5)
    )
    assert (ours.weight.shape[0], *ours.weight.shape[2:]) == (theirs.weight.shape[0], *theirs.weight.shape[2:])
    assert (ours.weight.shape[1], theirs.weight.shape[1]) == (5, 3)
    assert (ours.stride, ours.padding, ours.bias is None) == (theirs.stride, theirs.padding, theirs.bias is None)
    assert ours.bias is None or not ours.bias.any()
    reached = ours.weight.shape[0] * ours.weight[0, 0].numel()
    assert float(ours.weight.detach().std()) == pytest.approx((2 / reached) ** 0.5, rel=0.08)
    with pytest.raises(ConfigError, match=f"^model={name}: ImageNet weights need images of 3 channels, these have 5"):
        build(name, pretrained=True).build((5, 32, 32), K)
