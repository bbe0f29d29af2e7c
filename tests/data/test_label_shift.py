"""FedCollab's label shift: Table 4 to the sample, and other scales."""

from __future__ import annotations

import numpy as np
import pytest

from fedbench.config.schema import TestConfig as Protocol
from fedbench.core.errors import ConfigError
from fedbench.data.partition import make_partition
from fedbench.data.partitions.groups import LabelShift
from tests.data.toys import FASHION, small, toy


def test_label_shift_is_fedcollab_table_4_to_the_sample():
    partition = make_partition(small("label_shift"), FASHION, Protocol(), 0)
    assert [len(part) for part in partition.train] == [2100] * 10 + [14] * 10
    assert [len(part) for part in partition.test] == [350] * 20
    expected = np.zeros((20, 10), dtype=int)
    expected[0:5, [0, 1, 2, 3]] = [300, 600, 600, 600]
    expected[5:10, [1, 2, 3, 4]] = [600, 600, 600, 300]
    expected[10:15, [5, 6, 7, 8]] = [2, 4, 4, 4]
    expected[15:20, [6, 7, 8, 9]] = [4, 4, 4, 2]
    np.testing.assert_array_equal(partition.label_counts(FASHION.y), expected)
    tested = np.stack([np.bincount(FASHION.y[part], minlength=10) for part in partition.test])
    np.testing.assert_array_equal(tested, np.where(expected == 0, 0, np.where(np.isin(expected, (300, 2)), 50, 100)))
    # Labels 1-3 take all 7,000 samples there are, so some come from the test split.
    assert max(part.max() for part in partition.train) >= FASHION.num_train


def test_label_shift_keeps_its_labels_and_redraws_its_samples():
    a, b = (make_partition(small("label_shift"), FASHION, Protocol(), seed) for seed in (0, 1))
    np.testing.assert_array_equal(a.label_counts(FASHION.y), b.label_counts(FASHION.y))
    assert len(np.intersect1d(a.train[0], b.train[0])) < 0.2 * 2100  # by chance about 300 of 2,100
    ten = np.concatenate(a.train[10:])
    assert len(np.intersect1d(ten, np.concatenate(b.train[10:]))) < 30


DIGITS = np.array([178, 182, 177, 183, 181, 182, 181, 179, 174, 180])


def test_label_shift_scales_itself_to_digits():
    train, test = LabelShift().counts(DIGITS)
    assert ((train + test).sum(0) <= DIGITS).all()
    assert set(train.sum(1)[:10]) == {32}
    assert set(train.sum(1)[10:]) == {11}
    assert set(test.sum(1)) == {28}
    # One more sample a shared label on the large clients would not fit.
    assert 10 * (train[0, 1] + 1 + test[0, 1]) > DIGITS[2]
    bigger, _ = LabelShift().counts(10 * DIGITS)
    assert bigger[0, 1] == 152  # 152 + 152 * 100 // 600 = 177 of each of label 2's ten parts


def test_label_shift_at_a_given_scale():
    train, test = LabelShift(scale=0.5).counts(np.full(10, 7000))
    np.testing.assert_array_equal(train[[0, 10], :], [[150, 300, 300, 300] + [0] * 6, [0] * 5 + [2, 3, 3, 3, 0]])
    assert test[0, 1] == 50
    with pytest.raises(ConfigError, match="label 2, there are 177"):
        LabelShift(scale=0.5).counts(DIGITS)


@pytest.mark.parametrize("bad", [{"scale": 0}, {"scale": 1.5}, {"large": 0}, {"min_test": 0}])
def test_impossible_label_shifts_are_refused(bad):
    with pytest.raises(ConfigError):
        small("label_shift", **bad)


def test_label_shift_needs_ten_labels_with_enough_samples():
    with pytest.raises(ConfigError, match="labels 0 to 9"):
        make_partition(small("label_shift"), toy([500] * 9), Protocol(), 0)
    with pytest.raises(ConfigError, match="there are 20"):
        make_partition(small("label_shift"), toy([20] * 10), Protocol(), 0)
