"""Partitions as their authors' programs draw them: lists that those programs gave, written out or as their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from toys import build

from fedbench.config.compose import compose
from fedbench.config.schema import TestConfig as Protocol
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Dataset
from fedbench.data.datasets import DATASETS
from fedbench.data.federation import Federation, turned
from fedbench.data.partition import Partition, make_partition
from fedbench.data.partitions.base import Assignment, Pool
from fedbench.papers import spec
from fedbench.runs.building import build as setup_of
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
        ("pathological_fedsac", TWELVE, {"skew": 1, "num_clients": 3}, [[0, 3, 9, 6], [1, 5, 2, 10], [7, 4, 11, 8]]),
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
        ("pathological_fedsac", {"num_clients": 10, "skew": 2}, "0dbcdca4b6bdf520"),
        ("pathological_fedsac", {"num_clients": 4, "skew": 5}, "0fbeb52c2061c555"),
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
    ("pathological_fedsac", {"skew": 2}, "fbc4b2a61c44e291"),
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
    ("pathological_fedsac", {"skew": 20}, "53fc3db948254164"),
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


# ---- ANDA, with the arguments of FLUX


def dealt(shift: str, level: int, clients: int, draw: int, *, classes: int = 10, train: int = 60) -> Assignment:
    """Of samples whose labels go round, thirty of them, or as many as of training, for testing."""
    tested = 30 if train == 60 else train
    y = np.arange(train + tested) % classes
    spec = build("anda", shift=shift, level=level, num_clients=clients)
    return spec.assign(Pool(np.arange(len(y)), y, classes, tested=tested, seed=draw - 42), np.random.default_rng())


def test_anda_keeps_these_classes_and_repeats_these_samples() -> None:
    found = dealt("py", 6, 3, 44)
    held = [
        [52, 48, 47, 32, 53, 18, 22, 12, 8, 58, 47, 48, 47, 47, 58, 8, 48, 8, 58, 53],
        [9, 43, 41, 24, 23, 34, 45, 11, 33, 31, 29, 54, 34, 54, 45, 41, 54, 34, 43, 54, 54, 33, 31, 43],
        [13, 30, 2, 10, 3, 5, 4, 44, 42, 5, 13, 42, 13, 3, 2, 44, 4, 4],
    ]
    assert found.train is not None
    assert found.val is not None
    assert found.test is not None
    assert [sorted([*a, *b]) for a, b in zip(found.train, found.val, strict=True)] == [*map(sorted, held)]
    assert [*map(len, found.val)] == [4, 5, 4]  # a fifth, rounded up
    order = np.random.RandomState(42).permutation(20)[:4]  # as scikit-learn's train_test_split has it
    assert found.val[0].tolist() == [held[0][place] for place in order]
    assert [part.tolist() for part in found.test] == [
        [60, 80, 78, 82, 78, 78, 82, 60],
        [89, 85, 65, 79, 71, 63, 89, 65, 89, 85, 79, 63],
        [83, 73, 75, 62, 73, 75, 75, 73],
    ]


def test_anda_permutes_these_labels() -> None:
    found = dealt("py_x", 4, 3, 43)
    assert found.label_map is not None
    moved = [{int(y): int(own[y]) for y in range(10) if own[y] != y} for own in found.label_map]
    assert moved == [{6: 8, 8: 6}, {}, {8: 9, 9: 8}]
    assert found.test is not None
    assert digest(found.test) == "07d3a96378521483"


def test_anda_turns_and_colours_these_images() -> None:
    """Red, green and blue are channels 0 to 2."""
    looks = dealt("px", 6, 5, 45).looks
    assert looks is not None
    assert looks[:, 0].tolist() == [[120, 0], [0, 0], [120, 1], [120, 0], [120, 2]]
    assert (looks == looks[:, :1]).all()
    looks = dealt("px_y", 3, 2, 42, train=300).looks
    assert looks is not None
    assert (looks[..., 1] == -1).all()
    assert [{y: own[y, 0] for y in np.flatnonzero(own[:, 0])} for own in looks] == [
        {5: 90, 8: 270},
        {1: 270, 5: 90, 8: 90},
    ]
    looks = dealt("px_y", 1, 2, 42, classes=100, train=300).looks
    assert looks is not None
    turns, colours = (
        [{y: own[y, k] for y in np.flatnonzero(own[:, k] != none)} for own in looks] for k, none in ((0, 0), (1, -1))
    )
    assert turns[0] == {39: 240, 44: 120, 45: 120, 70: 120, 80: 120, 83: 240}
    assert colours[0] == {15: 1, 17: 1, 20: 0, 25: 0, 37: 1, 54: 2, 56: 0, 65: 1, 79: 1, 99: 1}


@pytest.mark.parametrize(
    ("shift", "level", "count"), [("py", 1, 100), ("py", 8, 30), ("py_x", 1, 30), ("py_x", 8, 100)]
)
def test_anda_of_a_hundred_classes_takes_ten_times_as_many(shift: str, level: int, count: int) -> None:
    found = dealt(shift, level, 1, 42, classes=100, train=1000)
    if found.label_map is not None:
        assert (found.label_map != np.arange(100)).sum() >= count - 3  # of which a permutation may leave some
        assert (found.label_map != np.arange(100)).sum() <= count
    else:
        assert found.test is not None
        assert len({place % 100 for place in found.test[0].tolist()}) == count
        assert len(found.test[0]) == 1000


def test_clients_may_repeat_samples_that_no_other_has() -> None:
    y = np.arange(900) % 10
    data = Dataset("toy", np.zeros((900, 1, 2, 2), np.uint8), y, 600, 10, (0.0,), (1.0,))
    found = make_partition(build("anda", shift="py", level=8), data, Protocol(), 1)
    assert len(np.concatenate(found.train)) > len(np.unique(np.concatenate(found.train)))
    owned = [{*a, *b} for a, b in zip(found.train, found.val, strict=True)]
    assert sum(map(len, owned)) == len(set.union(*owned))
    assert found.hash != make_partition(build("anda", shift="py", level=8), data, Protocol(), 2).hash


def test_images_are_turned_as_pillow_does_and_coloured() -> None:
    """A label's images of one client by 90 degrees, a channel filled; grey images get three channels."""
    image = np.arange(9, dtype=np.uint8).reshape(1, 1, 3, 3)
    data = Dataset("toy", np.repeat(image, 4, 0), np.array([0, 1, 0, 1]), 2, 2, (0.0,), (1.0,))
    looks = np.array([[[90.0, -1.0], [0.0, 1.0]]])
    parts = ([np.array([0, 1])], [np.array([], dtype=np.int64)], [np.array([2, 3])])
    fed = Federation(data, Partition("toy", 0, "toy", 2, *parts, looks=looks))
    assert fed.shape == (3, 3, 3)
    for sample in (0, 2):
        assert (fed.x[sample] == torch.tensor([[2, 5, 8], [1, 4, 7], [0, 3, 6]])).all()
    for sample in (1, 3):
        assert (fed.x[sample, 1] == 255).all()
        assert (fed.x[sample, [0, 2]] == torch.from_numpy(image[0, 0])).all()
    assert data.x.shape == (4, 1, 3, 3)
    angles = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (1, 3, 28, 28), dtype=np.uint8))
    for degrees in (72.0, 120.0, 180.0, 288.0):
        expected = Image.fromarray(angles[0].permute(1, 2, 0).numpy()).rotate(degrees)
        assert (turned(angles, degrees)[0].permute(1, 2, 0).numpy() == np.array(expected)).all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="10 or 100 classes, the data set has 4"):
        dealt("px", 1, 2, 42, classes=4)
    with pytest.raises(ConfigError, match="the partition divides a test split, which the data set has not"):
        build("anda").assign(Pool(np.arange(60), np.arange(60) % 10, 10), np.random.default_rng())
    with pytest.raises(ConfigError, match="3 clients blocks of 2 of 4 classes"):
        drawn("pathological_fedsac", [0, 1, 2, 3] * 5, num_clients=3)
    with pytest.raises(ConfigError, match="none of 5 draws gave each of 8 clients 10 samples"):
        drawn("dir_fedsac", [0, 1] * 45, alpha=1e-6, num_clients=8, max_tries=5)
    with pytest.raises(ConfigError, match="at least 4 classes"):
        drawn("concept_shift_code", [0, 1, 2] * 50)
    with pytest.raises(ConfigError, match="draw must lie in"):
        build("homo_fedsac", draw=2**32)


