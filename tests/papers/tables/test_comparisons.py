"""Rows compared: their order and the paper's, paired intervals, groups that lean, rows that pass for others."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from fedbench.papers import comparisons, spec
from fedbench.papers.comparisons import agreements
from fedbench.papers.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE, Sample, compare
from fedbench.papers.published import Published
from fedbench.papers.store import Cell, Provenance, TableResult
from fedbench.papers.verdict import Verdict, verdict_of
from tests.papers.tables.toys import filled, value

PUBLISHED = {"A": value(1.0), "B": value(2.0), "C": value(3.0), "D": value(4.0)}


def test_what_only_rounding_tells_apart_is_a_tie() -> None:
    third = 0.1 + 0.2  # 0.30000000000000004
    (found,) = agreements(filled({"A": [0.1], "B": [0.3], "C": [third], "D": [9.0]}, PUBLISHED, headline="D"))
    assert found.tau == pytest.approx(5 / 30**0.5)  # tau-b: five of six pairs in order, one tie


def test_only_rows_with_both_values_count() -> None:
    values = {"A": [1.0], "B": [], "C": [math.nan], "D": [2.0], "E": [9.0]}
    (found,) = agreements(filled(values, PUBLISHED, headline="B"))
    assert found.rows == 2
    assert math.isnan(found.tau)
    assert found.headline is None
    assert agreements(filled({"E": [1.0]}, PUBLISHED)) == []


def test_a_table_at_other_settings_has_no_order_to_agree_with() -> None:
    values = {"A": [1], "B": [3], "C": [2]}
    assert agreements(filled(values, PUBLISHED))
    assert agreements(filled(values, PUBLISHED, varies="another")) == []


def test_ties_are_named() -> None:
    (found,) = agreements(filled({"A": [5], "B": [5], "C": [1]}, PUBLISHED, headline="A"))
    assert found.best_ours == ("A", "B")
    assert found.headline is True


# Paired intervals and Holm's adjustment, against independent computations.

TESTED_METRIC = filled({"A": [1.0]}).spec.metrics[0]


def test_gaps_that_are_rounding_are_ties() -> None:
    """An error of 1e-14 on every seed is no difference that all seeds agree on."""
    rounded = [90.0 + 1.5e-14, 91.5 + 1.5e-14, 89.0 + 1.5e-14]
    (found,) = comparisons.paired(filled({"A": [90.0, 91.5, 89.0], "B": rounded}), TESTED_METRIC, "A")
    assert (found.difference, found.p) == (0.0, 1.0)


def test_constant_differences_are_certain() -> None:
    (found,) = comparisons.paired(filled({"A": [3, 4, 5], "B": [1, 2, 3]}), TESTED_METRIC, "A")
    assert (found.low, found.high, found.p) == (2, 2, 0)
    (same,) = comparisons.paired(filled({"A": [3, 4, 5], "B": [3, 4, 5]}), TESTED_METRIC, "A")
    assert same.p == 1


# What the verdicts of a table are worth together: groups that lean, rows that pass for others.

A, B, C = [89.0, 90.0, 91.0, 90.5], [88.0, 89.5, 90.0, 90.1], [70.0, 71.0, 70.5, 70.2]
JOINT_PUBLISHED = {"A": value(91.0, 0.5), "B": value(90.5, 0.7), "C": value(60.0, 1.0)}
GROUPS = {"near": ["A", "B*"]}


@pytest.mark.parametrize("seed", range(8))
def test_a_group_s_interval_is_welch_s_of_its_means_by_hand(seed: int) -> None:
    """Rows with other seeds, printed digits and spreads; where theirs is not printed it is taken to be ours."""
    draw = np.random.default_rng(seed)
    count, common, k = int(draw.integers(2, 6)), int(draw.integers(2, 5)), int(draw.integers(2, 9))
    values = {f"R{i}": (80 + 3 * draw.random(common)).tolist() for i in range(count)}
    known = seed % 2 == 0
    digits = draw.integers(0, 3, count).tolist()
    published = {
        row: value(float(np.round(81 + draw.random(), places)), float(draw.random()) if known else None, places)
        for row, places in zip(values, digits, strict=True)
    }
    (found,) = comparisons.biases(filled(values, published, published_seeds=k))
    means = [sum(values[row][n] for row in values) / count for n in range(common)]
    d = sum(means) / common - sum(each.mean for each in published.values()) / count
    ours = sum((mean - sum(means) / common) ** 2 for mean in means) / (common - 1)
    theirs = (sum(each.std for each in published.values()) / count) ** 2 if known else ours
    parts = ours / common, theirs / k
    welch = sum(parts) ** 2 / (parts[0] ** 2 / (common - 1) + parts[1] ** 2 / (k - 1))
    df = welch if known else common - 1
    rounding = sum(0.5 * 10.0**-places for places in digits) / count
    half = stats.t.ppf(0.975, df) * sum(parts) ** 0.5 + rounding
    assert (found.low, found.difference, found.high) == pytest.approx((d - half, d, d + half))
    assert found.below == sum(sum(values[row]) / common < published[row].mean for row in values)
    assert (found.rows, found.seeds) == (count, common)


def test_p_is_adjusted_for_the_groups_of_the_table() -> None:
    """Two groups, so the smaller p counts twice (Holm)."""
    table = filled({"A": A, "B": B, "C": C}, JOINT_PUBLISHED, groups=GROUPS, published_seeds=5)
    bare = []
    for rows in ([A, B, C], [A, B]):
        ours = np.mean(rows, axis=0)
        theirs = [JOINT_PUBLISHED[row] for row in "ABC"[: len(rows)]]
        mean, std = np.mean([each.mean for each in theirs]), np.mean([each.std for each in theirs])
        bare.append(stats.ttest_ind_from_stats(ours.mean(), ours.std(ddof=1), 4, mean, std, 5, equal_var=False).pvalue)
    small, large = sorted(bare)
    assert sorted(each.p for each in comparisons.biases(table)) == pytest.approx([2 * small, max(2 * small, large)])


def test_what_takes_no_part_in_a_joint_test() -> None:
    rows = [{"label": "A"}, {"label": "B"}, {"label": "C", "exploratory": "chosen afterwards"}]
    (found,) = comparisons.biases(filled({"A": A, "B": B, "C": C}, JOINT_PUBLISHED, rows=rows))
    assert found.rows == 2
    marked = [{**row, "exploratory": "chosen afterwards"} for row in rows]
    grouped = filled({"A": A, "B": B, "C": C}, JOINT_PUBLISHED, rows=marked, groups={"both": ["A", "B"]})
    assert [(each.group, each.rows) for each in comparisons.biases(grouped)] == [("both", 2)], "it has no others"
    assert comparisons.biases(filled({"A": A, "B": [90.0], "C": []}, JOINT_PUBLISHED)) == []
    assert comparisons.biases(filled({"A": A, "B": B}, JOINT_PUBLISHED, made=Provenance("quick"))) == []
    (common,) = comparisons.biases(filled({"A": A, "B": B[:2]}, JOINT_PUBLISHED))
    assert common.seeds == 2


def test_a_row_may_pass_for_another() -> None:
    close = {"A": value(90.1, 0.1), "B": value(90.2, 0.1), "C": value(60.0, 0.1), "D": value(91.0, 0.1)}
    table = filled({"A": [90.0, 90.1, 90.2], "B": [75.0, 75.1, 75.2], "C": [], "D": [90.0]}, close, published_seeds=5)
    found = comparisons.matches(table)
    assert {each.row for each in found} == {"A", "B"}, "no test of one seed, nor of none"
    assert comparisons.passes_for(found, "c", "acc", "A") == ("B",)
    assert comparisons.passes_for(found, "c", "acc", "B") == ()
    matrix = comparisons.matrix(found, "c")
    assert {pair[1]: outcome for pair, outcome in matrix.items() if pair[0] == "A"} == {
        "A": [EQUIVALENT],
        "B": [EQUIVALENT],
        "C": [DIFFERENT],
        "D": [INCONCLUSIVE],
    }
    assert comparisons.matches(filled({"A": A}, JOINT_PUBLISHED, made=Provenance("quick"))) == []


def gains(*values: float, published: Published, clients: int = 20) -> Verdict:
    table = filled({"A": values}, {"A": published}, metrics=[{"name": "ipr"}], published_seeds=5)
    table = dataclasses.replace(table, clients={"c": clients})
    return verdict_of(table, table.cells[0])


def test_seeds_that_agree_on_a_share_are_not_known_to_vary_less_than_clients_do() -> None:
    """Two seeds of 100 % beside five: s = 100 sqrt(q (1 - q) / 20), q = 40.5 / 41 and 100.5 / 101."""
    found = gains(100, 100, published=value(100.0, 0.0)).comparison
    assert found is not None
    ours, theirs = (100 * math.sqrt(q * (1 - q) / 20) for q in (40.5 / 41, 100.5 / 101))
    a, b = ours**2 / 2, theirs**2 / 5
    df = (a + b) ** 2 / (a**2 + b**2 / 4)
    assert found.high == pytest.approx(stats.t.ppf(0.975, df) * math.sqrt(a + b) + 0.005)
    assert found.outcome == INCONCLUSIVE
    assert gains(*[100] * 5, published=value(100.0, 0.0)).kind == EQUIVALENT
    assert gains(20, 40, 60, published=value(40.0, 20.0)).comparison == dataclasses.replace(
        compare(Sample(40, 20, 3), Sample(40, 20, 5, 0.005), 5)
    ), "what varies more keeps its own spread"


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_at_most_one_value_in_twenty_at_the_margin_is_called_equivalent(seeds: int) -> None:
    """All of the paper's 20 clients gain, of ours 95 % on average: one client fewer, the margin."""
    rng = np.random.default_rng(0)
    runs = 5 * rng.binomial(20, 0.95, (1000, seeds))
    told = {tuple(sorted(run)): 0 for run in runs.tolist()}
    for run in told:
        told[run] = gains(*run, published=value(100.0, 0.0)).kind == EQUIVALENT
    assert np.mean([told[tuple(sorted(run))] for run in runs.tolist()]) < 0.06


