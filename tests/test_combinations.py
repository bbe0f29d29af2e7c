"""Data sets x partitions x models: what makes sense trains a round, what makes none is refused with the reason.

Stand-ins have the real data sets' shapes, class counts, domains and captions, and few samples. A partition sees only
labels and domains, a network only shapes and class counts, so each pairing with the data is tried, not each triple.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedbench.run
from fedbench import compose
from fedbench.data.dataset import Dataset
from fedbench.engine import rng, trees
from fedbench.engine.contract import Clock
from fedbench.engine.looped import LoopedTrainer
from fedbench.errors import FedbenchError

CONF = compose.conf_dir()
# data set: (shape of an image, classes, domains)
STAND_INS = {
    "cifar10": ((3, 32, 32), 10, 0),
    "cifar100": ((3, 32, 32), 100, 0),
    "cinic10": ((3, 32, 32), 10, 0),
    "cub": ((3, 64, 64), 200, 0),
    "digits": ((1, 8, 8), 10, 0),
    "domainnet": ((3, 64, 64), 20, 6),
    "emnist": ((1, 28, 28), 62, 0),
    "fashion_mnist": ((1, 28, 28), 10, 0),
    "mnist": ((1, 28, 28), 10, 0),
    "synthetic": ((1, 16, 16), 10, 0),
    "tiny_imagenet": ((3, 64, 64), 200, 0),
}
SCRATCH = ("resnet18", "mobilenet_v2", "squeezenet")  # their weights are tested in test_networks


def options(group: str) -> list[str]:
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


@functools.cache
def option(group: str, name: str) -> dict[str, Any]:
    """The config of one choice, as the command line composes it."""
    run = compose.resolve(compose.compose([f"{group}={name}"]))
    return dict(run.plain[group])


@functools.cache
def stand_in(name: str) -> Dataset:
    """120 samples of each of the first ten labels (FedCollab's label shift needs them), few of each other one."""
    shape, classes, domains = STAND_INS[name]
    draw = np.random.default_rng(0)
    few = 12 if classes <= 100 else 6
    y = draw.permutation(np.repeat(np.arange(classes), [120] * 10 + [few] * (classes - 10)))
    x = draw.integers(0, 256, (len(y), *shape), dtype=np.uint8)
    half = (0.5,) * shape[0]
    domain = draw.integers(0, domains, len(y)) if domains else None
    words = tuple(map(str, range(50)))
    text = draw.integers(0, 50, (len(y), 2, 7)).astype(np.int32) if name == "cub" else None
    train = len(y) * 4 // 5
    return Dataset(
        name,
        x,
        y,
        train,
        classes,
        half,
        half,
        domain=domain,
        text=text,
        vocabulary=words if name == "cub" else (),
    )


@pytest.fixture(autouse=True)
def data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedbench.run, "load", lambda spec: stand_in(spec.name))


