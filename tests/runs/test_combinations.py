"""Data sets x partitions x models: what makes sense trains a round, what makes none is refused with the reason.

Every data set is a small one in its real on-disk format, composed and loaded as a run does. A partition sees only
labels and domains, a network only shapes and class counts, so each pairing with the data is tried, not each triple.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedbench.runs.execution
import fedbench.runs.fingerprint
from fedbench.config import compose, groups
from fedbench.core import rng, trees
from fedbench.core.errors import FedbenchError
from fedbench.engine.contract import Clock
from fedbench.engine.simulation import Simulation
from fedbench.engine.train.looped import LoopedTrainer
from fedbench.runs.config import from_plain, resolve
from tests.helpers.labelled_formats import write_labelled
from tests.helpers.tiers import tiered

CONF = groups.conf_dir()
CLASSES = {
    "captioned": 20,
    "cifar10": 10,
    "cifar100": 100,
    "cinic10": 10,
    "cub": 200,
    "digits": 10,
    "domainnet": 20,
    "emnist": 62,
    "fashion_mnist": 10,
    "mnist": 10,
    "synthetic": 10,
    "tiny_imagenet": 200,
}
OWN = ("images", "npz")  # a user's: tested in test_own_data
SCRATCH = ("resnet18", "mobilenet_v2", "squeezenet")  # their weights are tested in test_networks


def options(group: str) -> list[str]:
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


@functools.cache
def option(group: str, name: str) -> dict[str, Any]:
    """The config of one choice, as the command line composes it."""
    run = resolve(compose.compose([f"{group}={name}"]))
    return dict(run.plain[group])


@pytest.fixture(scope="module", autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where the data sets are written, found and prepared."""
    root = tmp_path_factory.mktemp("combinations")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBENCH_CACHE", str(root / "cache"))
        patch.setenv("FEDBENCH_DATA", str(root / "data"))
        yield
    small_set.cache_clear()
    fedbench.runs.fingerprint._load.cache_clear()
    fedbench.runs.fingerprint._content.cache_clear()


