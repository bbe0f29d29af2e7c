"""What an observer is told of a run, and what the console shows of it: progress, the closing table."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

from fedbench.engine.history import Observer, Observers
from fedbench.runs.progress import Progress, run_table
from fedbench.runs.run import Reading, summarise
from tests.results.toys import KEY, LABELS, a_history, a_record, printed


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

    def test_none_prints_nothing(self):
        stream = io.StringIO()
        progress = self.run(Console(file=stream), Clock(), mode="none")
        progress.finish(summarise(LABELS, KEY, a_history(), Reading(), partition_hash=""))
        assert stream.getvalue() == ""

    def test_closing_table(self):
        row = summarise(LABELS, KEY, a_history(), Reading(), partition_hash="", local=np.array([0.5, 0.5]))
        row = {**row, "bytes_up": 1_234_567, "seconds_train": 75.2, "variant": "[bold]"}
        text = printed(run_table(row))
        for part in (
            "fedavg",
            "[bold]",
            "seed 3",
            "55.00",
            "58.33",
            "50.00",
            "5.00",
            "1.23 MB",
            "1 min 15 s",
        ):
            assert part in text
        stream = io.StringIO()
        Progress(Console(file=stream, width=100)).finish(row)
        assert "1.23 MB" in stream.getvalue()


class Recorder(Observer):
    def __init__(self, calls):
        self.calls = calls

    def start(self, labels, rounds, resumed_from):
        self.calls.append(("start", rounds, resumed_from))

    def phase(self, name):
        self.calls.append(("phase", name))

    def advance(self, done):
        self.calls.append(("advance", done))

    def record(self, record):
        self.calls.append(("record", record.round))

    def finish(self, result):
        self.calls.append(("finish", result["key"]))

    def close(self):
        self.calls.append(("close",))


def tell(observer):
    observer.start(LABELS, 3, 1)
    observer.phase("train")
    observer.advance(2)
    observer.record(a_record(2))
    observer.finish({"key": KEY})
    observer.close()


def test_observers_are_told_everything_in_order():
    calls = []
    tell(Observer())
    tell(Observers([Recorder(calls), Observer(), Recorder(calls)]))
    names = [("start", 3, 1), ("phase", "train"), ("advance", 2), ("record", 2), ("finish", KEY), ("close",)]
    assert calls == [name for name in names for _ in range(2)]