# Whole tables of several columns and metrics by loops: seeds that some cells lack, values that no seed reached.

LABELS, COLUMNS, METRICS = ("A1", "A2", "B", "C", "D"), ("c", "d"), ("acc", "rsd", "macs")
GROUPED = {"all rows": LABELS, "named": ("A1", "A2", "B"), "afterwards": ("D",), "mixed": ("C", "D")}


def drawn(seed: int) -> TableResult:
    """One to five seeds of six a cell, in any order; D is exploratory, some published values are missing or bounds."""
    draw = np.random.default_rng(seed)
    better = dict(zip(METRICS, ("higher", "lower", "neither"), strict=True))
    content = {"name": "toy", "title": "Toy", "paper": "p", "table": "T1", "published_seeds": 4, "headline": "B"}
    content |= {"metrics": [{"name": name, "better": end} for name, end in better.items()]}
    content |= {"rows": [{"label": row, **({"exploratory": "why"} if row == "D" else {})} for row in LABELS]}
    content |= {"columns": [{"label": column} for column in COLUMNS], "clients": 9}
    content |= {"groups": {"named": ["A?", "B"], "afterwards": ["D"], "mixed": ["[CD]"]}}
    cells = []
    for row in LABELS:
        for column in COLUMNS:
            for metric in METRICS:
                seeds = tuple(draw.permutation(6)[: draw.integers(1, 6)].tolist())
                values = [float(each) for each in np.round(50 + draw.normal(0, 0.4, len(seeds)), 1)]
                values = [math.nan if draw.random() < 0.04 else each for each in values]
                mean, std = float(np.round(50 + draw.normal(0, 0.5), 1)), float(draw.random()) / 3
                bound = ">" if draw.random() < 0.1 else ""
                printed = value(mean, None if draw.random() < 0.2 else std, 1, bound) if draw.random() < 0.9 else None
                cells.append(Cell(row, column, metric, tuple(values), seeds, published=printed))
    return TableResult(spec.parse_spec(content), tuple(cells))