@functools.cache
def small_set(name: str) -> dict[str, Any]:
    """The config of a data set, written with 60 samples of each of the first ten labels, few of each other one."""
    chosen = option("dataset", name)
    if name in ("digits", "synthetic", "captioned"):  # which are small
        return chosen
    counts = np.full(CLASSES[name], 12 if CLASSES[name] <= 100 else 6)
    counts[:10] = 60
    draw = np.random.default_rng(0)
    labels = np.arange(len(counts))
    train, test = (draw.permutation(labels.repeat(part)) for part in (counts - counts // 5, counts // 5))
    root = Path(os.environ["FEDBENCH_DATA"])
    return {**chosen, **write_labelled(name, root, train, test)}


def small(name: str, classes: int, split: Path) -> dict[str, Any]:
    """Sizes for small data, in the place of the papers'."""
    return {
        "groups_s": {"size": 6},
        "label_shift": {"min_small": 1, "min_test": 1},
        "fold": {"num_clients": 10},
        "fold_code": {"num_clients": 5, "size": 5},
        "dir_prior": {"num_clients": 20},
        "dir": {"alpha": 0.5},
        "domain": {"clients_per_domain": 3},
        "pathological": {"skew": classes // 5 if classes % 5 == 0 else 31},
        "file": {"path": str(split)},
    }.get(name, {})


@functools.cache
def surroundings() -> dict[str, Any]:
    """The rest of a config."""
    return dict(resolve(compose.compose(["hardware=cpu", "method=fedavg"])).plain)


def trains(
    dataset: str,
    partition: dict[str, Any],
    model: dict[str, Any],
    dataset_options: dict[str, Any] | None = None,
    **protocol: Any,
) -> None:
    """Compose, build, and train two clients for a step; their test sets are scored."""
    base = option("protocol", "quick")
    plain = {
        **surroundings(),
        "dataset": small_set(dataset) | (dataset_options or {}),
        "partition": partition,
        "model": model,
        "protocol": {**base, "local": {"iterations": 1, "batch_size": 13}, **protocol},
    }
    run = from_plain(plain)
    setup, made, _ = fedbench.runs.execution.build(run)
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
    assert options("dataset") == sorted((*CLASSES, *OWN))
    assert set(SCRATCH) < set(options("model"))


# --- partitions

NO_PARTITION = {  # (data set, partition): why not; "*" any other
    ("emnist", "pathological"): "10 clients of 2 classes leave out some of 62",
    ("cifar100", "pathological"): "10 clients of 2 classes leave out some of 100",
    ("cub", "pathological"): "10 clients of 2 classes leave out some of 200",
    ("tiny_imagenet", "pathological"): "10 clients of 2 classes leave out some of 200",
    **{(name, "fedcollab_label_shift_seed0"): "divides fashion_mnist" for name in CLASSES},
    **{(name, "domain"): "made of domains" for name in CLASSES if name != "domainnet"},
}


PAIRS = list(itertools.product(CLASSES, options("partition")))


@pytest.mark.parametrize(
    ("dataset", "partition"), tiered(PAIRS, quick=[*PAIRS[::4], ("emnist", "pathological")])
)
def test_every_partition_divides_every_data_set_or_says_why_not(
    dataset: str, partition: str, tmp_path: Path
) -> None:
    reason = NO_PARTITION.get((dataset, partition))
    if reason is not None:  # as it stands, with the papers' parameters
        with pytest.raises(FedbenchError, match=reason):
            trains(dataset, option("partition", partition), SMALLEST)
        if partition in ("domain", "fedcollab_label_shift_seed0"):
            return
    split = tmp_path / "split.npz"
    np.savez(
        split,
        train_0=np.arange(9),
        train_1=np.arange(20, 25),
        test_0=np.arange(10, 15),
        test_1=np.arange(3) + 30,
    )
    chosen = {**option("partition", partition), **small(partition, CLASSES[dataset], split)}
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
        for name in ("cub_cnn", "fedrema_cnn", "fedrema_alexnet", "fedrema_alexnet_code", "squeezenet")
    },
    **{("synthetic", name): "does not fit inputs of shape" for name in ("cnn5", "squeezenet")},
    **{
        (name, model): "reads captions"
        for name in CLASSES
        for model in ("textcnn", "cub_pair", "small_pair")
        if name not in ("cub", "captioned")
    },
    **{(name, "torchvision"): "takes the name of a network" for name in CLASSES},
    **{(name, "timm"): "takes the name of a network|needs timm" for name in CLASSES},
}


def from_scratch(model: str) -> dict[str, Any]:
    return {**option("model", model), **({"pretrained": False} if model in SCRATCH else {})}


TRAINED = [
    pair
    for pair in itertools.product(SHAPES, [name for name in options("model") if name != "auto"])
    if pair[1] not in SCRATCH or pair[0] in ("digits", "synthetic", "emnist", "cifar10", "tiny_imagenet")
]


@pytest.mark.parametrize(("dataset", "model"), tiered(TRAINED, quick=TRAINED[::8]))
def test_every_model_trains_on_every_shape_or_says_why_not(dataset: str, model: str) -> None:
    partition = {**option("partition", "homo"), "num_clients": 20}
    reason = NO_MODEL.get((dataset, model))
    if reason is None:
        trains(dataset, partition, from_scratch(model))
        return
    with pytest.raises(FedbenchError, match=reason):
        trains(dataset, partition, from_scratch(model))


@pytest.mark.parametrize("dataset", CLASSES)
def test_the_data_set_s_own_model_fits_it(dataset: str) -> None:
    """What model=auto takes, by its own defaults but for ImageNet weights."""
    model = {"name": option("dataset", dataset)["model"]}
    scratch = {"pretrained": False} if model["name"] in SCRATCH else {}
    trains(dataset, option("partition", "homo"), {**model, **scratch})


def test_captions_train_a_text_network_and_only_that() -> None:
    homo, textcnn = option("partition", "homo"), option("model", "textcnn")
    trains("cub", homo, textcnn)
    trains("cub", homo, option("model", "cub_cnn"))
    with pytest.raises(FedbenchError, match=r"cub has \d\d words; set model\.vocabulary"):
        trains("cub", homo, {**textcnn, "vocabulary": 9})
    with pytest.raises(FedbenchError, match=r"was loaded without any; .* dataset\.text=true"):
        trains("cub", homo, textcnn, dataset_options={"text": False})
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


@pytest.mark.parametrize("method", ["fedproto", "fedsac", "fedpac", "fedgen", "moon", "fedap", "knnper"])
def test_methods_that_compare_features_need_one_vector_an_image(method: str) -> None:
    """SqueezeNet's features above 36 pixels are a vector at each of several places."""
    task = groups.registry("model").build(from_scratch("squeezenet")).task((3, 64, 64), 4)
    model = task.init(rng.torch_rng(0, "init"))
    with pytest.raises(FedbenchError, match=r"one vector an image; for images \[3, 64, 64\] .* 9 of them"):
        task.features(model, torch.zeros(2, 3, 64, 64))
    chosen = option("method", method)
    plain = {
        **surroundings(),
        "dataset": {**option("dataset", "synthetic"), "size": 64, "channels": 3, "train": 80, "test": 20},
        "partition": {**option("partition", "homo"), "num_clients": 4},
        "model": from_scratch("squeezenet"),
        "method": chosen,
        "protocol": {**option("protocol", "quick"), "rounds": 1, "local": {"iterations": 1, "batch_size": 4}},
    }
    setup, _, _ = fedbench.runs.execution.build(from_plain(plain))
    simulation = Simulation(setup, LoopedTrainer(setup))
    with pytest.raises(FedbenchError, match="one vector an image"):
        simulation.step(simulation.begin())


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
    cohort = "2" if isinstance(chosen["cohort"], int) else chosen["cohort"]
    fields = {**option("partition", partition), **small(partition, CLASSES[dataset], Path())}
    used = {key: chosen[key] for key in ("optimizer", "augment", "score", "average", "report", "per_client")}
    trains(dataset, fields, from_scratch(model), **used, cohort=cohort, test={**chosen["test"], **sets})
