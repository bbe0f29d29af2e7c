"""What the console shows of a run: progress, the closing table."""

from __future__ import annotations

import io
import math
import re
from contextlib import closing

import numpy as np
import pytest
from rich.console import Console

from fedbench.runs import progress
from fedbench.runs.progress import FileProgress, Progress, comparison_table, result_line, run_table
from fedbench.runs.run import Reading, summarise
from tests.runs.toys import KEY, LABELS, a_history, a_record, printed


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class TestProgress:
    def run(self, console, clock, rounds=25, resumed=0, **options):
        progress = Progress(console, clock=clock, **options)
        progress.start(LABELS, rounds, resumed)
        for name in ("prepare", "train"):
            progress.phase(name)
        for done in range(resumed + 1, rounds + 1):
            clock.now += 2.0
            if done % 5 == 0:
                progress.record(a_record(done))
            progress.advance(done)
        return progress

    def test_plain_lines_about_every_tenth(self):
        stream, clock = io.StringIO(), Clock()
        self.run(Console(file=stream, width=40), clock)
        lines = stream.getvalue().splitlines()
        assert lines[0] == "fedavg seed 3 on digits, dir0.1, mlp: 25 rounds"
        assert lines[1] == "preparing"
        assert [line.split()[1].rstrip(",") for line in lines[2:]] == [
            f"{n}/25" for n in (3, 6, 9, 12, 15, 18, 21, 24, 25)
        ]
        assert lines[2] == "round 3/25, 44.0 s left"
        assert lines[3] == "round 6/25, acc 55.00 % after round 5, 38.0 s left", "nothing was scored since"
        assert lines[6] == "round 15/25, acc 55.00 %, 20.0 s left"
        assert lines[-1] == "round 25/25, acc 55.00 %"

    def test_time_left_of_a_resumed_run_counts_only_its_own_rounds(self):
        stream, clock = io.StringIO(), Clock()
        self.run(Console(file=stream), clock, resumed=20)
        lines = stream.getvalue().splitlines()
        assert "resumed after round 20" in lines[0]
        assert [line.split()[1].rstrip(",") for line in lines[2:]] == ["21/25", "24/25", "25/25"]
        assert lines[2].endswith(", 8.00 s left")

    def test_bar_on_a_terminal(self):
        stream = io.StringIO()
        console = Console(file=stream, width=120, force_terminal=True)
        progress = self.run(console, Clock())
        progress.close()
        text = stream.getvalue()
        for part in ("fedavg seed 3", "25/25", "acc 55.00 %", "train"):
            assert part in text
        assert text.rstrip("\n").endswith("\x1b[?25h")  # the cursor is back
        progress.close()

    def test_the_bar_moves_within_a_round_while_clients_train(self):
        clock = Clock()
        progress = Progress(Console(file=io.StringIO(), force_terminal=True), clock=clock)
        progress.start(LABELS, 4, 1)
        at = lambda: progress._bar.tasks[0].completed  # noqa: E731
        progress.phase("prepare")
        progress.within(0.5)
        assert at() == 1, "what prepares is no part of a round"
        progress.phase("train")
        progress.within(0.5)
        assert at() == 1.5
        progress.within(1.0)
        assert at() < 2, "the server and the scores are to come"
        progress.advance(2)
        assert at() == 2
        progress.close()

    def test_the_first_reading_of_files_is_told_now_and_then(self, capsys):
        clock = Clock()
        with closing(FileProgress("tiny_imagenet, first use: ", clock)) as shown:
            for done in range(0, 110_000, 1000):
                shown("reading images", done, 110_000)
                clock.now += 0.25
            shown("reading images", 110_000, 110_000)
        lines = capsys.readouterr().err.splitlines()
        assert lines[0] == "tiny_imagenet, first use: reading images: 0 %"
        assert lines[1] == "tiny_imagenet, first use: reading images: 36 %"
        assert lines[-1] == "tiny_imagenet, first use: reading images: 100 %"
        assert len(lines) == 4
        FileProgress().close()
        assert capsys.readouterr() == ("", "")

    def test_none_prints_nothing(self):
        stream = io.StringIO()
        progress = self.run(Console(file=stream), Clock(), mode="none")
        progress.finish(summarise(LABELS, KEY, a_history(), Reading(), partition_hash=""))
        assert stream.getvalue() == ""

    def test_closing_table(self):
        row = summarise(LABELS, KEY, a_history(), Reading(), partition_hash="", local=np.array([0.5, 0.5]))
        row = {**row, "bytes_up": 1_234_567, "seconds_train": 75.2, "variant": "[bold]", "scored": "trained"}
        text = printed(run_table(row))
        for part in (
            "fedavg",
            "[bold]",
            "seed 3",
            "last, local test set, as trained",
            "55.00",
            "58.33",
            "50.00",
            "5.00",
            "1.23 MB",
            "1 min 15 s",
        ):
            assert part in text
        assert re.search(r"clients +│ +2 │", text), "no label says it"
        stream = io.StringIO()
        Progress(Console(file=stream, width=100)).finish(row)
        assert "1.23 MB" in stream.getvalue()


def a_row(method, seed, acc, **more):
    row = {"dataset": "digits", "partition": "dir0.1", "model": "mlp", "protocol": "quick", "method": method}
    return row | {"seed": seed, "key": f"{method}{seed}{more}", "acc": acc, "acc_pooled": acc} | more