def test_a_row_that_lost_a_seed_to_divergence_is_compared_with_none() -> None:
    """Its other seeds are the luckier ones."""
    table = filled({"A": [3, 4, 5], "B": [1, 2, 3], "C": [1, 2, 4]})
    why = "seed 3: Diverged: in round 2"
    cells = tuple(dataclasses.replace(cell, reason=why * (cell.row == "B")) for cell in table.cells)
    found = comparisons.paired(dataclasses.replace(table, cells=cells), TESTED_METRIC, "A")
    assert [each.row for each in found] == ["C"]


def test_values_whose_seeds_are_not_known_are_paired_with_nothing() -> None:
    whole = drawn(0)
    torn = dataclasses.replace(whole, cells=tuple(dataclasses.replace(each, seeds=()) for each in whole.cells))
    with pytest.raises(ValueError, match="longer"):
        comparisons._by_seed(torn, "B", "c", whole.spec.metrics[0])


def stepped_down(p: list[float]) -> list[float]:
    """Holm: the largest of what the smaller p times those not yet done come to, at most 1."""
    ranks = {k: rank for rank, k in enumerate(sorted(range(len(p)), key=lambda k: (p[k], k)))}
    return [min(1.0, max((len(p) - ranks[j]) * p[j] for j in ranks if ranks[j] <= ranks[k])) for k in range(len(p))]


