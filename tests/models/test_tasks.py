"""What a task says of its network, stages, shapes, refusals; and of networks of several kinds, whose leaf is whose."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from fedbench.core.batch import Batch
from fedbench.core.errors import ConfigError
from fedbench.core.trees import Tree
from fedbench.data.dataset import Dataset
from fedbench.data.partition import Partition
from fedbench.models.modalities import CubCNN, JointTask, Kinds, ModalityTask, TextCNN, owner
from fedbench.models.small import MLP, LeNet5
from fedbench.models.task import Model, Task, check_input, flat_size, gradient
from tests.models.scratch import build


class Given(Model):
    """A network given as stages, or whatever a function makes."""

    def __init__(self, make: Any = None, classifier: str = "own", **stages: nn.Module) -> None:
        object.__setattr__(self, "make", make or (lambda *_: nn.Sequential()))
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "classifier", classifier)

    @property
    def label(self) -> str:
        return "given"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        net: nn.Sequential = self.make(shape, classes)
        for name, stage in self.stages.items():
            net.add_module(name, stage)
        return net


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_stages_run_from_any_to_any() -> None:
    task = LeNet5().task((1, 20, 20), 4)
    w, x = task.init(seeded()), torch.randn(3, 1, 20, 20, generator=seeded(1))
    z = functional.conv2d(x, w["conv.0.weight"], w["conv.0.bias"])
    z = functional.conv2d(functional.max_pool2d(z, 2).relu(), w["conv.3.weight"], w["conv.3.bias"])
    z = functional.max_pool2d(z, 2).relu().flatten(1)
    y = functional.linear(z, w["fc.0.weight"], w["fc.0.bias"]).relu()
    y = functional.linear(y, w["fc.2.weight"], w["fc.2.bias"]).relu()
    out = functional.linear(y, w["head.weight"], w["head.bias"])
    torch.testing.assert_close(task.apply(w, x, until="fc"), z)
    torch.testing.assert_close(task.apply(w, z, since="fc", until="head"), y)
    torch.testing.assert_close(task.apply(w, z, since="fc"), out)
    torch.testing.assert_close(task.apply(w, y, since="head"), out)
    torch.testing.assert_close(task.apply(w, x), out)
    assert [task.shape_before(stage) for stage in task.stages] == [(1, 20, 20), (64,), (84,)]
    assert flat_size(nn.Sequential(nn.Conv2d(1, 5, 3), nn.MaxPool2d(2)), (1, 8, 10)) == 5 * 3 * 4
    assert task.modalities == (task,)
    assert task.modality_of(torch.arange(3)).tolist() == [0, 0, 0]
    assert task.own(w) is w
    labels, mask = torch.tensor([0, 3, 1]), torch.tensor([True, False, True])
    own = -out.log_softmax(1)[torch.arange(3), labels]
    torch.testing.assert_close(task.criterion(out, Batch(x, labels)), own.mean())
    torch.testing.assert_close(task.criterion(out, Batch(x, labels, mask)), (own[0] + own[2]) / 2)


def test_the_first_stage_of_what_is_chosen_is_found_where_all_above_is_chosen() -> None:
    task = LeNet5(batch_norm=True).task((1, 20, 20), 4)
    cases = {
        "head.*": "head",
        "@classifier": "fc",
        "fc.* head.*": "fc",
        "*": "conv",
        "conv.* fc.*": None,
        "fc.0.* head.*": None,
        "head.weight": None,
        "conv.1.running_*": None,
        "": None,
    }
    assert {each: task.first_stage(each.split()) for each in cases} == cases
    assert MLP().task((1, 4, 4), 4).first_stage(["*"]) == "fc", "to flatten takes no weights"
    assert CubCNN(width=8).task((1, 16, 16), 4).first_stage(["@head"]) == "head"


def test_linear_layers_below_others_are_no_classifier() -> None:
    def stages(*below: str) -> dict[str, nn.Module]:
        made = {"conv": nn.Conv1d(4, 4, 1), "mix": nn.Linear(4, 4), "flat": nn.Flatten(), "head": nn.Linear(16, 3)}
        return {name: made[name] for name in (*below, "flat", "head")}

    assert Given(classifier="linear", **stages("conv", "mix")).task((4, 4), 3).boundary == "mix"
    for below in (("mix", "conv"), ("mix",)):
        with pytest.raises(ConfigError, match=r"^model.classifier=linear: .* or model.classifier=last$"):
            Given(classifier="linear", **stages(*below)).task((4, 4), 3)
        assert Given(classifier="last", **stages(*below)).task((4, 4), 3).boundary == "head"


def test_a_pickled_task_is_made_of_the_same() -> None:
    plain = TextCNN(vocabulary=9, width=8, classifier="last").task((1, 1, 6), 3, bf16=True)
    joint = JointTask([MLP(hidden=(8,)).task((1, 4, 4), 3), plain], ["a", "b"], torch.tensor([0, 1, 1]))
    for task in (plain, joint, *joint.modalities):
        copy = pickle.loads(pickle.dumps(task))
        assert type(copy) is type(task)
        assert (copy.groups, copy.classes, copy.parameters, copy.prefix) == (
            *(task.groups, task.classes, task.parameters, task.prefix),
        )
        first, second = (each.init(seeded()) for each in (copy, task))
        assert first.keys() == second.keys()
        assert all(torch.equal(leaf, second[name]) for name, leaf in first.items())
        for ours, theirs in zip(copy.modalities, task.modalities, strict=True):
            assert (ours.shape, ours.tokens, ours.bf16) == (theirs.shape, theirs.tokens, theirs.bf16)
    assert (plain.tokens, plain.bf16, joint.modalities[1].bf16, joint.modalities[0].bf16) == (9, True, True, False)


class Mute(nn.Module):
    """A network that fails, without a word or with some lines."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.error, self.weight = error, nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.error:
            raise self.error
        return x.flatten(1)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AssertionError(), "it asserts another"),
        (RuntimeError("first\nsecond"), "first"),
        (ValueError("odd\nrest"), "odd"),
    ],
)
def test_a_network_s_own_words_are_passed_on_in_one_line(error: Exception, said: str) -> None:
    def fail(*_: object) -> nn.Sequential:
        raise error

    with pytest.raises(ConfigError) as caught:
        Given(fail).task((1, 2, 2), 4)
    assert str(caught.value) == (
        f"model given does not fit inputs of shape [1, 2, 2]: {said}; model=mlp fits any, others larger images"
    )
    task = Given(body=Mute(error), head=nn.Linear(4, 3)).task((1, 2, 2), 3)
    kept = isinstance(error, ValueError)
    with pytest.raises(ValueError if kept else ConfigError) as caught:
        check_input(task, 2)
    wanted = "odd\nrest" if kept else f"the model does not fit inputs of shape (1, 2, 2): {said}"
    assert str(caught.value) == wanted