class TestComparison:
    def cells(self, rows):
        """Of each table the setting above it, and its lines."""
        shown = comparison_table(rows).renderables
        lines = [list(zip(*(column.cells for column in table.columns), strict=True)) for table in shown[1::2]]
        pairs = zip(shown[::2], lines, strict=True)
        return [each for setting, own in pairs for each in (str(setting), *([*map(str, line)] for line in own))]

    def test_mean_and_sample_deviation_over_seeds(self):
        rows = [a_row("fedavg", seed, acc, ipr=50.0, rsd=None) for seed, acc in enumerate((80.0, 82.0, 87.0))]
        assert self.cells(rows) == [
            "digits, dir0.1, mlp, quick",
            ["fedavg", "3", "83.00 ± 3.61", "50.00 ± 0.00", "-", "0.0", "-"],
        ]

    def test_pooled_accuracy_where_a_protocol_reports_it_and_what_runs_cost(self):
        rows = [
            a_row("fedavg", seed, 80.0, average="pooled", bytes_up=1_500_000, bytes_down=500_000, seconds_total=seed)
            for seed in (1, 4)
        ]
        assert self.cells(rows)[1] == ["fedavg", "2", "80.00 ± 0.00", "80.00 ± 0.00", "-", "-", "2.0", "2.5"]

    def test_pooled_accuracy_is_shown_where_clients_are_so_unequal_that_it_differs(self):
        rows = [a_row("local", 0, 62.9, acc_pooled=81.7), a_row("fedavg", 0, 63.0, acc_pooled=65.0)]
        assert [line[:4] for line in self.cells(rows)[1:]] == [
            ["fedavg", "1", "63.00", "65.00"],  # ordered by what the protocol reports
            ["local", "1", "62.90", "81.70"],
        ]
        assert self.cells(rows[1:])[1][:4] == ["fedavg", "1", "63.00", "-"], "two points are no more than two"

    def test_best_is_bold_and_ties_as_printed_share_it(self):
        rows = [
            a_row("a", 0, 90.001, ipr=10.0, rsd=3.0),
            a_row("b", 0, 90.002, ipr=20.0, rsd=1.0),
            a_row("c", 0, 80.0, ipr=None, rsd=math.nan),
        ]
        _, table = comparison_table(rows).renderables
        bold = {
            column.header: [str(cell) for cell in column.cells if getattr(cell, "style", "") == "bold"]
            for column in table.columns
        }
        assert bold["Acc %"] == ["90.00", "90.00"]
        (better,) = (cells for heading, cells in bold.items() if "IPR" in heading)
        (spread,) = (cells for heading, cells in bold.items() if "RSD" in heading)
        assert (better, spread) == (["20.00"], ["1.00"])

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
        assert [row if isinstance(row, str) else row[:3] for row in cells] == [
            "digits, dir0.1, mlp, quick",
            ["b", "1 (2 runs)", "5.50 ± 0.71"],
            ["a mu=1", "1", "3.00"],
            ["a", "1", "1.00"],
            "digits, homo, mlp, quick",
            ["a", "1", "7.00"],
        ]

    def test_no_value_is_folded_and_a_long_setting_takes_no_room(self):
        setting = "quick " + "protocol.local.epochs=5 " * 6
        rows = [
            a_row(method, seed, 90.0 + seed, ipr=50.0 * seed, rsd=10.0 + seed, protocol=setting)
            for method in ("fedavg", "fedcollab")
            for seed in range(3)
        ]
        with (console := Console(width=80)).capture() as capture:
            console.print(comparison_table(rows, 80))
        lines = [line for line in capture.get().splitlines() if "fedcollab" in line]
        assert len(lines) == 1
        assert [cell.strip() for cell in lines[0].strip("│").split("│")] == [
            "fedcollab", "3", "91.00 ± 1.00", "50.00 ± 50.00", "11.00 ± 1.00", "0.0", "-"
        ]  # fmt: skip

    def test_columns_that_do_not_fit_stand_in_a_further_table(self):
        scores = dict.fromkeys(("balanced_acc", "macro_f1", "auroc", "auprc", "nll", "ece"), 55.0)
        rows = [a_row("fedcollab", seed, 90.0 + seed, ipr=50.0, rsd=1.0, **scores) for seed in range(2)]
        with (console := Console(width=80)).capture() as capture:
            console.print(comparison_table(rows, 80))
        lines = [
            line.strip("│").split("│") for line in capture.get().splitlines() if "90.50" in line or "55.00" in line
        ]
        assert [line[0] for line in lines] == ["fedcollab", "fedcollab"]
        assert sum(cell.strip() == "55.00 ± 0.00" for line in lines for cell in line) == len(scores)

    def test_unseen_clients_are_shown_where_they_are_scored(self):
        row = a_row("fedper", 0, 50.0, acc_unseen_1=61.0, acc_unseen_5=72.0)
        result = summarise(LABELS, KEY, a_history(), Reading(), partition_hash="")
        assert re.search(r"unseen, 1 ep. % +│ +61.00 │", printed(run_table({**result, **row})))
        assert "unseen, 1 ep. % 61.00, unseen, 5 ep. % 72.00" in result_line(row)
        assert "72.00" in printed(comparison_table([row]))
        assert "unseen" not in printed(comparison_table([a_row("fedper", 0, 50.0)]))

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