@pytest.mark.parametrize("seed", range(4))
def test_holm_by_its_definition(seed: int) -> None:
    p = (np.random.default_rng(seed).random(9) ** 3).round(2).tolist()
    assert comparisons.holm(p) == pytest.approx(stepped_down(p))
    assert comparisons.holm([]) == []


@pytest.mark.parametrize("seed", range(6))
def test_agreements_by_loops(seed: int) -> None:
    table, expected = drawn(seed), []
    for column in COLUMNS:
        for metric, sign in (("acc", 1), ("rsd", -1)):
            cells = [table.cell(row, column, metric) for row in LABELS]
            pairs = {
                each.row: (sign * sum(each.values) / len(each.values), sign * each.published.mean)
                for each in cells
                if each.published and not any(map(math.isnan, each.values))
            }
            both = [
                np.sign(
                    [round(a[side] - b[side], 6) for k, a in enumerate(pairs.values()) for b in [*pairs.values()][:k]]
                )
                for side in (0, 1)
            ]
            spans = [math.sqrt(np.abs(each).sum()) for each in both]
            tau = (both[0] * both[1]).sum() / spans[0] / spans[1] if len(pairs) > 2 else math.nan
            best = [
                [row for row in pairs if round(max(v[side] for v in pairs.values()) - pairs[row][side], 6) == 0]
                for side in (0, 1)
            ]
            means = {each.row: sign * each.published.mean for each in cells if each.published}
            best[1] = [row for row, mean in means.items() if mean == max(means.values())]  # of all rows, run or not
            told = [each.count("B") > 0 if "B" in pairs and len(pairs) > 1 else None for each in best]
            assert len(pairs) < 2 or (len(best[0]) < len(pairs) and len(best[1]) < len(means))
            expected += [(column, metric, len(pairs), tau, tuple(best[0]), *told, len(means))] if pairs else []
    found = [tuple(vars(each).values()) for each in agreements(table)]
    assert [each[:3] + each[4:] for each in found] == [each[:3] + each[4:] for each in expected]
    assert [each[3] for each in found] == pytest.approx([each[3] for each in expected], nan_ok=True)


def test_a_paper_claims_no_best_row_where_it_prints_a_better_one() -> None:
    """Also if that one was not run."""
    printed = {row: value(mean, 0.5) for row, mean in (("A", 90), ("B", 80), ("C", 95))}
    (found,) = agreements(filled({"A": [90, 91], "B": [80, 81], "C": []}, printed, headline="A"))
    assert (found.headline, found.headline_published) == (True, False)
    (found,) = agreements(filled({"A": [90, 91], "B": [80, 81], "C": []}, {**printed, "C": value(85)}, headline="A"))
    assert found.headline_published


def test_one_row_is_not_best_and_rows_that_tie_have_no_order() -> None:
    (alone,) = agreements(filled({"A": [5], "B": []}, PUBLISHED, headline="A"))
    assert (alone.headline, alone.headline_published, alone.best_ours) == (None, None, ("A",))
    (two,) = agreements(filled({"A": [5], "B": [4], "C": []}, PUBLISHED, headline="C"))
    assert (two.headline, two.headline_published) == (None, None)
    (tied,) = agreements(filled({"A": [5], "B": [5], "C": [5]}, PUBLISHED, headline="A"))
    assert math.isnan(tied.tau)
    assert tied.headline is False, "no claim holds because all rows tie"
    (turned,) = agreements(filled({"A": [3], "B": [2], "C": [1]}, PUBLISHED))
    assert turned.tau == -1


@pytest.mark.parametrize("seed", range(6))
def test_paired_differences_by_loops(seed: int) -> None:
    table, expected = drawn(seed), []
    for column in COLUMNS:
        base, *others = (dict(zip(c.seeds, c.values, strict=True)) for c in _cells(table, column, "rsd", "B"))
        for row, other in zip([each for each in LABELS if each != "B"], others, strict=True):
            seeds = [s for s in range(6) if math.isfinite(base.get(s, math.nan) + other.get(s, math.nan))]
            if len(seeds) >= 3:
                gaps = [base[s] - other[s] for s in seeds]
                low, high = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
                p = stats.ttest_1samp(gaps, 0).pvalue
                expected.append([column, row, len(seeds), np.mean(gaps), low, high, p])
    for line, p in zip(expected, stepped_down([line[-1] for line in expected]), strict=True):
        line[-1] = p
    found = [list(vars(each).values()) for each in comparisons.paired(table, table.spec.metrics[1], "B")]
    assert [line[:3] for line in found] == [line[:3] for line in expected]
    np.testing.assert_allclose([line[3:] for line in found], [line[3:] for line in expected], atol=1e-12)


