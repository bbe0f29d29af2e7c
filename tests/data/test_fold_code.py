"""SosicFL's folds as its authors' code deals them, and what they do to accuracies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedbench.config.schema import OptimizerConfig
from fedbench.config.schema import TestConfig as Protocol
from fedbench.core.errors import ConfigError
from fedbench.data.dataset import Dataset
from fedbench.data.datasets.synthetic import Synthetic
from fedbench.data.federation import Federation
from fedbench.data.partition import make_partition
from fedbench.data.partitions.groups import Fold, FoldCode
from fedbench.methods.fedavg import FedAvg
from fedbench.models.small import MLP
from fedbench.testing.toys import setup, simulate

COMMON = Protocol(sets="common")


def toy(each: int, classes: int) -> Dataset:
    """`each` training samples of each class, and one test sample of it."""
    labels = np.arange((each + 1) * classes) % classes
    images = np.zeros((len(labels), 1, 1, 1), dtype=np.uint8)
    return Dataset("toy", images, labels, each * classes, classes, (0.5,), (0.5,))


def test_ten_classes_divide_evenly() -> None:
    """A fifth over all ten classes: 90 % of a client's samples are of its own five."""
    counts = FoldCode(folds=2).counts(np.full(10, 5000))
    np.testing.assert_array_equal(counts[0], [90] * 5 + [10] * 5)
    np.testing.assert_array_equal(counts[99], [10] * 5 + [90] * 5)
    np.testing.assert_array_equal(FoldCode(folds=5).counts(np.full(10, 5000))[20], [10] * 2 + [210] * 2 + [10] * 6)


@pytest.mark.parametrize(("folds", "own"), [(2, 4), (5, 10)])
def test_of_two_hundred_classes_the_last_has_a_fifth(folds: int, own: int) -> None:
    counts = FoldCode(folds=folds).counts(np.full(200, 500))
    assert (counts.sum(1) == 500).all()
    assert counts[:, :-1].max() == own
    np.testing.assert_array_equal(counts[:50, -1], 100)
    np.testing.assert_array_equal(counts[-1, -5:], [own] * 4 + [100 + own])


def test_remainders_of_a_fold_go_to_its_last_class() -> None:
    counts = FoldCode(folds=2, num_clients=2, size=20).counts(np.full(6, 99))
    np.testing.assert_array_equal(counts, [[5, 5, 6, 0, 0, 4], [0, 0, 0, 5, 5, 10]])


def test_clients_share_the_samples_of_a_scarce_class_but_no_test_sample() -> None:
    data = toy(150, 200)
    made = make_partition(FoldCode(folds=2, num_clients=10), data, COMMON, seed=3)
    trained, tested = np.concatenate(made.train), np.concatenate(made.test)
    assert not set(trained) & set(tested)
    assert len(np.unique(trained)) < len(trained)
    for client in range(10):
        assert (len(made.train[client]), len(made.test[client])) == (400, 100)
        assert len(np.unique(made.train[client])) == 400
    found = np.stack(
        [np.bincount(data.y[np.concatenate(p)], minlength=200) for p in zip(made.train, made.test, strict=True)]
    )
    np.testing.assert_array_equal(found, FoldCode(folds=2, num_clients=10).counts(np.full(200, 150)))
    again = make_partition(FoldCode(folds=2, num_clients=10), data, COMMON, seed=3)
    assert again.hash == made.hash


def test_what_a_client_cannot_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="of label 199, there are 40 of that kind"):
        make_partition(FoldCode(folds=2, num_clients=10), toy(50, 200), COMMON, seed=0)
    with pytest.raises(ConfigError, match="do not make 11 folds"):
        FoldCode(folds=11).counts(np.full(10, 99))


@pytest.mark.parametrize("spec", [FoldCode(folds=2, num_clients=10), Fold(folds=2, num_clients=10, size=500)])
def test_fedavg_on_two_hundred_classes_scores_a_fifth_more_on_clients(spec: Fold) -> None:
    """local = 20 + .8 global, as published for Tiny-ImageNet; in the text's balanced folds both are the same."""
    data = Synthetic(classes=200, train=36_000, test=4000, size=8, difficulty=0.5).load()
    federation = Federation(data, make_partition(spec, data, COMMON, seed=0), dtype=torch.float32)
    sgd = OptimizerConfig(lr=0.05, momentum=0.9)
    options = {"rounds": 9, "epochs": 1, "batch": 20, "optimizer": sgd, "test": COMMON, "eval_every": 9}
    last = simulate(setup(FedAvg(), federation, MLP(hidden=(64,)), **options)).history.last
    local, common = (
        100 * last.tallies[name].correct.sum() / last.tallies[name].total.sum() for name in ("local", "common")
    )
    expected = 20 + 0.8 * common if isinstance(spec, FoldCode) else common
    assert common > 15
    assert local == pytest.approx(expected, abs=4)  # of 1,000 local test samples: a standard error of 1.5 points