@pytest.mark.parametrize(("smallest", "refused"), [(0, True), (1, True), (2, False)])
def test_one_step_on_the_smallest_batch_is_tried(smallest: int, refused: bool) -> None:
    """A federation that has no batch yet is tried with one sample."""
    norm = {"flat": nn.Flatten(), "norm": nn.BatchNorm1d(4), "head": nn.Linear(4, 3)}
    reason = rf"^batch normalisation cannot train on a batch of {smallest} sample; use a model without it, another"
    for droppable, way in ((False, ""), (True, " protocol.local.drop_last=true,")):
        said = rf"{reason} batch size,{way} or a partition with larger clients$"
        with pytest.raises(ConfigError, match=said) if refused else contextlib.nullcontext():
            check_input(Given(**norm).task((1, 2, 2), 3), smallest, droppable)
    for head in (nn.Linear(4, 3), nn.Linear(4, 2)):
        fits, rows = head.out_features == 3, max(1, smallest)
        reason = rf"^the model yields \({rows}, 2\), expected \({rows}, 3\)$"
        with contextlib.nullcontext() if fits else pytest.raises(ConfigError, match=reason):
            check_input(Given(body=Mute(None), head=head).task((1, 2, 2), 3), smallest)


def test_several_vectors_an_image_are_no_features() -> None:
    task = build("squeezenet").task((3, 40, 40), 3)
    w = task.init(seeded())
    assert task.apply(w, torch.zeros(2, 3, 40, 40)).shape == (2, 3)
    with pytest.raises(ConfigError, match=r"for images \[3, 40, 40\] the model yields 4 of them"):
        task.features(w, torch.zeros(2, 3, 40, 40))