def _cells(table: TableResult, column: str, metric: str, first: str) -> list[Cell]:
    """A column's cells, `first` before the others."""
    return [table.cell(row, column, metric) for row in sorted(LABELS, key=lambda row: row != first)]


@pytest.mark.parametrize("seed", range(3))
def test_groups_and_matches_by_loops(seed: int) -> None:  # noqa: C901 - loops, read from top to bottom
    table, groups, beside = drawn(seed), [], []
    for column in COLUMNS:
        for metric in METRICS:
            cells = {row: table.cell(row, column, metric) for row in LABELS}
            kept = {
                row: c for row, c in cells.items() if c.published and len(c.values) > 1 and not np.isnan(c.values).any()
            }
            for row, cell in kept.items():
                for other, printed in ((r, c.published) for r, c in cells.items() if c.published):
                    margin = 1.0 if metric != "macs" else printed.mean / 10
                    ours = Sample(np.mean(cell.values), np.std(cell.values, ddof=1), len(cell.values))
                    test = compare(ours, Sample(printed.mean, printed.std, 4, 0.05), margin, bound=bool(printed.bound))
                    beside.append((column, metric, row, other, test.outcome))
            for group, names in GROUPED.items():
                members = [kept[r] for r in names if r in kept and r != "D" and not kept[r].published.bound]  # type: ignore[union-attr]
                seeds = [s for s in range(6) if members and all(s in each.seeds for each in members)]
                if len(members) > 1 and len(seeds) > 1:
                    ours_at = [[each.values[each.seeds.index(s)] for s in seeds] for each in members]
                    theirs = [each.published for each in members if each.published]
                    below = sum(np.mean(o) < t.mean - 1e-9 for o, t in zip(ours_at, theirs, strict=True))
                    d = np.mean(ours_at) - np.mean([t.mean for t in theirs])
                    groups.append((column, metric, group, len(members), below, len(seeds), d))
    found = comparisons.matches(table)
    assert [(m.column, m.metric, m.row, m.published, m.outcome) for m in found] == beside
    for column in COLUMNS:
        pairs = {(row, other): [] for c, _, row, other, _ in beside if c == column}  # type: ignore[var-annotated]
        for c, _, row, other, outcome in beside:
            if c == column:
                pairs[row, other].append(outcome)
        assert comparisons.matrix(found, column) == pairs
        for metric in METRICS:
            for row in LABELS:
                passes = [m[3] for m in beside if m[:3] == (column, metric, row) and m[3] != row and m[4] == EQUIVALENT]
                assert comparisons.passes_for(found, column, metric, row) == tuple(passes)
    told = comparisons.biases(table)
    assert [(b.column, b.metric, b.group, b.rows, b.below, b.seeds) for b in told] == [each[:6] for each in groups]
    assert [b.difference for b in told] == pytest.approx([each[6] for each in groups])


def test_a_group_with_one_spread_unknown_takes_theirs_to_be_ours() -> None:
    """And what is at its published value is not below it."""
    printed = {"A": value(90.0, 0.5, 0), "B": value(91.0, None, 0)}
    (found,) = comparisons.biases(
        filled({"A": [90.0, 90.0, 90.0], "B": [90.0, 91.0, 90.0]}, printed, published_seeds=5)
    )
    half = stats.t.ppf(0.975, 2) * np.std([90, 90.5, 90], ddof=1) * math.sqrt(1 / 3 + 1 / 5) + 0.5
    assert (found.high - found.difference, found.below) == (pytest.approx(half), 1)
    table = filled({"A": A, "B": B}, JOINT_PUBLISHED)
    cells = (table.cells[0], dataclasses.replace(table.cells[1], seeds=(3, 4, 5, 6)))
    assert comparisons.biases(dataclasses.replace(table, cells=cells)) == [], "one seed that both have"
    assert comparisons.biases(filled({"A": A}, JOINT_PUBLISHED)) == []
