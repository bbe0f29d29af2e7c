"""Partitions whose clients have some of the classes: pathological, folds, groups; as published, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedbench.core.errors import ConfigError
from tests.data.toys import build

CIFAR = np.full(10, 5000)  # training samples a class


# --- pathological


@pytest.mark.parametrize(("classes", "skew", "groups"), [(10, 2, 5), (100, 20, 5)])
def test_pathological_is_fedsac_s(classes, skew, groups):
    per_class = 50000 // classes
    counts = build("pathological", skew=skew).counts(np.full(classes, per_class))
    for client in range(10):
        first = skew * (client % groups)
        held = np.flatnonzero(counts[client])
        np.testing.assert_array_equal(held, np.arange(first, first + skew))
        assert (counts[client, held] == per_class // 2).all()  # two clients a block


def test_pathological_blocks_of_unequal_clients():
    counts = build("pathological", skew=2, num_clients=5).counts(np.full(4, 10))
    np.testing.assert_array_equal(counts[:, 0], [4, 0, 3, 0, 3])
    np.testing.assert_array_equal(counts[:, 2], [0, 5, 0, 5, 0])


@pytest.mark.parametrize(
    ("skew", "classes", "reason"),
    [
        (
            3,
            10,
            "do not divide into blocks of 3; set partition.skew to one of 1, 2, 5, 10",
        ),
        (
            20,
            10,
            "each client 20 classes, the 10 classes of the data set are fewer; set partition.skew to one of",
        ),
        (2, 100, "num_clients to at least 50"),
    ],
)
def test_pathological_refuses_what_leaves_classes_out(skew, classes, reason):
    with pytest.raises(ConfigError, match=reason):
        build("pathological", skew=skew).counts(np.full(classes, 500))


def test_pathological_refuses_clients_that_would_lack_one_of_their_classes():
    spec = build("pathological", skew=2, num_clients=10)
    assert (spec.counts(np.full(4, 5)) > 0).sum(1).tolist() == [2] * 10
    with pytest.raises(ConfigError, match=r"5 clients share the 4 samples of class 3, .* lower partition.num_clients"):
        spec.counts(np.array([5, 5, 5, 4]))


# --- fold


@pytest.mark.parametrize("folds", [2, 5])
def test_folds_are_sosicfl_s(folds):
    counts = build("fold", folds=folds).counts(CIFAR)
    assert (counts.sum(1) == 500).all()  # nothing is left over
    np.testing.assert_array_equal(counts.sum(0), CIFAR)
    width, members = 10 // folds, 100 // folds
    for client in range(100):
        own = slice(client // members * width, (client // members + 1) * width)
        assert counts[client, own].sum() == 400  # 80 %
        assert np.ptp(counts[client, own]) <= 1
        others = np.delete(counts[client], np.arange(10)[own])
        assert np.ptp(others) <= 1


def test_milder_folds_and_small_data():
    counts = build("fold", folds=2, primary=0.7, num_clients=4, size=10).counts(np.full(4, 100))
    np.testing.assert_array_equal(counts, [[4, 3, 2, 1], [3, 4, 1, 2], [2, 1, 4, 3], [1, 2, 3, 4]])
    uneven = build("fold", folds=2, num_clients=4).counts(np.array([100, 100, 100, 20]))
    assert (uneven.sum(0) <= [100, 100, 100, 20]).all()
    assert len(set(uneven.sum(1))) == 1
    bigger = build("fold", folds=2, num_clients=4, size=int(uneven[0].sum()) + 1)
    with pytest.raises(ConfigError, match="samples of label 3, there are 20"):
        bigger.counts(np.array([100, 100, 100, 20]))


@pytest.mark.parametrize("folds", [11, 1])
def test_folds_need_classes_and_clients(folds):
    with pytest.raises(ConfigError):
        build("fold", folds=folds).counts(CIFAR)


# --- groups_s


def test_groups_are_fedrema_s():
    spec = build("groups_s", s=0.2)
    counts = spec.counts(np.full(10, 6000))
    assert counts.shape == (20, 10)
    assert (counts.sum(1) == 600).all()
    dominant = [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 0]]
    for client in range(20):
        expected = np.full(10, 12)  # 20 % of 600 over ten classes
        expected[dominant[client // 4]] += 160  # 80 % over three
        np.testing.assert_array_equal(counts[client], expected)


def test_groups_of_other_class_counts_tile_the_classes():
    spec = build("groups_s", s=0.0, size=100)
    for classes in (5, 7, 20, 62, 100, 200):
        held = [set(np.flatnonzero(row)) for row in spec.counts(np.full(classes, 10**4))[::4]]
        assert set().union(*held) == set(range(classes))
        assert all(len(each) == classes // 5 + 1 for each in held)
        assert all(held[g] & held[(g + 1) % 5] for g in range(5) if classes % 5 == 0)  # neighbours share a label


def test_groups_refuse_too_much_and_say_what_fits():
    stock = np.full(10, 144)  # digits
    with pytest.raises(ConfigError, match=r"partition\.size to at most") as error:
        build("groups_s").counts(stock)
    fits = int(str(error.value).split("at most ")[1].split(",")[0])
    build("groups_s", size=fits).counts(stock)
    with pytest.raises(ConfigError):
        build("groups_s", size=fits + 1).counts(stock)
    with pytest.raises(ConfigError, match="do not make 5 groups"):
        build("groups_s").counts(np.full(4, 1000))


# --- label_groups


def test_label_groups_of_the_measurement_study():
    """pFedSim, section 4.1: labels 0-4, 0-4, 2-6, 5-9 on exclusive subsets."""
    counts = build("label_groups").counts(CIFAR)
    assert (counts > 0).tolist() == [
        [c in run for c in range(10)] for run in (range(5), range(5), range(2, 7), range(5, 10))
    ]
    assert (counts.sum(0) == CIFAR).all()
    assert counts[:, 0].tolist() == [2500, 2500, 0, 0]
    assert sorted(counts[:3, 2]) == [1666, 1667, 1667]
    assert counts[:, 9].tolist() == [0, 0, 0, 5000]
    with pytest.raises(ConfigError, match="4 classes"):
        build("label_groups").counts(CIFAR[:4])
