"""Counts, weights and fairness against values worked out by hand and exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from fedbench.metrics import Tally, by_size, fairness, hurt, weighted, worst
from tests.runs.toys import tally


class TestTally:
    def test_per_client_mean_and_pooled_differ_when_sizes_do(self):
        counts = tally([9, 1, 0], [10, 2, 100])
        assert counts.accuracy().tolist() == [0.9, 0.5, 0.0]
        assert counts.mean() == pytest.approx(1.4 / 3, abs=1e-15)
        assert counts.pooled() == pytest.approx(10 / 112, abs=1e-15)
        assert counts.averaged("client") == counts.mean()
        assert counts.averaged("pooled") == counts.pooled()

    def test_a_client_without_test_samples_counts_in_neither(self):
        counts = tally([3, 0], [4, 0])
        assert counts.accuracy()[0] == 0.75
        assert math.isnan(counts.accuracy()[1])
        assert counts.mean() == 0.75
        assert counts.pooled() == 0.75

    def test_nobody_has_test_samples(self):
        counts = tally([0, 0], [0, 0])
        assert math.isnan(counts.mean())
        assert math.isnan(counts.pooled())

    def test_does_not_alias_a_buffer_that_is_used_again(self):
        buffer = np.array([1.0, 2.0])
        counts = Tally(buffer, np.array([4, 4]))
        buffer[:] = 0
        assert counts.accuracy().tolist() == [0.25, 0.5]

    @pytest.mark.parametrize(
        ("correct", "total"),
        [([5], [4]), ([1], [-4]), ([math.nan], [4]), ([1], [math.inf]), ([1, 2], [3]), ([[1]], [[1]])],
    )
    def test_refuses_impossible_counts(self, correct, total):
        with pytest.raises(ValueError, match=r"tally|count"):
            tally(correct, total)

    def test_says_which_client_and_which_shapes(self):
        with pytest.raises(ValueError, match=r"^client 2: not a count"):
            tally([1, 4, 5, 2], [4, 4, 4, 4])
        with pytest.raises(ValueError, match=r"two \[N\] arrays, got \(2,\) and \(1,\)"):
            tally([1, 2], [3])

    def test_whole_numbers_become_float64_of_the_clients(self):
        counts = Tally(np.array([1, 2]), np.array([2, 2]))
        assert {each.dtype for each in (counts.correct, counts.total)} == {np.dtype(np.float64)}
        assert len(counts) == 2

    def test_another_tally_fills_in_by_a_loop(self):
        """Whatever is missing: a client's test samples here, or the scores on either side."""
        draw = np.random.default_rng(0)
        for _ in range(20):
            totals = [draw.integers(0, 3, 5) for _ in range(2)]
            spread = [draw.random((5, 3, 2)) if draw.random() < 0.7 else None for _ in totals]
            ours, theirs = (Tally(t * 0.5, t, s) for t, s in zip(totals, spread, strict=True))
            got = ours.or_else(theirs)
            used = [ours if ours.total[k] > 0 else theirs for k in range(5)]
            assert got.correct.tolist() == [each.correct[k] for k, each in enumerate(used)]
            assert got.total.tolist() == [each.total[k] for k, each in enumerate(used)]
            if spread[0] is None or spread[1] is None:
                assert got.outputs is None
            else:
                assert got.outputs.tolist() == [each.outputs[k].tolist() for k, each in enumerate(used)]


