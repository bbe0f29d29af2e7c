"""The papers' networks: sizes, layer by layer, and against torchvision."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.config.schema import OptimizerConfig
from fedbench.core import rng, trees
from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset
from fedbench.data.federation import Federation
from fedbench.data.partition import Partition
from fedbench.engine.looped import LoopedTrainer
from fedbench.engine.stacked import StackedTrainer
from fedbench.methods.fedavg import FedAvg
from fedbench.models.layers import MaxPool2
from fedbench.models.small import MLP, LeNet5
from fedbench.models.task import Model, Task, check_input
from tests.helpers.plain import plain_fedavg
from tests.helpers.tiers import sampled, tiered
from tests.methods.toys import close, federation, gap, setup, simulate
from tests.models.scratch import VISION, build


def weights(model: Model, shape: tuple[int, ...], classes: int) -> Tree:
    return model.task(shape, classes).init(rng.torch_rng(0, "init"))


# --- sizes


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    sampled(
        [
            # conv 3*16*25+16, 16*32*25+32, 32*64*9+64; 576*128+128; 128*10+10
            ("simple_cnn", (3, 32, 32), 10, 1216 + 12832 + 18496 + 73856 + 1290),
            ("cnn5", (3, 32, 32), 10, 896 + 18496 + 36928 + 65600 + 650),
            ("fedrema_cnn", (1, 28, 28), 10, 832 + 51264 + 524800 + 5130),
            ("cnn", (3, 32, 32), 10, 2432 + 51264 + (1600 * 512 + 512) + 5130),  # PFLlib's FedAvgCNN
            (
                "fedrema_alexnet",
                (3, 32, 32),
                10,
                896 + 18496 + 73856 + 295168 + 590080 + (2304 * 1024 + 1024) + (1024 * 512 + 512) + 5130,
            ),
            ("cub_cnn", (3, 64, 64), 200, 896 + 18496 + 73856 + 295168 + 256 * 200 + 200),
            ("resnet9", (3, 32, 32), 100, 6_775_140),
            ("resnet18", (3, 32, 32), 20, 11_186_772),
            ("resnet18", (3, 224, 224), 1000, 11_689_512),  # torchvision's documentation
            ("mobilenet_v2", (3, 64, 64), 1000, 3_504_872),
            ("squeezenet", (3, 64, 64), 1000, 1_248_424),
        ],
        every=3,
    ),
)
def test_parameter_counts(name: str, shape: tuple[int, int, int], classes: int, count: int) -> None:
    net = build(name).task(shape, classes).fresh()
    assert sum(leaf.numel() for leaf in net.parameters()) == count


@pytest.mark.slow
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


def cnn(w: Tree, x: Tensor) -> Tensor:
    x = F.max_pool2d(conv(x, w, "conv.0").relu(), 2)
    x = F.max_pool2d(conv(x, w, "conv.3").relu(), 2)
    return linear(linear(x.flatten(1), w, "fc.0").relu(), w, "head")


def cnn_padded(w: Tree, x: Tensor) -> Tensor:
    """With a third linear layer."""
    x = F.max_pool2d(conv(x, w, "conv.0", padding=2).relu(), 2).flatten(1)
    return linear(linear(linear(x, w, "fc.0").relu(), w, "fc.2").relu(), w, "head")


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


def fedrema_alexnet_code(w: Tree, x: Tensor) -> Tensor:
    x = F.max_pool2d(conv(x, w, "conv.0", padding=1), 2).relu()
    x = F.max_pool2d(conv(x, w, "conv.3", padding=1), 2).relu()
    for name in ("conv.6", "conv.7", "conv.8"):
        x = conv(x, w, name, padding=1)
    x = F.max_pool2d(x, 3, stride=2).relu().flatten(1)
    return linear(linear(linear(x, w, "fc.0"), w, "fc.1"), w, "head")


def cnn1d(w: Tree, x: Tensor) -> Tensor:
    h = x.squeeze(2)
    for name, padding in (("conv.0", 2), ("conv.3", 2), ("conv.6", 1)):
        h = F.conv1d(h, w[f"{name}.weight"].squeeze(2), w[f"{name}.bias"], padding=padding).relu()
        h = F.max_pool1d(h, 2) if padding == 2 else h
    return linear(h.mean(2), w, "head")


def embedding(w: Tree, x: Tensor) -> Tensor:
    tokens = x.long().flatten(1)
    bag = F.embedding_bag(tokens, w["embedding.weight"], mode="mean", padding_idx=0)
    return linear(bag, w, "head")


def mlp(w: Tree, x: Tensor) -> Tensor:
    x = linear(x.flatten(1), w, "fc.0").relu()
    return linear(linear(x, w, "fc.2").relu(), w, "head")


def lenet5(w: Tree, x: Tensor) -> Tensor:
    x = F.max_pool2d(conv(x, w, "conv.0"), 2).relu()
    x = F.max_pool2d(conv(x, w, "conv.3"), 2).relu().flatten(1)
    return linear(linear(linear(x, w, "fc.0").relu(), w, "fc.2").relu(), w, "head")


def lenet5_flux(w: Tree, x: Tensor) -> Tensor:
    x = F.avg_pool2d(conv(x, w, "conv.0", padding=2).relu(), 2)
    x = F.avg_pool2d(conv(x, w, "conv.3").relu(), 2).flatten(1)
    return linear(linear(linear(x, w, "fc.0").relu(), w, "fc.2").relu(), w, "head")


def resnet9(w: Tree, x: Tensor) -> Tensor:
    def block(x: Tensor, name: str) -> Tensor:
        kept = [w[f"{name}.1.{leaf}"] for leaf in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(conv(x, w, f"{name}.0", padding=1), *kept).relu()

    x = block(x, "stem")
    for stage, shortcut in (("layer1", True), ("layer2", False), ("layer3", True)):
        x = F.max_pool2d(block(x, f"{stage}.0"), 2)
        x = x + block(block(x, f"{stage}.2.blocks.0"), f"{stage}.2.blocks.1") if shortcut else x
    return linear(F.max_pool2d(x, 2).flatten(1), w, "head")


def lenet5_bn(w: Tree, x: Tensor) -> Tensor:
    for name, norm in (("conv.0", "conv.1"), ("conv.4", "conv.5")):
        kept = [w[f"{norm}.{leaf}"] for leaf in ("running_mean", "running_var", "weight", "bias")]
        x = F.max_pool2d(F.batch_norm(conv(x, w, name), *kept), 2).relu()
    return linear(linear(linear(x.flatten(1), w, "fc.0").relu(), w, "fc.2").relu(), w, "head")


WRITTEN_OUT = [
    *(simple_cnn, cnn5, fedrema_cnn, fedrema_alexnet, fedrema_alexnet_code, cub_cnn, textcnn, mlp, lenet5, lenet5_bn),
    *(lenet5_flux, cnn, cnn_padded, cnn1d, embedding, resnet9),
]
WORDS = ("textcnn", "embedding")  # which read token ids


@pytest.mark.parametrize("forward", sampled(WRITTEN_OUT, every=3))
def test_networks_are_what_their_papers_say(forward) -> None:
    """Outputs and gradients; weights and statistics are drawn, so that each of them counts."""
    name = forward.__name__
    shapes = {"fedrema_cnn": (1, 28, 28), "cnn1d": (6, 1, 21), **dict.fromkeys(WORDS, (1, 1, 14))}
    shape = shapes.get(name, (3, 32, 32))
    split = name.startswith("lenet5_") or name == "cnn_padded"
    stem, _, how = name.partition("_") if split else (name.removesuffix("_code"), "", name[-5:])
    fields: dict[str, object] = {
        "_code": {"activations": "code"},
        "bn": {"batch_norm": True},
        "flux": {"padding": 2, "pool": "mean"},
        "padded": {"channels": (5,), "hidden": (9, 6), "padding": 2},
    }.get(how, {})
    model = build(stem, **fields)
    draw = torch.Generator().manual_seed(0)
    w = {k: v + 0.02 * torch.randn(v.shape, generator=draw) for k, v in weights(model, shape, 7).items()}
    x = torch.randn(3, *shape, generator=draw)
    x = x.abs().mul(4).round() if name in WORDS else x
    task = model.task(shape, 7)
    torch.testing.assert_close(task.apply(w, x), forward(w, x))
    assert task.features(w, x).shape == (3, w["head.weight"].shape[1])
    moving = {k: v.requires_grad_(k in task.parameters) for k, v in w.items()}
    leaves = [moving[k] for k in sorted(task.parameters)]
    ours, theirs = (torch.autograd.grad(net(moving, x).square().sum(), leaves) for net in (task.apply, forward))
    torch.testing.assert_close(ours, theirs)


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


@pytest.mark.slow
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


@pytest.mark.parametrize("name", sampled(VISION, every=3))
def test_the_first_convolution_takes_other_channels_from_scratch_only(name: str) -> None:
    task = build(name).task((1, 32, 32), 5)
    assert task.apply(task.init(torch.Generator()), torch.zeros(2, 1, 32, 32)).shape == (2, 5)
    with pytest.raises(ConfigError, match="need images of 3 channels, these have 1"):
        build(name, pretrained=True).task((1, 32, 32), 5)


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
def test_parameter_counts_of_all(model: Model, shape: tuple[int, int, int], count: int) -> None:
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
    ("embedding", ()),
    ("cnn1d", (2, 1, 9)),
    ("resnet9", (2, 17, 17)),
    ("resnet18", (3, 33, 33)),
    ("mobilenet_v2", (1, 33, 33)),
    ("squeezenet", (3, 21, 21)),
    ("squeezenet", (1, 37, 37)),
]


SMALL = [case for case in NETWORKS if case[0] in ("simple_cnn", "textcnn", "cnn1d")]


@pytest.mark.parametrize(("name", "shape"), tiered(NETWORKS, quick=SMALL))
def test_every_network_trains_alike_in_both_engines_and_the_plain_loop(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, **({"vocabulary": 9} if name in WORDS else {}))
    data = text_federation() if name in WORDS else federation((6, 7), shape, tests=3)
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
        ("textcnn", (3, 32, 32), "token ids"),
        ("cnn", (1, 8, 8), "does not fit"),
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