@pytest.mark.parametrize("way", ["apply", "features", "loss"])
def test_padding_counts_in_no_way_into_a_network(way: str) -> None:
    """In training what the real samples alone give, statistics too; in evaluation each sample is on its own."""
    task = LeNet5(batch_norm=True).task((1, 16, 16), 4)
    x, y, real = (
        torch.randn(6, 1, 16, 16, generator=seeded(1)),
        torch.arange(6) % 4,
        torch.tensor([1, 1, 0, 1, 0, 1]) > 0,
    )
    outs, models = [], []
    for rows, mask in ((slice(None), real), (real, None)):
        models.append(task.init(seeded()))
        if way == "loss":
            outs.append(task.loss(models[-1], Batch(x[rows], y[rows], mask)))
        else:
            outs.append(getattr(task, way)(models[-1], x[rows], train=True, mask=mask))
    torch.testing.assert_close(outs[0] if way == "loss" else outs[0][real], outs[1])
    for name, leaf in models[1].items():
        torch.testing.assert_close(models[0][name], leaf)
    if way != "loss":
        still = task.init(seeded())
        function = getattr(task, way)
        torch.testing.assert_close(function(still, x, mask=real)[2:4], function(still, x[2:4]))
        assert all(torch.equal(leaf, still[name]) for name, leaf in task.init(seeded()).items())


@pytest.mark.parametrize("stacked", [False, True])
def test_a_gradient_leaves_statistics_alone_and_returns_where_they_went(stacked: bool) -> None:
    task = LeNet5(batch_norm=True).task((1, 16, 16), 4)
    w, batch = task.init(seeded()), Batch(torch.randn(5, 1, 16, 16, generator=seeded(1)), torch.arange(5) % 4)
    moving = {name: leaf.clone().requires_grad_(name in task.parameters) for name, leaf in w.items()}
    names = sorted(task.parameters)
    expected = dict(zip(names, torch.autograd.grad(task.loss(moving, batch), [moving[n] for n in names]), strict=True))
    given = {name: leaf.clone()[None] if stacked else leaf.clone() for name, leaf in w.items()}

    def slopes(model: Tree) -> tuple[Tree, Tree]:
        return gradient(lambda m: task.loss(m, batch), model, task)

    found, moved = vmap(slopes)(given) if stacked else slopes(given)
    assert (found.keys(), moved.keys()) == (task.parameters, task.buffers)
    for ours, theirs in ((found, expected), (moved, {name: moving[name] for name in task.buffers}), (given, w)):
        for name, leaf in ours.items():
            assert not leaf.requires_grad
            torch.testing.assert_close(leaf[0] if stacked else leaf, theirs[name].detach(), atol=1e-6, rtol=1e-4)
    if not stacked:
        flat, still = gradient(lambda _: torch.tensor(3.0), w, task)
        assert (flat.keys(), still.keys()) == (task.parameters, task.buffers)
        assert not any(leaf.any() for leaf in flat.values())

        def moves(m: Tree) -> Tensor:
            m["conv.1.running_mean"].add_(m["head.bias"].sum())
            return m["head.bias"].square().sum()

        slope, moved = gradient(moves, w, task)
        assert torch.equal(slope["head.bias"], 2 * w["head.bias"])
        assert not moved["conv.1.running_mean"].requires_grad, "a statistic is a number"


# --- kinds of client


NETS: dict[str, Model] = {"image": MLP(hidden=(8,)), "text": TextCNN(vocabulary=9, width=8)}


def joint() -> tuple[list[Task], JointTask]:
    plain = [net.task(shape, 3) for net, shape in zip(NETS.values(), ((1, 4, 4), (1, 1, 6)), strict=True)]
    return plain, JointTask(plain, list(NETS), torch.tensor([0, 1, 1, 0, 1]))


def test_each_kind_begins_as_if_alone_but_for_the_classifier_of_the_first() -> None:
    plain, task = joint()
    found = task.init(seeded(3))
    expected = {}
    for kind, each in reversed(list(zip(NETS, plain, strict=True))):  # the first last, whose classifier it is
        for name, leaf in each.init(seeded(3)).items():
            expected[name if name.startswith("head.") else f"{kind}.{name}"] = leaf
    assert found.keys() == expected.keys() == task.parameters
    assert all(torch.equal(leaf, expected[name]) for name, leaf in found.items())
    assert not any(leaf.requires_grad for leaf in found.values())
    for place, (kind, each) in enumerate(zip(NETS, task.modalities, strict=True)):
        own = {name for name in expected if name.startswith((f"{kind}.", "head."))}
        begun = each.init(seeded(3))
        assert begun.keys() == own
        assert all(torch.equal(leaf, expected[name]) for name, leaf in begun.items())
        assert (each.prefix, each.shape, each.stages) == (f"{kind}.", plain[place].shape, [kind, "head"])
        mine = each.own({**expected, **{f"personal/{name}": leaf for name, leaf in expected.items()}})
        assert mine.keys() == own | {f"personal/{name}" for name in own}
        x = torch.ones(2, *each.shape)
        short = {name.removeprefix(f"{kind}."): leaf for name, leaf in begun.items()}
        assert torch.equal(each.apply(begun, x), plain[place].apply(short, x))
    assert (task.classes, task.groups["@head"]) == (3, {"head.weight", "head.bias"})
    assert task.groups["@body"] == task.parameters - task.groups["@head"]
    assert task.groups["@classifier"] == {"image.fc.0.weight", "image.fc.0.bias"} | task.groups["@head"]
    with pytest.raises(RuntimeError, match="no network in common"):
        task.apply(found, torch.zeros(2, 1, 4, 4))


