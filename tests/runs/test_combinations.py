"""Data sets x partitions: what makes sense trains a round, what makes none is refused with the reason.

Every data set is a small one in its real on-disk format, composed and loaded as a run does. A partition sees only
labels and domains, a network only shapes and class counts, so each pairing with the data is tried, not each triple.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.core.errors import FedbenchError
from tests.helpers.tiers import sampled, tiered
from tests.models.scratch import VISION
from tests.runs.pairings import CLASSES, SMALLEST, from_scratch, option, options, trains

pytestmark = pytest.mark.usefixtures("folders")
OWN = ("images", "npz", "table")  # a user's: tested in test_own_data


def small(name: str, classes: int, split: Path) -> dict[str, Any]:
    """Sizes for small data, in the place of the papers'."""
    return {
        "groups_s": {"size": 6},
        "groups_fedrema": {"size": 10},
        "label_shift": {"min_small": 1, "min_test": 1},
        "fold": {"num_clients": 10},
        "fold_code": {"num_clients": 5, "size": 5},
        "dir_prior": {"num_clients": 20},
        "dir": {"alpha": 0.5},
        "domain": {"clients_per_domain": 3},
        "dir_fedsac": {"alpha": 0.5, "num_clients": 2},
        "feature_shift_code": {"decay": 0.0},
        "concept_shift_code": {"decay": 0.0},
        "pathological_fedsac": {"skew": classes // 5 if classes % 5 == 0 else classes},
        "pathological": {"skew": classes // 5 if classes % 5 == 0 else 31},
        "file": {"path": str(split)},
    }.get(name, {})


def test_every_option_takes_part() -> None:
    assert options("dataset") == sorted((*CLASSES, *OWN))
    assert set(VISION) < set(options("model"))


NO_PARTITION = {  # (data set, partition): why not; "*" any other
    ("emnist", "pathological"): "10 clients of 2 classes leave out some of 62",
    ("cifar100", "pathological"): "10 clients of 2 classes leave out some of 100",
    ("cub", "pathological"): "10 clients of 2 classes leave out some of 200",
    ("tiny_imagenet", "pathological"): "10 clients of 2 classes leave out some of 200",
    **{(name, "fedcollab_label_shift_seed0"): "divides fashion_mnist" for name in CLASSES},
    **{(name, "natural"): "needs data that name the client" for name in CLASSES if name != "domainnet"},
    **{
        (name, "groups_fedrema"): "is of 10 classes"
        for name in ("captioned", "emnist", "cifar100", "cub", "tiny_imagenet", "domainnet")
    },
    **{(name, "anda"): "is of 10 or 100 classes" for name, classes in CLASSES.items() if classes not in (10, 100)},
    **{(name, "domain"): "made of domains" for name in CLASSES if name != "domainnet"},
}


PAIRS = list(itertools.product(CLASSES, options("partition")))


@pytest.mark.parametrize(("dataset", "partition"), tiered(PAIRS, quick=[*PAIRS[::70], ("emnist", "pathological")]))
def test_every_partition_divides_every_data_set_or_says_why_not(dataset: str, partition: str, tmp_path: Path) -> None:
    reason = NO_PARTITION.get((dataset, partition))
    if reason is not None:  # as it stands, with the papers' parameters
        with pytest.raises(FedbenchError, match=reason):
            trains(dataset, option("partition", partition), SMALLEST)
        if partition in ("anda", "domain", "fedcollab_label_shift_seed0", "groups_fedrema", "natural"):
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


@pytest.mark.parametrize("dataset", sampled(CLASSES, every=3))
def test_the_data_set_s_own_model_fits_it(dataset: str) -> None:
    """What model=auto takes, by its own defaults but for ImageNet weights."""
    model = {"name": option("dataset", dataset)["model"]}
    scratch = {"pretrained": False} if model["name"] in VISION else {}
    trains(dataset, option("partition", "homo"), {**model, **scratch})


@pytest.mark.parametrize(
    ("dataset", "partition", "model", "protocol"),
    sampled(
        [
            ("cifar10", "pathological", "lenet5", "fedsac"),
            ("cifar10", "dir_fedsac", "lenet5", "fedsac"),
            ("cifar10", "dir", "lenet5_bn", "pfedsim"),
            ("domainnet", "domain", "mobilenet_v2", "pfedsim"),
            ("cifar10", "fold", "simple_cnn", "sosicfl_simplecnn"),
            ("cifar10", "dir_prior", "squeezenet", "sosicfl_squeezenet"),
            ("fashion_mnist", "groups_s", "fedrema_cnn", "fedrema"),
            ("cifar10", "groups_s", "fedrema_alexnet", "fedrema"),
            ("fashion_mnist", "label_shift", "mlp", "fedcollab_label_shift"),
            ("cifar10", "feature_shift_code", "cnn5", "fedcollab_feature_shift"),
            ("cifar100", "concept_shift_code", "resnet18", "fedcollab_concept_shift"),
        ],
        every=4,
    ),
)
def test_the_papers_settings(dataset: str, partition: str, model: str, protocol: str) -> None:
    chosen = option("protocol", protocol)
    sets = {"sets": "local", "fraction": 0.2} if chosen["test"]["sets"] == "global" else {}
    cohort = "2" if isinstance(chosen["cohort"], int) else chosen["cohort"]
    fields = {**option("partition", partition), **small(partition, CLASSES[dataset], Path())}
    used = {key: chosen[key] for key in ("optimizer", "augment", "score", "average", "report", "per_client")}
    trains(dataset, fields, from_scratch(model), **used, cohort=cohort, test={**chosen["test"], **sets})
