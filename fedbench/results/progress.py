"""How a run that goes on is shown: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fedbench.results.console import Output, run_table
from fedbench.results.history import PHASES, Record
from fedbench.results.observer import Labels, Observer
from fedbench.results.units import decimals, human_seconds


class Progress(Observer):
    """A progress bar on a terminal or in a notebook; elsewhere a plain line about every tenth of the rounds."""

    def __init__(
        self,
        console: Console | None = None,
        mode: str = "auto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`mode`: auto (bar on a terminal or in a notebook, else lines), bar, lines or none. `clock` counts seconds."""
        self._console = console or Output()
        live = self._console.is_terminal or self._console.is_jupyter
        self._mode = ("bar" if live else "lines") if mode == "auto" else mode
        self._clock = clock
        self._bar: Bar | None = None
        self._rounds = self._first = self._done = self._shown = self._scored = 0
        self._phase = ""
        self._accuracy = ""

    def start(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        """Show what runs."""
        self._rounds, self._began = rounds, self._clock()
        self._first = self._done = self._shown = resumed_from
        self._phase = self._accuracy = ""
        name = " ".join(part for part in (labels.method, labels.variant, f"seed {labels.seed}") if part)
        if self._mode == "lines":
            where = f"{labels.dataset}, {labels.partition}, {labels.model}"
            resumed = f", resumed after round {resumed_from}" if resumed_from else ""
            self._line(f"{name} on {where}: {rounds} rounds{resumed}")
        if self._mode == "bar":
            self._bar = _bar(self._console)
            self._bar.add_task(name, total=rounds, completed=resumed_from, accuracy="", phase="")
            self._bar.start()

    def phase(self, name: str) -> None:
        """Show the phase; as a line only for what comes before the rounds."""
        if self._mode == "lines" and name == PHASES[0] and name != self._phase:
            self._line("preparing")
        self._phase = name
        self._refresh()

    def advance(self, done: int) -> None:
        """Move on to `done` rounds."""
        self._done = done
        self._refresh()
        step = max(1, math.ceil(self._rounds / 10))
        due = done // step > self._shown // step or done == self._rounds
        if self._mode == "lines" and due and done > self._shown:
            self._shown = done
            left = (self._clock() - self._began) / max(1, done - self._first) * (self._rounds - done)
            ending = f", {human_seconds(left)} left" if done < self._rounds else ""
            self._line(f"round {done}/{self._rounds}{self._said and ', ' + self._said}{ending}")

    def record(self, record: Record) -> None:
        """Show the accuracy of the test set the run is judged by."""
        accuracy = decimals(100 * record.tallies[record.primary()].mean())
        self._accuracy, self._scored = f"acc {accuracy} %", record.round
        self._refresh()

    @property
    def _said(self) -> str:
        """The last score, with its round where that is an earlier one."""
        old = self._accuracy and self._scored < self._done
        return f"{self._accuracy} after round {self._scored}" if old else self._accuracy

    def recall(self, result: Mapping[str, Any]) -> None:
        """Say that what follows is not new, and how to make it anew."""
        if self._mode != "none":
            commit, changes, _ = str(result.get("commit") or "").partition("+changes")
            commit = commit[:7] + changes
            self._line(f"finished earlier{commit and f', at commit {commit}'}; force=true repeats it")

    def finish(self, result: Mapping[str, Any]) -> None:
        """End the bar and print the closing table."""
        self.close()
        if self._mode != "none":
            self._console.print(run_table(result))

    def close(self) -> None:
        """Give the terminal back."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _refresh(self) -> None:
        if self._bar is not None:
            task = self._bar.tasks[0].id
            self._bar.update(task, completed=self._done, accuracy=self._said, phase=self._phase)

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _bar(console: Console) -> Bar:
    return Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[phase]}", markup=False),
        console=console,
    )