def test_a_split_file_that_turns_images_in_two_ways_is_refused(tmp_path: Path) -> None:
    lists = {f"{name}_{client}": np.arange(20) + 40 * client + 20 * place for client in (0, 1) for place, name in
             enumerate(("train", "test"))}  # fmt: skip
    ways = {"rotation": np.zeros(2), "looks": np.zeros((2, 10, 2))}
    np.savez(tmp_path / "split.npz", **lists, **ways)
    chosen = ["dataset=synthetic", "dataset.train=80", "dataset.test=20", "method=fedavg", "partition=file"]
    with pytest.raises(ConfigError, match="has the arrays rotation and looks; give one of them"):
        setup_of(resolve(compose([*chosen, f"partition.path={tmp_path / 'split.npz'}"])))


def test_columns_on_an_authors_draw_name_it_and_leave_it_open() -> None:
    """And a run on it has a key of its own."""
    tables = [spec.load_spec(name) for name in ("fedsac_t1", "fedsac_t3", "fedsac_t4", "fedsac_t5")]
    for table in tables:
        assert "partition.draw" in table.left_open
        assert all("_fedsac" in "".join(column.overrides) for column in table.columns)
    chosen = resolve(compose(["partition=dir_fedsac0.1", "dataset=cifar10"]))
    assert chosen.labels["partition"] == "dir_fedsac0.1"
