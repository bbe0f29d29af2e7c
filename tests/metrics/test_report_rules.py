"""Rounds that are reported, and time to an accuracy, against values worked out by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from fedbench.core.errors import ConfigError, UnknownName
from fedbench.metrics import RULES, Tally, improvement, report, time_to_accuracy
from tests.runs.toys import tally

# Two clients with ten test samples each, seven evaluations; client means 0, .3, .5, .7, .5, .7, .45
ROUNDS = [0, 10, 20, 30, 40, 50, 60]
TEST = [tally(c, [10, 10]) for c in ([0, 0], [2, 4], [4, 6], [6, 8], [9, 1], [7, 7], [5, 4])]
VAL = [tally(c, [5, 5]) for c in ([0, 0], [4, 1], [3, 3], [3, 2], [1, 4], [2, 4], [1, 1])]


class TestReport:
    def read(self, rule, **options):
        got = report(rule, ROUNDS, TEST, **options)
        return got.tally.accuracy().tolist(), got.rounds.tolist()

    def test_last(self):
        assert self.read("last") == ([0.5, 0.4], [[60, 60]])

    def test_best_test_takes_the_first_of_equals(self):
        assert self.read("best_test") == ([0.6, 0.8], [[30, 30]])

    def test_best_val_for_the_mean(self):
        # validation means 0, .5, .6, .5, .5, .6, .2: the first .6
        assert self.read("best_val", val=VAL) == ([0.4, 0.6], [[20, 20]])

    def test_best_val_per_client(self):
        # client 0 is best at round 10, client 1 first at round 40
        assert self.read("best_val", val=VAL, per_client=True) == ([0.2, 0.1], [[10, 40]])

    def test_best_val_per_client_without_validation_samples_takes_the_federations(self):
        val = [tally([counts.correct[0], 0], [5, 0]) for counts in VAL]
        assert self.read("best_val", val=val, per_client=True) == ([0.2, 0.4], [[10, 10]])

    def test_best_val_per_client_looks_at_the_rounds_in_which_the_client_was_tested(self):
        val = [tally([0, 5], [0, 5]), tally([1, 2], [5, 5])]  # the federation's best is the first
        assert report("best_val", [1, 2], TEST[:2], val, per_client=True).rounds.tolist() == [[2, 1]]

    def test_mean_last_5(self):
        got = report("mean_last_5", ROUNDS, TEST)
        assert got.tally.accuracy() == pytest.approx([(4 + 6 + 9 + 7 + 5) / 50, (6 + 8 + 1 + 7 + 4) / 50])
        assert got.rounds[:, 0].tolist() == [20, 30, 40, 50, 60]
        assert got.tally.pooled() == pytest.approx(np.mean([counts.pooled() for counts in TEST[2:]]))

    def test_mean_last_5_leaves_the_untrained_model_out(self):
        got = report("mean_last_5", ROUNDS[:3], TEST[:3])
        assert got.tally.accuracy() == pytest.approx([0.3, 0.5])
        alone = report("mean_last_5", [0], [tally([1, 1], [10, 10])])
        assert alone.tally.accuracy().tolist() == [0.1, 0.1]

    def test_the_average_decides_which_round_is_best(self):
        # a small client that improves and a large one that gets worse
        test = [tally([0, 80], [10, 100]), tally([9, 70], [10, 100])]
        assert report("best_test", [1, 2], test, average="client").rounds.tolist() == [[2, 2]]
        assert report("best_test", [1, 2], test, average="pooled").rounds.tolist() == [[1, 1]]

    def test_rounding_does_not_make_a_later_tie_the_best(self):
        third = Tally(np.array([1.0]), np.array([3.0]))
        noisy = Tally(np.array([1.0 + 3e-16]), np.array([3.0]))
        assert report("best_test", [1, 2], [third, noisy]).rounds.tolist() == [[1]]

    def test_nothing_to_choose_by_is_the_last_round(self):
        empty = [tally([0], [0]), tally([0], [0])]
        assert report("best_test", [1, 2], empty).rounds.tolist() == [[2]]

    def test_a_round_without_samples_is_never_the_best(self):
        test = [tally([0], [0]), tally([1], [9]), tally([0], [0])]
        assert report("best_test", [1, 2, 3], test).rounds.tolist() == [[2]]

    def test_best_val_without_validation_data(self):
        with pytest.raises(ConfigError, match="val_fraction"):
            report("best_val", ROUNDS, TEST)

    def test_unknown_rule_names_the_nearest(self):
        with pytest.raises(UnknownName, match="best_test"):
            report("best", ROUNDS, TEST)

    def test_one_global_model_by_the_federations_validation_round(self):
        common = [tally([c], [10]) for c in range(7)]
        assert report("best_val", ROUNDS, common, VAL).rounds.tolist() == [[20]]
        with pytest.raises(ValueError, match="per client"):
            report("best_val", ROUNDS, common, VAL, per_client=True)

    def test_refuses_nothing_and_unequal_lengths(self):
        with pytest.raises(ValueError, match="at least one"):
            report("last", [], [])
        with pytest.raises(ValueError, match="each evaluated round"):
            report("last", [1], TEST)
        with pytest.raises(ValueError, match="each evaluated round"):
            report("last", ROUNDS, TEST, VAL[1:])

    def test_of_models_that_are_all_untrained_the_last_is_reported(self):
        got = report("mean_last_5", [0, 0, 0], TEST[1:4])
        assert (got.tally.correct.tolist(), got.rounds.tolist()) == ([6, 8], [[0, 0]])

    def test_a_round_that_is_better_by_just_a_tie_is_no_better(self):
        for better, best in ((1e-9, 1), (1.1e-9, 2)):
            test = [tally([0], [1]), tally([better], [1])]
            assert report("best_test", [1, 2], test).rounds.tolist() == [[best]]


class TestTimeToAccuracy:
    def test_first_round_that_reaches(self):
        got = time_to_accuracy([0, 5, 10, 15], [0.1, 0.5, 0.4, 0.6], 0.5, [0.0, 2.5, 5.0, 7.5], [0, 7, 14, 21])
        assert (got.reference, got.horizon, got.rounds, got.seconds, got.bytes) == (0.5, 15, 5, 2.5, 7)
        for known in ({"seconds": [1.0, 2.0]}, {"traffic": [3, 4]}, {}):
            got = time_to_accuracy([4, 8], [0.5, 0.5], 0.4, **known)
            assert (got.rounds, got.seconds, got.bytes) == (
                4,
                1.0 if "seconds" in known else None,
                3 if "traffic" in known else None,
            )
        assert time_to_accuracy([3], [0.0], 1e-9).rounds == 3, "missed by a tie"
        assert time_to_accuracy([3], [0.0], 1.1e-9).rounds is None

    def test_censored(self):
        got = time_to_accuracy([0, 5], [math.nan, 0.5], 0.51)
        assert (got.rounds, got.seconds, got.bytes, got.horizon) == (None, None, None, 5)

    def test_a_run_reaches_its_own_best(self):
        best = sum([1 / 3] * 5) / 5  # a mean of equal numbers, rounded
        assert time_to_accuracy([1], [1 / 3], max(best, best * 100 / 100) + 1e-16).rounds == 1

    def test_improvement(self):
        slow, fast = (time_to_accuracy([0, rounds], [0.0, 1.0], 0.5) for rounds in (90, 30))
        never = time_to_accuracy([0, 90], [0.0, 0.1], 0.5)
        at_once = time_to_accuracy([0], [0.9], 0.5)
        assert improvement(slow, fast) == 3.0
        assert improvement(slow, never) is None
        assert improvement(never, fast) is None
        assert improvement(slow, at_once) == math.inf
        assert improvement(at_once, at_once) == 1.0
        first = time_to_accuracy([1], [0.9], 0.5)
        assert (improvement(slow, first), improvement(first, first), improvement(first, at_once)) == (90, 1, math.inf)

    def test_refuses_nothing(self):
        with pytest.raises(ValueError, match="at least one"):
            time_to_accuracy([], [], 0.5)
        with pytest.raises(ValueError, match="one accuracy for each"):
            time_to_accuracy([1, 2], [0.5], 0.6)


def best_by_loops(history, average):
    """The first evaluation with the largest exact average; the last where nobody was tested."""
    scores = []
    for correct, total in history:
        pairs = [(int(c), int(t)) for c, t in zip(correct, total, strict=True) if t]
        if average == "pooled" and pairs:
            pairs = [tuple(map(sum, zip(*pairs, strict=True)))]
        scores.append(sum(Fraction(*pair) for pair in pairs) / len(pairs) if pairs else -1)
    return scores.index(max(scores)) if max(scores) >= 0 else len(scores) - 1


def used_by_loops(rule, rounds, test, val, average):
    if rule == "last":
        return [len(rounds) - 1]
    if rule == "mean_last_5":
        return [r for r, done in enumerate(rounds) if done][-5:] or [len(rounds) - 1]
    return [best_by_loops(test if rule == "best_test" else val, average)]


@pytest.mark.parametrize("average", ["client", "pooled"])
@pytest.mark.parametrize("per_client", [False, True])
def test_rules_are_loops_over_small_histories(average, per_client):
    """Fifty histories of one to eight evaluations with unequal, missing and tied tests, by loops."""
    draw = np.random.default_rng(7)
    for _ in range(50):
        clients, evaluations = draw.integers(1, 5), draw.integers(1, 9)
        rounds = sorted(draw.integers(0, 6, evaluations).tolist())  # some twice: two models of a round
        made = []
        for _ in range(2):
            total = draw.integers(0, 5, clients) * draw.integers(1, 9, clients)
            made.append([(draw.integers(0, total + 1), total) for _ in rounds])
        test, val = made
        tallies = [Tally(c.astype(float), t.astype(float)) for c, t in test]
        for rule in RULES:
            got = report(rule, rounds, tallies, [tally(*each) for each in val], average, per_client)
            for k in range(clients):
                alone = rule == "best_val" and per_client and val[0][1][k] > 0
                own = [(c[k : k + 1], t[k : k + 1]) for c, t in val]
                used = used_by_loops(rule, rounds, test, own if alone else val, average)
                assert got.rounds[:, k].tolist() == [rounds[r] for r in used]
                assert got.tally.correct[k] == sum(test[r][0][k] for r in used)
                assert got.tally.total[k] == sum(test[r][1][k] for r in used)
                assert got.places[:, k].tolist() == used