def small(name: str, classes: int, split: Path) -> dict[str, Any]:
    """Sizes for the stand-ins, in the place of the papers'."""
    return {
        "groups_s": {"size": 6},
        "fold": {"num_clients": 10},
        "dir_prior": {"num_clients": 20},
        "dir": {"alpha": 0.5},
        "domain": {"clients_per_domain": 3},
        "pathological": {"skew": classes // 5 if classes % 5 == 0 else 31},
        "file": {"path": str(split)},
    }.get(name, {})


@functools.cache
def surroundings() -> dict[str, Any]:
    """The rest of a config."""
    return dict(compose.resolve(compose.compose(["hardware=cpu", "method=fedavg"])).plain)


def trains(dataset: str, partition: dict[str, Any], model: dict[str, Any], **protocol: Any) -> None:
    """Compose, build, and train two clients for a step; their test sets are scored."""
    base = option("protocol", "quick")
    plain = {
        **surroundings(),
        "dataset": option("dataset", dataset),
        "partition": partition,
        "model": model,
        "protocol": {**base, "local": {"iterations": 1, "batch_size": 7}, **protocol},
    }
    run = compose.from_plain(plain)
    setup, made, _ = fedbench.run.build(run)
    server, memory = setup.method.init(setup.task, setup.population, rng.torch_rng(0, "init"))
    ids = torch.tensor([0, len(made) - 1])
    clock = Clock(0, 1)
    with torch.no_grad():
        message = setup.method.send(server, setup.cohort(ids, clock))
    outcome = LoopedTrainer(setup).train(ids, message, trees.take(memory, ids), clock, ("local",))
    assert torch.isfinite(outcome.loss).all()
    assert outcome.counts["local"][1].sum(1).tolist() == [len(made.test[int(i)]) for i in ids]
    before = trees.stack([server, server])
    assert any(not torch.equal(before[name], leaf) for name, leaf in outcome.uploads.items())


SMALLEST = {"name": "mlp", "hidden": [8]}


def test_every_option_takes_part() -> None:
    assert options("dataset") == sorted(STAND_INS)
    assert set(SCRATCH) < set(options("model"))


# --- partitions

NO_PARTITION = {  # (data set, partition): why not; "*" any other
    ("emnist", "pathological"): "10 clients of 2 classes leave out some of 62",
    ("cifar100", "pathological"): "10 clients of 2 classes leave out some of 100",
    ("cub", "pathological"): "10 clients of 2 classes leave out some of 200",
    ("tiny_imagenet", "pathological"): "10 clients of 2 classes leave out some of 200",
    **{(name, "domain"): "made of domains" for name in STAND_INS if name != "domainnet"},
}


@pytest.mark.parametrize(("dataset", "partition"), list(itertools.product(STAND_INS, options("partition"))))
def test_every_partition_divides_every_data_set_or_says_why_not(
    dataset: str, partition: str, tmp_path: Path
) -> None:
    reason = NO_PARTITION.get((dataset, partition))
    if reason is not None:  # as it stands, with the papers' parameters
        with pytest.raises(FedbenchError, match=reason):
            trains(dataset, option("partition", partition), SMALLEST)
        if partition == "domain":
            return
    split = tmp_path / "split.npz"
    np.savez(
        split,
        train_0=np.arange(9),
        train_1=np.arange(20, 25),
        test_0=np.arange(10, 15),
        test_1=np.arange(3) + 30,
    )
    chosen = {**option("partition", partition), **small(partition, STAND_INS[dataset][1], split)}
    trains(dataset, chosen, SMALLEST)


# --- models

SHAPES = (
    "digits",
    "synthetic",
    "emnist",
    "cifar10",
    "cifar100",
    "tiny_imagenet",
)  # one data set of each shape
NO_MODEL = {  # (data set, model): why not
    **{
        ("digits", name): "does not fit inputs of shape"
        for name in ("lenet5", "lenet5_bn", "simple_cnn", "cnn5")
    },
    **{
        ("digits", name): "does not fit inputs of shape"
        for name in ("cub_cnn", "fedrema_cnn", "fedrema_alexnet", "squeezenet")
    },
    **{("synthetic", name): "does not fit inputs of shape" for name in ("cnn5", "squeezenet")},
    **{(name, "textcnn"): "reads captions" for name in STAND_INS if name != "cub"},
}


def from_scratch(model: str) -> dict[str, Any]:
    return {**option("model", model), **({"pretrained": False} if model in SCRATCH else {})}


@pytest.mark.parametrize(
    ("dataset", "model"),
    [
        pair
        for pair in itertools.product(SHAPES, [name for name in options("model") if name != "auto"])
        if pair[1] not in SCRATCH or pair[0] in ("digits", "synthetic", "emnist", "cifar10", "tiny_imagenet")
    ],
)
def test_every_model_trains_on_every_shape_or_says_why_not(dataset: str, model: str) -> None:
    partition = {**option("partition", "homo"), "num_clients": 20}
    reason = NO_MODEL.get((dataset, model))
    if reason is None:
        trains(dataset, partition, from_scratch(model))
        return
    with pytest.raises(FedbenchError, match=reason):
        trains(dataset, partition, from_scratch(model))


@pytest.mark.parametrize("dataset", STAND_INS)
def test_the_data_set_s_own_model_fits_it(dataset: str) -> None:
    """What model=auto takes, by its own defaults but for ImageNet weights."""
    model = {"name": option("dataset", dataset)["model"]}
    scratch = {"pretrained": False} if model["name"] in SCRATCH else {}
    trains(dataset, option("partition", "homo"), {**model, **scratch})


def test_captions_train_a_text_network_and_only_that() -> None:
    homo, textcnn = option("partition", "homo"), option("model", "textcnn")
    trains("cub", homo, textcnn)
    trains("cub", homo, option("model", "cub_cnn"))
    with pytest.raises(FedbenchError, match=r"50 words; set model\.vocabulary"):
        trains("cub", homo, {**textcnn, "vocabulary": 49})
    with pytest.raises(FedbenchError, match="feature_shift rotates images"):
        trains("cub", option("partition", "feature_shift"), textcnn)
    with pytest.raises(FedbenchError, match=r"protocol\.augment changes images"):
        trains("cub", homo, textcnn, augment=["flip"])


# --- all three together


def test_normalisation_needs_more_than_one_sample() -> None:
    dirichlet = {**option("partition", "dir"), "num_clients": 20, "min_size": 1, "alpha": 0.05}
    with pytest.raises(FedbenchError, match="batch normalisation cannot train on a batch of 1 sample"):
        trains("digits", dirichlet, from_scratch("resnet18"))
    trains("digits", dirichlet, SMALLEST)


def test_imagenet_weights_need_colours() -> None:
    with pytest.raises(FedbenchError, match=r"3 channels, these have 1; use model\.pretrained=false"):
        trains("mnist", option("partition", "homo"), option("model", "resnet18"))


@pytest.mark.parametrize(
    ("dataset", "partition", "model", "protocol"),
    [
        ("cifar10", "pathological", "lenet5", "fedsac"),
        ("cifar10", "dir", "lenet5_bn", "pfedsim"),
        ("domainnet", "domain", "mobilenet_v2", "pfedsim"),
        ("cifar10", "fold", "simple_cnn", "sosicfl_simplecnn"),
        ("cifar10", "dir_prior", "squeezenet", "sosicfl_squeezenet"),
        ("fashion_mnist", "groups_s", "fedrema_cnn", "fedrema"),
        ("cifar10", "groups_s", "fedrema_alexnet", "fedrema"),
        ("fashion_mnist", "label_shift", "mlp", "fedcollab_label_shift"),
        ("cifar10", "feature_shift", "cnn5", "fedcollab_feature_shift"),
        ("cifar100", "concept_shift", "resnet18", "fedcollab_concept_shift"),
    ],
)
def test_the_papers_settings(dataset: str, partition: str, model: str, protocol: str) -> None:
    chosen = option("protocol", protocol)
    sets = {"sets": "local", "fraction": 0.2} if chosen["test"]["sets"] == "global" else {}
    cohort = chosen["cohort"] if chosen["cohort"] <= 1 else 2
    fields = {**option("partition", partition), **small(partition, STAND_INS[dataset][1], Path())}
    used = {key: chosen[key] for key in ("optimizer", "augment", "score", "average", "report", "per_client")}
    trains(dataset, fields, from_scratch(model), **used, cohort=cohort, test={**chosen["test"], **sets})