class TestWeighted:
    def test_by_hand(self):
        # q = (3/4, 1/4): (.75 * 8 + .25 * 1) / (.75 * 10 + .25 * 20) = 6.25 / 12.5
        got = weighted(np.array([[8, 1]]), np.array([10, 20]), np.array([[0.75, 0.25]]))
        assert got.correct.tolist() == [6.25]
        assert got.total.tolist() == [12.5]
        assert got.mean() == 0.5

    def test_against_exact_fractions(self):
        rng = np.random.default_rng(0)
        total = rng.integers(1, 50, size=(6, 4))
        correct = rng.integers(0, total + 1)
        labels = rng.integers(0, 30, size=(6, 4)) + np.eye(6, 4, dtype=int)
        shares = labels / labels.sum(axis=1, keepdims=True)
        got = weighted(correct, total, shares).accuracy()
        for i in range(6):
            q = [Fraction(int(n), int(labels[i].sum())) for n in labels[i]]
            top = sum(w * int(c) for w, c in zip(q, correct[i], strict=True))
            bottom = sum(w * int(t) for w, t in zip(q, total[i], strict=True))
            assert got[i] == pytest.approx(float(top / bottom), rel=1e-14)

    def test_equal_shares_of_a_balanced_set_is_plain_accuracy(self):
        correct = np.array([[3, 5, 7]])
        assert weighted(correct, np.array([10, 10, 10]), np.full((1, 3), 1 / 3)).mean() == pytest.approx(0.5)

    def test_classes_a_client_does_not_hold_do_not_matter(self):
        shares = np.array([[1.0, 0.0], [1.0, 0.0]])
        got = weighted(np.array([[4, 0], [4, 9]]), np.array([8, 9]), shares)
        assert got.accuracy().tolist() == [0.5, 0.5]

    def test_refuses_shapes_that_do_not_agree(self):
        assert weighted(np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 3))).total.tolist() == [3, 3]
        for shapes in (((2, 3), (2,), (2, 3)), ((2, 3), (3,), (3, 2)), ((3,), (3,), (3,)), ((2, 3), (3, 2), (2, 3))):
            with pytest.raises(ValueError, match="do not agree"):
                weighted(*map(np.ones, shapes))


