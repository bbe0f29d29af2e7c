"""What holds for every partition over seeds, splits inside clients, settings that cannot be, and the even one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedbench.config.schema import TestConfig as Protocol
from fedbench.core.errors import ConfigError
from fedbench.data.partition import held_out, make_partition
from fedbench.data.partitions import PARTITIONS
from fedbench.data.partitions.base import Assignment, PartitionSpec
from tests.data.toys import SEEDS, TOY, same, small, toy

NAMES = [name for name in PARTITIONS if name != "file"]  # which has tests of its own
WHOLE = ("homo", "dir", "domain", "label_groups", "pathological", "quantity")  # hand out every sample


# --- what holds for every partition


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", [Protocol(), Protocol(pool=True, fraction=0.5, val_fraction=0.2)])
def test_every_sample_goes_to_one_place_in_one_order(name, protocol):
    spec = small(name)
    hashes = set()
    for seed in SEEDS:
        partition = make_partition(spec, TOY, protocol, seed)
        everything = np.concatenate([part for s in ("train", "val", "test") for part in getattr(partition, s)])
        assert len(np.unique(everything)) == len(everything)
        assert everything.min() >= 0
        assert everything.max() < (len(TOY) if protocol.pool or spec.pools else TOY.num_train)
        assert everything.dtype == np.int64
        if name in WHOLE:
            assert len(everything) == (len(TOY) if protocol.pool else TOY.num_train)
        for part in (*partition.train, *partition.val, *partition.test):
            assert (np.diff(part) > 0).all()
        assert min(map(len, partition.train)) >= 1
        again = make_partition(small(name), TOY, protocol, seed)
        assert same(partition, again)
        assert partition.hash == again.hash
        hashes.add(partition.hash)
    assert len(hashes) == len(SEEDS)


@pytest.mark.parametrize("name", NAMES)
def test_the_draw_is_random_in_the_samples(name):
    """Over seeds every sample of a label is drawn about equally often: nothing sticks to the file's order."""
    partitions = [make_partition(small(name), TOY, Protocol(), seed) for seed in range(60)]
    label_1 = np.flatnonzero(TOY.y[: TOY.num_train] == 1)
    drawn = np.zeros(len(TOY))
    for partition in partitions:
        drawn[np.concatenate(partition.test)] += 1
    share = drawn[label_1] / len(partitions)
    first, last = share[: len(share) // 2].mean(), share[len(share) // 2 :].mean()
    assert abs(first - last) < 0.06
    assert share.min() > 0
    assert share.max() < 0.95


def test_labels_carry_the_number_of_the_family():
    assert small("dir", alpha=0.1).label == "dir0.1"
    assert small("dir", alpha=5).label == "dir5"
    assert small("dir_prior", beta=0.3).label == "dir_prior0.3"
    assert small("pathological", skew=20).label == "pathological20"
    assert small("fold", folds=2).label == "fold2"
    assert small("groups_s", s=0.2).label == "groups_s0.2"
    assert small("homo").label == "homo"


# --- splits inside clients


@pytest.mark.parametrize(
    ("samples", "fraction", "expected"),
    [
        (10, 0.2, 2),
        (12, 0.2, 2),
        (13, 0.2, 3),
        (5, 0.5, 3),
        (2, 0.2, 1),
        (2, 0.99, 1),
        (1, 0.5, 0),
        (10, 0.0, 0),
    ],
)
def test_rounding_of_held_out_samples(samples, fraction, expected):
    assert held_out(samples, fraction) == expected


def test_shares_of_test_and_validation():
    partition = make_partition(small("homo", num_clients=10), TOY, Protocol(fraction=0.25, val_fraction=0.1), 0)
    # 1200 samples over 10 clients: 30 of 120 tested, 9 of the other 90 validated.
    assert [tuple(map(len, sets)) for sets in zip(partition.train, partition.val, partition.test, strict=True)] == [
        (81, 9, 30)
    ] * 10


def test_a_global_test_set_holds_nothing_out_locally():
    partition = make_partition(small("homo"), TOY, Protocol(sets="global"), 0)
    assert [len(part) for part in partition.test] == [0] * 7
    assert sum(map(len, partition.train)) == TOY.num_train
    both = make_partition(small("homo"), TOY, Protocol(sets="both"), 0)
    assert same(both, make_partition(small("homo"), TOY, Protocol(sets="local"), 0))


def test_validation_does_not_move_the_test_samples():
    plain, validated = (make_partition(small("homo"), TOY, Protocol(val_fraction=v), 0) for v in (0.0, 0.3))
    for a, b in zip(plain.test, validated.test, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_client_of_one_sample_trains_on_it():
    tiny = toy([3, 3])  # one client has two, so that there is something to test on
    partition = make_partition(small("homo", num_clients=5), tiny, Protocol(fraction=0.5), 0)
    assert [len(part) for part in partition.train] == [1] * 5
    assert sorted(len(part) for part in partition.test) == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("spec", "protocol", "reason"),
    [
        (small("homo"), Protocol(pool=True, sets="both"), "protocol.test.pool"),
        (small("label_shift"), Protocol(sets="global"), "label_shift trains on the test split"),
        (small("homo"), Protocol(fraction=0), "protocol.test.fraction"),
    ],
)
def test_contradictory_protocols_are_refused(spec, protocol, reason):
    with pytest.raises(ConfigError, match=reason):
        make_partition(spec, TOY, protocol, 0)


def test_a_global_test_set_needs_a_test_split():
    with pytest.raises(ConfigError, match="no test split"):
        make_partition(small("homo"), toy([20, 20]), Protocol(sets="global"), 0)


class Faulty(PartitionSpec):
    """Hands out what it was told to."""

    name = "faulty"
    fixes_test = True

    def __init__(self, train, test):
        object.__setattr__(self, "parts", (train, test))

    def assign(self, pool, rng):
        return Assignment(
            train=[np.array(p, dtype=np.int64) for p in self.parts[0]],
            test=[np.array(p, dtype=np.int64) for p in self.parts[1]],
        )


@pytest.mark.parametrize(
    ("train", "test", "reason"),
    [
        ([[0, 1], [2]], [[3], [1]], "more than once"),
        ([[0, 1], []], [[3], [4]], "client 1 without"),
        ([[0, 1], [9999]], [[3], [4]], "sample 9999"),
    ],
)
def test_a_faulty_partition_is_refused(train, test, reason):
    with pytest.raises(ConfigError, match=reason):
        make_partition(Faulty(train, test), TOY, Protocol(), 0)


# --- homo


def test_homo_is_even_and_iid():
    partition = make_partition(small("homo", num_clients=7), TOY, Protocol(sets="global"), 0)
    sizes = [len(part) for part in partition.train]
    assert max(sizes) - min(sizes) <= 1
    counts = partition.label_counts(TOY.y)
    np.testing.assert_array_equal(counts.sum(0), [120] * 10)
    # Hypergeometric: 171 of 1200 samples, 120 of a class: mean 17.1, standard deviation 3.6.
    assert abs(counts - 120 / 7).max() < 5 * 3.6
    other = make_partition(small("homo", num_clients=7), TOY, Protocol(sets="global"), 1)
    shared = len(np.intersect1d(partition.train[0], other.train[0]))
    assert shared < 50  # by chance 171 / 7 = 24


@pytest.mark.parametrize("name", [n for n in NAMES if "num_clients" in {f.name for f in dataclasses.fields(small(n))}])
def test_more_clients_than_samples_are_refused(name):
    with pytest.raises(ConfigError, match="num_clients=1201 is more than the 1200 samples"):
        make_partition(small(name, num_clients=1201), TOY, Protocol(), 0)
    with pytest.raises(ConfigError, match="at least 1"):
        make_partition(small(name, num_clients=0), TOY, Protocol(), 0)
