"""FedCollab's shifts as published and of other sizes, and what a client sees of them."""

from __future__ import annotations

import numpy as np
import pytest

from fedbench.config.schema import TestConfig as Protocol
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.data.federation import Federation
from fedbench.data.partition import make_partition
from fedbench.data.partitions.shifts import permutations
from tests.data.toys import build, data


@pytest.mark.parametrize(("name", "classes", "small"), [("feature_shift", 10, 340), ("concept_shift", 20, 120)])
def test_shifts_are_fedcollab_table_4_to_the_sample(name, classes, small):
    partition = make_partition(build(name), data(50000, 10000, classes), Protocol(), 0)
    assert [len(part) for part in partition.train] == [2500] * 10 + [small] * 10
    assert [len(part) for part in partition.test] == [500] * 20
    assert max(part.max() for part in partition.train) >= 50000  # train and test split together
    if name == "feature_shift":
        assert partition.rotation.tolist() == [25.0] * 5 + [-25.0] * 5 + [155.0] * 5 + [-155.0] * 5
        assert partition.label_map is None
    else:
        assert partition.rotation is None


def test_concept_shift_permutes_as_in_figure_4():
    maps = permutations(20)
    assert maps[0].tolist() == list(range(20))
    assert maps[1].tolist() == [5, 4, 3, 2, 1, 0, *range(6, 20)]
    assert maps[2].tolist() == list(range(19, -1, -1))
    assert maps[3].tolist() == [14, 15, 16, 17, 18, 19, *range(13, -1, -1)]
    agree = (maps[:, None] == maps[None]).sum(2)
    # The paper: client 0 agrees with 1-4 in all labels, with 5-9 in 14, with 10-19 in none.
    np.testing.assert_array_equal(agree, [[20, 14, 0, 0], [14, 20, 0, 0], [0, 0, 20, 14], [0, 0, 14, 20]])


@pytest.mark.parametrize("classes", [4, 5, 10, 62, 100, 200])
def test_concept_shift_of_other_class_counts(classes):
    maps = permutations(classes)
    for each in maps:
        assert sorted(each) == list(range(classes))
    middle = classes % 2
    assert (maps[0] == maps[2]).sum() == (maps[0] == maps[3]).sum() == middle
    assert 0 < (maps[0] == maps[1]).sum() < classes
    block = classes - (maps[0] == maps[1]).sum()
    assert abs(block - 0.3 * classes) <= 1 or block == 2


def test_shifts_scale_themselves_down_and_refuse_what_does_not_fit():
    train, test = build("feature_shift").counts(1797)
    assert (train[0], train[10], test[0]) == (117, 15, 23)  # 117 / 2500 of all three, rounded down
    assert train.sum() + test.sum() <= 1797
    assert sum(map(sum, build("feature_shift")._tables(118))) > 1797
    half, _ = build("concept_shift", scale=0.5).counts(50000)
    assert (half[0], half[10]) == (1250, 60)
    with pytest.raises(ConfigError, match="there are 1797"):
        build("concept_shift", scale=0.5).counts(1797)
    for wrong in ({"angles": (1.0, 2.0)}, {"corners": "meen"}, {"scale": 0.0}):
        with pytest.raises(FedbenchError):
            build("feature_shift", **wrong)
    with pytest.raises(ConfigError, match="at least 4 classes"):
        make_partition(build("concept_shift"), data(300, 100, 3), Protocol(), 0)


def test_clients_see_permuted_labels():
    toy = data(600, 100, 20)
    partition = make_partition(build("concept_shift"), toy, Protocol(), 0)
    federation = Federation(toy, partition)
    for client, kind in ((0, 0), (7, 1), (12, 2), (19, 3)):
        for name, samples in (("train", partition.train), ("local", partition.test)):
            _, y = federation.gather(federation.indices(name, client))
            np.testing.assert_array_equal(y.numpy(), permutations(20)[kind][toy.y[samples[client]]])