def test_a_given_beginning_takes_the_kind_s_name() -> None:
    class Begun(MLP):
        def begin(self) -> Tree:
            return {"fc.0.bias": torch.full((5,), 3.0), "head.bias": torch.full((2,), 4.0)}

    w = ModalityTask(Begun(hidden=(5,)).task((1, 2, 2), 2), ["a", "b"], 1).init(seeded())
    assert (w["b.fc.0.bias"].tolist(), w["head.bias"].tolist()) == ([3.0] * 5, [4.0] * 2)


@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 4], [4, 0], [2, 1], [3], [7, 5]])
def test_leaves_are_parted_by_who_has_them(ids: list[int]) -> None:
    """Clients beyond the federation's are its clients again, of another seed."""
    _, task = joint()
    kinds = [[0, 1, 1, 0, 1][k % 5] for k in ids]
    assert task.modality_of(torch.tensor(ids)).tolist() == kinds
    names = ["image.a", "personal/image.b", "text.a", "head.weight", "personal/head.bias", "mean", "imagery.c"]
    tree = {name: torch.arange(len(ids)) * 10 + k for k, name in enumerate(names)}
    found = {name: (rows, leaf) for rows, part in task.among(tree, torch.tensor(ids)) for name, leaf in part.items()}
    for number, name in enumerate(names):
        whose = owner(name, list(NETS))
        assert whose == {0: "image", 1: "image", 2: "text"}.get(number, "")
        members = [k for k, kind in enumerate(kinds) if whose in ("", list(NETS)[kind])]
        assert (name in found) == bool(members)
        if members:
            assert torch.arange(len(ids))[found[name][0]].tolist() == members
            assert found[name][1].tolist() == [10 * k + number for k in members]


def clients(count: int) -> Partition:
    parts = [np.array([k]) for k in range(count)]
    return Partition("toy", 0, "toy", 3, parts, [np.zeros(0, dtype=np.int64)] * count, parts)


def test_clients_are_dealt_to_kinds_in_their_order() -> None:
    two, three = {"a": MLP(), "b": MLP()}, {"a": MLP(), "b": MLP(), "c": MLP()}
    for kinds, numbers, count, expected in (
        (two, (), 5, [0, 0, 0, 1, 1]),
        (two, (1, 4), 5, [0, 1, 1, 1, 1]),
        (three, (), 5, [0, 0, 1, 1, 2]),
        (three, (2, 1, 1), 4, [0, 0, 1, 2]),
    ):
        partition, found = Kinds(kinds=kinds, clients=numbers).dealt(clients(count))
        assert (found.tolist(), len(partition)) == (expected, count)
    partition, found = Kinds(kinds=three, divide="each").dealt(clients(2))
    assert found.tolist() == [0, 0, 1, 1, 2, 2]
    assert [part.tolist() for part in partition.train] == [[0], [1]] * 3
    for kinds, numbers, count, reason in (
        (three, (), 2, "^modality 'c' has no client: 2 for 3 modalities; raise"),
        (two, (1, 4), 6, r"^model.clients=\[1, 4\] are 5, the federation has 6 clients"),
        (two, (1, 4), 4, r"^model.clients=\[1, 4\] are 5, the federation has 4 clients"),
    ):
        with pytest.raises(ConfigError, match=reason):
            Kinds(kinds=kinds, clients=numbers).dealt(clients(count))


def test_clients_are_dealt_in_turns() -> None:
    three = {"a": MLP(), "b": MLP(), "c": MLP()}
    for numbers, count, expected in (
        ((), 7, [0, 1, 2, 0, 1, 2, 0]),
        ((1, 4, 2), 7, [0, 1, 2, 1, 2, 1, 1]),
    ):
        made = Kinds(kinds=three, clients=numbers, deal="turns")
        assert made.dealt(clients(count))[1].tolist() == expected
    listed = Kinds(kinds=[MLP(), {"name": "mlp", "hidden": [3]}])
    assert dict(listed.networks) == {"net1": MLP(), "net2": MLP(hidden=(3,))}


