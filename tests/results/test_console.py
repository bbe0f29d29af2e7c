"""What the console shows of many runs: the table that compares them, amounts in words."""

from __future__ import annotations

import math

import pytest

from fedbench.runs import progress
from fedbench.runs.progress import comparison_table
from tests.results.toys import printed


def a_row(method, seed, acc, **more):
    row = {"dataset": "digits", "partition": "dir0.1", "model": "mlp", "protocol": "quick", "method": method}
    return row | {"seed": seed, "key": f"{method}{seed}{more}", "acc": acc, "acc_pooled": acc} | more


class TestComparison:
    def cells(self, rows):
        table = comparison_table(rows)
        return [[str(cell) for cell in row] for row in zip(*(column.cells for column in table.columns), strict=True)]

    def test_mean_and_sample_deviation_over_seeds(self):
        rows = [a_row("fedavg", seed, acc, ipr=50.0, rsd=None) for seed, acc in enumerate((80.0, 82.0, 87.0))]
        assert self.cells(rows) == [
            ["digits, dir0.1, mlp, quick", "", "", "", "", ""],
            ["  fedavg", "3", "83.00 ± 3.61", "83.00 ± 3.61", "50.00 ± 0.00", "-"],
        ]

    def test_best_is_bold_and_ties_as_printed_share_it(self):
        rows = [
            a_row("a", 0, 90.001, ipr=10.0, rsd=3.0),
            a_row("b", 0, 90.002, ipr=20.0, rsd=1.0),
            a_row("c", 0, 80.0, ipr=None, rsd=math.nan),
        ]
        table = comparison_table(rows)
        bold = {
            column.header: [str(cell) for cell in column.cells if getattr(cell, "style", "") == "bold"]
            for column in table.columns
        }
        assert bold["Acc %"] == ["90.00", "90.00"]
        assert bold["IPR %"] == ["20.00"]
        assert bold["RSD pp"] == ["1.00"]

    def test_sections_variants_and_mixtures(self):
        rows = [
            a_row("a", 0, 1.0),
            a_row("a", 0, 1.0),  # the same run collected twice
            a_row("a", 0, 3.0, variant="mu=1"),
            a_row("b", 0, 5.0),
            a_row("b", 0, 6.0, lr=0.1),  # another configuration under the same names
            a_row("a", 0, 7.0, partition="homo"),
        ]
        cells = self.cells(rows)
        assert [row[:3] for row in cells] == [
            ["digits, dir0.1, mlp, quick", "", ""],
            ["  a", "1", "1.00"],
            ["  a mu=1", "1", "3.00"],
            ["  b", "1 (2 runs)", "5.50 ± 0.71"],
            ["digits, homo, mlp, quick", "", ""],
            ["  a", "1", "7.00"],
        ]

    def test_names_are_not_markup(self):
        assert "[red]x[/nope]" in printed(comparison_table([a_row("[red]x[/nope]", 0, 1.0)]))

    def test_nothing(self):
        assert "method" in printed(comparison_table([]))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1234567, "1.23 MB"),
        (999_999_999, "1.00 GB"),
        (3.2e15, "3200.00 TB"),
    ],
)
def test_human_bytes(value, text):
    assert progress.human_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00 s"),
        (9.999, "10.0 s"),
        (59.999, "1 min 00 s"),
        (3599.6, "1 h 00 min"),
        (7384, "2 h 03 min"),
        (math.inf, "-"),
    ],
)
def test_human_seconds(value, text):
    assert progress.human_seconds(value) == text


@pytest.mark.parametrize(("seconds", "words"), [(89, "89 s"), (90, "1.5 min"), (5400, "1.5 h"), (1_296_000, "15.0 d")])
def test_seconds_as_people_say_them(seconds: float, words: str) -> None:
    assert progress.rough_seconds(seconds) == words
