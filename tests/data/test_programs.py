"""Partitions as their authors' programs draw them: lists that those programs gave, written out or as their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from toys import build

from fedbench.config.compose import compose
from fedbench.config.schema import TestConfig as Protocol
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Dataset
from fedbench.data.datasets import DATASETS
from fedbench.data.partition import make_partition
from fedbench.data.partitions.base import Assignment, Pool
from fedbench.papers import spec
from fedbench.runs.config import resolve


def drawn(name: str, labels: Iterable[int], seed: int = 0, **fields: object) -> Assignment:
    y = np.array([*labels])
    return build(name, draw=seed, **fields).assign(
        Pool(np.arange(len(y)), y, int(y.max()) + 1), np.random.default_rng()
    )


def digest(parts: Iterable[NDArray[np.int64]]) -> str:
    return hashlib.sha256(b"".join(np.asarray(part, "<i8").tobytes() for part in parts)).hexdigest()[:16]


TWELVE = (0, 1, 1, 0, 2, 1, 0, 2, 2, 0, 1, 2)


@pytest.mark.parametrize(
    ("name", "labels", "fields", "clients"),
    [
        ("homo_fedsac", TWELVE, {"num_clients": 3}, [[6, 11, 4, 10], [2, 8, 1, 7], [9, 3, 0, 5]]),
        ("pathological_fedsac", TWELVE, {"skew": 1, "num_clients": 3}, [[6, 0, 3, 9], [1, 2, 10, 5], [4, 8, 7, 11]]),
        ("dir_fedsac", TWELVE, {"alpha": 0.5, "num_clients": 1}, [[3, 10, 2, 8, 6, 0, 5, 11, 4, 1, 9, 7]]),
        (
            "dir_fedsac",
            [*range(3)] * 8,
            {"alpha": 0.5, "num_clients": 2},
            [[16, 23, 2, 17, 22, 11, 5, 10, 20, 14, 18, 8], [21, 9, 13, 3, 1, 4, 12, 19, 15, 0, 7, 6]],
        ),
    ],
)
def test_fedsacs_program_gave_these_lists(
    name: str, labels: Iterable[int], fields: dict[str, object], clients: list[list[int]]
) -> None:
    found = drawn(name, labels, **fields)
    assert found.clients is not None
    assert found.val is not None
    assert [[*train, *val] for train, val in zip(found.clients, found.val, strict=True)] == clients
    assert [len(train) for train in found.clients] == [int(0.8 * len(client)) for client in clients]


@pytest.mark.parametrize(
    ("name", "fields", "lists"),
    [  # of its program with the seed 3, on 600 samples whose labels go round
        ("homo_fedsac", {"num_clients": 7}, "d5b1494242a7d9e6"),
        ("dir_fedsac", {"num_clients": 5, "alpha": 0.1}, "ab38ada571bc5a1d"),
        ("dir_fedsac", {"num_clients": 8, "alpha": 0.5}, "be6f06961a91748e"),
        ("pathological_fedsac", {"num_clients": 10, "skew": 2}, "0c302d0874d450f3"),
        ("pathological_fedsac", {"num_clients": 4, "skew": 5}, "a48c9bf375cdc0d3"),
    ],
)
def test_fedsacs_program_with_another_seed(name: str, fields: dict[str, object], lists: str) -> None:
    found = drawn(name, np.arange(600) % 10, 3, **fields)
    assert digest([*(found.clients or ()), *(found.val or ())]) == lists


def test_fedcollabs_program_gave_these_lists() -> None:
    found = drawn("feature_shift_code", [0, 1] * 120)
    assert found.train is not None
    assert found.test is not None
    assert found.rotation is not None
    assert found.train[0].tolist() == [194, 96, 190, 16, 44, 169, 19, 157, 193, 207]
    assert (found.train[19].tolist(), found.test[0].tolist()) == ([94, 1], [188, 235])
    assert found.test[19].tolist() == [128, 47]
    assert (found.rotation[::5].tolist(), found.corners) == ([-25, 25, 155, 205], "reflect")


@pytest.mark.parametrize(("name", "classes", "small"), [("feature_shift_code", 10, 34), ("concept_shift_code", 20, 6)])
def test_fedcollabs_shifts_have_table_4s_numbers_of_each_label(name: str, classes: int, small: int) -> None:
    labels = np.arange(60000) % classes
    found = drawn(name, labels)
    large, test = 50000 // classes // 20, 10000 // classes // 20
    for client, (trained, tested) in enumerate(zip(found.train or (), found.test or (), strict=True)):
        assert np.bincount(labels[trained]).tolist() == [large if client < 10 else small] * classes
        assert np.bincount(labels[tested]).tolist() == [test] * classes
    assert (found.label_map is None) == (classes == 10)


def test_fedremas_program_deals_runs_of_sorted_labels() -> None:
    """Half of 30 samples are of all labels, the last of which gets what is left; the other half of three labels."""
    labels = np.arange(25000) % 10
    found = drawn("groups_fedrema", labels, seed=1, s=0.5, size=30)
    whole = [np.concatenate(each) for each in zip(found.train or (), found.test or (), strict=True)]
    assert [len(part) for part in (*(found.train or ())[:2], *(found.test or ())[:2])] == [24, 24, 6, 6]
    assert np.bincount(labels[whole[0]]).tolist() == [6, 6, 6, 1, 1, 1, 1, 1, 1, 6]
    assert np.bincount(labels[whole[19]]).tolist() == [6, 1, 1, 1, 1, 1, 1, 1, 6, 11]
    assert len(np.unique(np.concatenate(whole))) == 20 * 30
    with pytest.raises(ConfigError, match="more than the data set has of some label"):
        drawn("groups_fedrema", labels[:2000], seed=1, size=200)
    with pytest.raises(ConfigError, match="is of 10 classes, the data set has 4"):
        drawn("groups_fedrema", labels % 4, seed=1)


CIFAR10 = [  # those of the authors' programs with the seed 0
    ("dir_fedsac", {"alpha": 0.1}, "e05ff5fb909a15c6"),
    ("dir_fedsac", {"alpha": 0.5}, "ca77351234148e02"),
    ("homo_fedsac", {}, "f58dd916ff275031"),
    ("pathological_fedsac", {"skew": 2}, "c65a519d981ff7df"),
    ("feature_shift_code", {}, "c0535f8ef53b126c"),
    ("groups_fedrema", {}, "d66b7be203bc52cc"),
    ("groups_fedrema", {"size": 100}, "328bc86de3f0265d"),
    ("groups_fedrema", {"size": 100, "s": 0.4}, "bf11dd981e9465a8"),
    ("groups_fedrema", {"size": 100, "s": 0.6}, "301e6117516b65fc"),
    ("groups_fedrema", {"size": 100, "s": 0.8}, "d8a79b77b6508257"),
]
OTHERS = [("mnist", "0e0308420ae78a3f"), ("fashion_mnist", "a8fbb95c554adbab")]
CIFAR100 = [
    ("dir_fedsac", {"alpha": 0.1}, "0e09b4c96c091c60"),
    ("dir_fedsac", {"alpha": 0.5}, "a3f313f2c7f898cc"),
    ("pathological_fedsac", {"skew": 20}, "b2c29161137474a4"),
]


@pytest.mark.parametrize(
    ("dataset", "name", "fields", "lists"),
    [("cifar10", *each) for each in CIFAR10]
    + [("cifar100", *each) for each in CIFAR100]
    + [(dataset, "groups_fedrema", {}, lists) for dataset, lists in OTHERS],
)
def test_the_authors_draws_on_the_real_labels(dataset: str, name: str, fields: dict[str, object], lists: str) -> None:
    source = DATASETS.build({"name": dataset})
    if not source.state().ready:
        pytest.skip(f"{dataset} is not on this machine")
    data = source.load()
    spec = build(name, **fields)
    count = len(data) if spec.pools else data.num_train
    pool = Pool(np.arange(count), np.asarray(data.y[:count]), data.classes)
    found = spec.assign(pool, np.random.default_rng())
    parts = [*(found.clients or found.train or ()), *(found.val or found.test or ())]
    assert digest(parts) == lists


@pytest.mark.parametrize(
    ("name", "sets"),
    [("homo_fedsac", "global"), ("dir_fedsac", "global"), ("feature_shift_code", "local")],
)
def test_the_draw_and_not_the_run_decides(name: str, sets: str) -> None:
    """What every seed of a table gets; null draws one for each."""
    y = np.arange(1800) % 10
    data = Dataset("toy", np.zeros((1800, 1, 2, 2), np.uint8), y, 1500, 10, (0.5,), (0.5,))
    hashes = [
        make_partition(build(name, draw=draw), data, Protocol(sets), seed).hash
        for draw, seed in product((0, 1, None), (0, 1))
    ]
    assert hashes[0] == hashes[1]
    assert hashes[2] == hashes[3]
    assert len({*hashes}) == 4


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 clients blocks of 2 of 4 classes"):
        drawn("pathological_fedsac", [0, 1, 2, 3] * 5, num_clients=3)
    with pytest.raises(ConfigError, match="none of 5 draws gave each of 8 clients 10 samples"):
        drawn("dir_fedsac", [0, 1] * 45, alpha=1e-6, num_clients=8, max_tries=5)
    with pytest.raises(ConfigError, match="at least 4 classes"):
        drawn("concept_shift_code", [0, 1, 2] * 50)
    with pytest.raises(ConfigError, match="draw must lie in"):
        build("homo_fedsac", draw=2**32)


def test_columns_on_an_authors_draw_name_it_and_leave_it_open() -> None:
    """And a run on it has a key of its own."""
    tables = [spec.load_spec(name) for name in ("fedsac_t1", "fedsac_t3", "fedsac_t4", "fedsac_t5")]
    for table in tables:
        assert "partition.draw" in table.left_open
        assert all("_fedsac" in "".join(column.overrides) for column in table.columns)
    chosen = resolve(compose(["partition=dir_fedsac0.1", "dataset=cifar10"]))
    assert chosen.labels["partition"] == "dir_fedsac0.1"