def test_the_first_network_is_what_all_clients_share() -> None:
    plain, task = joint()
    assert all(each.shared is plain[0] for each in (task, *task.modalities, plain[0]))
    normed = [LeNet5(batch_norm=True).task((1, 16, 16), 3), MLP(hidden=(84,)).task((1, 16, 16), 3)]
    task = JointTask(normed, ["a", "b"], torch.tensor([0, 1]))
    for each in (task, *task.modalities):
        assert each.is_buffer("small/conv.1.running_mean")
        assert not each.is_buffer("small/conv.1.weight")
    with pytest.raises(ConfigError, match=r"'conv' is also a part of the network 'a', .* give it another name"):
        JointTask(normed, ["a", "conv"], torch.tensor([0, 1]))


def test_kinds_are_named_and_told_apart_in_tables() -> None:
    nets = {"a": {"name": "mlp"}, "b": MLP(hidden=(3,))}
    made = Kinds(kinds=nets, called="two", clients=(1, 4), divide="each")
    assert (made.label, Kinds(kinds=nets).label) == ("two-1-4-each", "kinds")
    assert dict(made.networks) == {"a": MLP(), "b": MLP(hidden=(3,))}
    assert MLP().networks == {"": MLP()}
    assert (made.lacking(), MLP().lacking()) == ("", "")
    lost = {"name": "resnet18", "weights": "/none.pth"}
    lacking = Kinds(kinds={"a": lost, "b": {"name": "mlp"}, "c": lost}).lacking()
    assert lacking == "; ".join(["model.weights=/none.pth: there is no such file"] * 2)
    with pytest.raises(ConfigError, match="has one network for each modality"):
        made.build((1, 4, 4), 3)
    for wrong, reason in (
        ({"kinds": {"a": MLP()}}, "at least two modalities"),
        ({"kinds": [MLP()]}, "or list at least two networks"),
        ({"kinds": "mlp"}, "at least two modalities"),
        ({"kinds": {"a": MLP(), "b-c": MLP()}}, "'b-c' cannot name a modality"),
        ({"kinds": {"head": MLP(), "b": MLP()}}, "'head' cannot name a modality"),
        (
            {"kinds": nets, "clients": (1, 2, 3)},
            r"model.clients=\[1, 2, 3\] must have a number for each of 2 modalities",
        ),
        ({"kinds": nets, "clients": (0, 2)}, r"model\.clients must be at least 1"),
        ({"kinds": {"a": MLP(), "b": 3}}, r"model\.kinds\.b must be a network, as .*, got 3"),
        ({"kinds": {"a": MLP(), "b": {"name": "mlp", "hidden": [0]}}}, r"model\.kinds\.b\.hidden must be at least 1"),
    ):
        with pytest.raises(ConfigError, match=reason):
            Kinds(**wrong)


def test_captions_are_read_word_by_word() -> None:
    text = np.arange(24, dtype=np.int32).reshape(2, 3, 4) % 9
    words = tuple(map(str, range(9)))
    images = np.zeros((2, 3, 2, 2), dtype=np.uint8)
    data = Dataset("toy", images, np.array([0, 1]), 1, 2, (0.5,) * 3, (0.5,) * 3, text=text, vocabulary=words)
    seen = TextCNN(vocabulary=9, width=8).view(data)
    assert seen.x.tolist() == [[[[float(word) for caption in each for word in caption]]] for each in text]
    assert (seen.x.dtype, seen.mean, seen.std, seen.scale) == (np.float32, (0.0,), (1.0,), 1.0)
    assert (seen.text, len(seen.vocabulary)) == (None, 0)
    assert MLP().view(data) is data
    with pytest.raises(ConfigError, match=r"^toy has 9 words; set model\.vocabulary to at least that"):
        TextCNN(vocabulary=8).view(data)
    with pytest.raises(ConfigError, match="reads captions, toy was loaded without any"):
        TextCNN().view(seen)
    for shape in ((1, 2, 6), (2, 1, 6), (1, 6)):
        with pytest.raises(ConfigError, match=r"token ids of shape \[1, 1, L\], not images \["):
            TextCNN().build(shape, 3)
    assert (TextCNN(vocabulary=70).tokens, MLP().tokens) == (70, 0)