class TestFairness:
    def test_by_hand(self):
        # gains 10, -5, 0, 15 points: half of the clients gain; mean 5, variance (25 + 100 + 25 + 100) / 4
        got = fairness(np.array([0.6, 0.45, 0.5, 0.65]), np.full(4, 0.5))
        assert got.gains == pytest.approx([10, -5, 0, 15])
        assert got.ipr == 50.0
        assert got.rsd == pytest.approx(math.sqrt(62.5))

    def test_population_not_sample_deviation(self):
        assert fairness(np.array([0.5, 0.7]), np.array([0.5, 0.5])).rsd == pytest.approx(10.0)

    @pytest.mark.parametrize("total", [3, 7, 10, 49, 350, 10_000_019])
    def test_ties_are_exact_whatever_road_a_ratio_came_along(self, total):
        for correct in {1, total // 3, total // 2, total - 1}:
            ratio = correct / total
            roads = [ratio, ratio * 100 / 100, 1 - (total - correct) / total, sum([ratio] * 5) / 5]
            roads += [float(np.sum(np.full(7, 0.1) * correct) / np.sum(np.full(7, 0.1) * total))]
            for road in roads:
                assert fairness(np.array([road]), np.array([ratio])).ipr == 0.0
                assert fairness(np.array([ratio]), np.array([road])).ipr == 0.0

    def test_one_sample_more_is_a_gain_even_on_a_large_test_set(self):
        total = 10_000_019
        assert fairness(np.array([5_000_001 / total]), np.array([5_000_000 / total])).ipr == 100.0

    def test_local_against_itself(self):
        same = np.array([0.3, 0.9])
        got = fairness(same, same)
        assert (got.ipr, got.rsd) == (0.0, 0.0)

    def test_clients_without_test_samples_are_left_out(self):
        got = fairness(np.array([0.6, math.nan, 0.4]), np.array([0.5, 0.5, 0.5]))
        assert got.ipr == 50.0
        assert got.rsd == pytest.approx(10.0)
        assert math.isnan(got.gains[1])
        nobody = fairness(np.array([math.nan]), np.array([0.5]))
        assert math.isnan(nobody.ipr)
        assert math.isnan(nobody.rsd)

    def test_refuses_another_federation(self):
        for ours, theirs in ((3, 2), ((2, 2), (2, 2))):
            with pytest.raises(ValueError, match="client by client"):
                fairness(np.zeros(ours), np.zeros(theirs))

    def test_a_gain_of_just_what_counts_as_a_tie_is_none(self):
        assert fairness(np.array([1e-9, 1.1e-9]), np.zeros(2)).ipr == 50.0


class TestWhoIsHidden:
    """Each against a loop over clients, which knows no numpy."""

    @pytest.mark.parametrize("clients", [1, 9, 10, 11, 24, 100])
    def test_the_worst_tenth_is_a_sorted_list_s_beginning(self, clients):
        accuracy = np.random.default_rng(clients).integers(0, 20, clients) / 20
        count = -(-clients // 10)
        expected = sum(sorted(accuracy.tolist())[:count]) / count
        assert worst(accuracy) == pytest.approx(expected, abs=1e-15)
        assert worst(np.append(accuracy, np.nan)) == pytest.approx(expected, abs=1e-15), (
            "who has no test does not count"
        )
        assert worst(accuracy, 1.0) == pytest.approx(accuracy.mean(), abs=1e-15)

    def test_a_whole_share_of_the_clients_is_not_rounded_up(self):
        """0.28 x 25 is 7, and 7.000000000000001 to a computer."""
        assert worst(np.arange(25) / 25, 0.28) == pytest.approx(3 / 25, abs=1e-15)

    def test_nobody_is_nan(self):
        nobody = np.full(3, np.nan)
        assert all(map(math.isnan, (worst(nobody), hurt(nobody, nobody, 0.0), *by_size(nobody, np.arange(3)).values())))

    @pytest.mark.parametrize("margin", [0.0, 0.02, 0.1, 0.3])
    def test_who_is_hurt_is_counted_client_by_client(self, margin):
        rng = np.random.default_rng(1)
        ours, theirs = (rng.integers(0, 51, 200) for _ in range(2))
        accuracy, reference = ours / 50, theirs / 50
        accuracy[7] = reference[9] = np.nan
        known = [k for k in range(200) if k not in (7, 9)]
        expected = sum(Fraction(int(theirs[k] - ours[k]), 50) > Fraction(str(margin)) for k in known) / 198
        assert hurt(accuracy, reference, margin) == pytest.approx(expected, abs=1e-15)

    def test_a_loss_of_just_the_margin_hurts_nobody(self):
        assert hurt(np.array([0.7, 0.5]), np.array([0.8, 0.7]), 0.1) == 0.5
        assert hurt(np.array([0.6999, 0.5]), np.array([0.8, 0.6]), 0.1) == 0.5
        assert hurt(np.zeros(2), np.array([1e-9, 1.1e-9]), 0.0) == 0.5, "nor does a loss of just a tie"

    def test_thirds_are_of_clients_with_a_score(self):
        accuracy = np.array([np.nan, 0.1, np.nan, 0.2, 0.6, np.nan])
        assert by_size(accuracy, np.array([1, 2, 3, 4, 5, 6])) == {"small": 0.1, "middle": 0.2, "large": 0.6}

    @pytest.mark.parametrize("clients", [3, 10, 11, 12, 100])
    def test_thirds_by_size(self, clients):
        rng = np.random.default_rng(clients)
        accuracy, sizes = rng.random(clients), rng.integers(1, 5, clients)
        order = sorted(range(clients), key=lambda k: (sizes[k], k))
        small, middle = -(-clients // 3), -(-(clients - 1) // 3)
        parts = order[:small], order[small : small + middle], order[small + middle :]
        expected = [sum(accuracy[k] for k in part) / len(part) for part in parts]
        assert list(by_size(accuracy, sizes).values()) == pytest.approx(expected, abs=1e-15)
        assert list(by_size(accuracy, sizes)) == ["small", "middle", "large"]
