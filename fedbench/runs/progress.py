"""The output of runs for people: numbers in words, closing tables, progress."""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich import progress as bars
from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from fedbench.config.schema import SCORES, TASKS, score_of
from fedbench.engine.history import PHASES, TIMING_PREFIX, Labels, Observer, Record
from fedbench.sample_metrics import METRICS

STALE = "‡"  # beside what other code than today's made


def amount(count: int, thing: str) -> str:
    """1, "round" -> "1 round"; 2, "round" -> "2 rounds"."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def human_bytes(count: float) -> str:
    """Decimal units, as the papers count traffic: 1234567 -> "1.23 MB"."""
    value = float(count)
    if value < 1000:
        return f"{value:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.995 or unit == "TB":
            break
    return f"{value:.2f} {unit}"


def human_seconds(seconds: float) -> str:
    """0.5 -> "0.50 s", 75 -> "1 min 15 s", 3700 -> "1 h 01 min"."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 59.995:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def rough_seconds(seconds: float) -> str:
    """75 -> "75 s", 5400 -> "1.5 h"."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def number(value: Any) -> float | None:
    """`value` as a finite float, else None (missing, null, nan)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def decimals(value: Any) -> str:
    """Two decimals; "-" for a missing value."""
    known = number(value)
    return "-" if known is None else f"{known:.2f}"


def title(labels: Labels) -> str:
    """The name of a run in a list."""
    return " ".join(part for part in (labels.method, labels.variant, f"seed {labels.seed}") if part)


def remark(parts: Iterable[str]) -> str:
    """The line below a table with marked rows, from the changed parts of the code; "" without marks."""
    if names := sorted(set(parts)):
        return f"{STALE} made by other code than today's ({', '.join(names)} changed since); stale=rerun makes it again"
    return ""


GROUP = ("dataset", "partition", "model", "protocol")  # runs are comparable when they agree on these
METHOD = ("method", "variant")  # what a line of their table is of
COLUMNS = {"acc": "Acc %", "acc_pooled": "pooled %", "ipr": "IPR %", "rsd": "RSD pp"}  # row key -> heading
COMPARED = {**COLUMNS, "ipr": "better than\nLocal % (IPR)", "rsd": "spread of\ngain pp (RSD)"}  # in a table of methods
UNSEEN = {"acc_unseen_received": "unseen %", **{f"acc_unseen_{n}": f"unseen, {n} ep. %" for n in (1, 5)}}
FURTHER = {  # if a row has them
    **{name: each.heading for name, each in METRICS.items()},
    **UNSEEN,
    "epsilon": "epsilon",
}
APART = 2.0  # points between two means of which both are shown
LOWER_IS_BETTER = ("rsd", "epsilon", *(name for name, metric in METRICS.items() if metric.lower_is_better))
COUNTED = {  # column of a row -> the mean whose clients it counts
    "clients": "Acc",
    "clients_ipr": "IPR",
    **{f"clients_{name}": metric.heading.removesuffix(" %") for name, metric in METRICS.items()},
}
ON = "clients_on_"  # the same for a set's mean
SCORED = {"received": ", as received", "trained": ", as trained", "both": ", as received and trained"}


def headings(rows: Iterable[Mapping[Any, Any]], columns: Mapping[str, str]) -> dict[str, str]:
    """Return `columns` (row key -> heading), and those of FURTHER that a row has."""
    rows = list(rows)
    if (score := score_of(rows)) != SCORES[TASKS[0]]:
        columns = {**columns, "acc": f"{score} %"}
    return {**columns, **{name: heading for name, heading in FURTHER.items() if any(name in row for row in rows)}}


def identity(row: Mapping[Any, Any]) -> tuple[str, str]:
    """Return what identifies a run: its key and the hash of its samples, which the key does not cover."""
    return str(row.get("key") or ""), str(row.get("data") or "")


def over_fewer(rows: Iterable[Mapping[Any, Any]]) -> dict[str, str]:
    """Return, for each mean over fewer than all clients in one of `rows`, the fewest, such as "18 of 20 clients"."""
    found: dict[str, tuple[float, float]] = {}
    for row in rows:
        sets = {name: str(name).removeprefix(ON) for name in row if str(name).startswith(ON)}
        sets.pop(f"{ON}{row.get('test_set')}", None)  # which Acc is on
        every = number(row.get("of_clients"))
        counted = {**COUNTED, **({"clients": score_of([row])} if row.get("task") else {})}
        for name, mean in {**counted, **sets}.items():
            count = number(row.get(name))
            if count is not None and every is not None and count < every:
                found[mean] = min(found.get(mean, (count, every)), (count, every))
    return {mean: f"{count:.0f} of {every:.0f} clients" for mean, (count, every) in found.items()}


def fewer_said(name: str, rows: Iterable[Mapping[Any, Any]]) -> str:
    """Return the line below a table on the means of `rows`, called `name`, that are over fewer than all clients."""
    means = ", ".join(f"{mean} over {count}" for mean, count in over_fewer(rows).items())
    return f"{name}: {means}" if means else ""


def result_line(result: Mapping[str, Any]) -> str:
    """One run in a line, from its result row: "fedavg, seed 0: Acc % 94.09, pooled % 94.16"."""
    name = ", ".join(str(result[key]) for key in ("method", "variant") if result.get(key))
    found = ((heading, decimals(result.get(key))) for key, heading in headings([result], COLUMNS).items())
    known = [f"{heading} {text}" for heading, text in found if text != "-"]
    return f"{name}, seed {result['seed']}: {', '.join(known)}"


def run_table(result: Mapping[str, Any]) -> Table:
    """The closing table of one run, from its result row."""
    title = ", ".join(str(result[name]) for name in ("method", "variant", *GROUP) if result.get(name))
    table = Table(title=Text(f"{title}, seed {result['seed']}"), show_header=False, title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_row("clients", str(result.get("of_clients") or result.get("clients") or "-"))
    for mean, count in over_fewer([result]).items():
        table.add_row(f"{mean} is over", count)
    for name, heading in headings([result], COLUMNS).items():
        pooled = number(result.get(f"{name}_pooled")) if name in METRICS else None
        table.add_row(heading, decimals(result.get(name)) + ("" if pooled is None else f" ({pooled:.2f} pooled)"))
    scored = SCORED.get(str(result.get("scored")), "")  # rows of earlier versions do not say it
    table.add_row("read at", f"{result['report']}, {result['test_set']} test set{scored}")
    for way in ("up", "down"):
        prepared = number(result.get(f"bytes_{way}_prepare"))
        said = f" ({human_bytes(prepared)} to prepare)" if prepared else ""
        table.add_row(f"traffic {way}", f"{human_bytes(result[f'bytes_{way}'])}{said}")
    table.add_section()
    for name, value in result.items():
        if name.startswith(TIMING_PREFIX):
            table.add_row(name.removeprefix(TIMING_PREFIX), human_seconds(value))
    return table


def comparison_table(rows: Sequence[Mapping[str, Any]], width: int = 120) -> Group:
    """Tables of many runs: one for each (data set, partition, model, protocol), a line for each method, best first.

    Cells are mean ± sample standard deviation over the runs, the best mean of a table is bold. A run that appears
    twice (see `identity`) counts once; more runs than seeds are shown as such, since they mix configurations.
    A line with a run of other code (`code_changed`) is marked: see `remark`. No cell is folded, and the setting is
    above its table, where it needs no column; for a small `width` cells move together, and columns that still do not
    fit stand in further tables. Below are the methods whose means are over fewer than all clients; a cell says over how
    many of its runs its mean is.
    """
    unique = {identity(row) if row.get("key") else index: row for index, row in enumerate(rows)}
    groups = _grouped(list(unique.values()), GROUP)
    pooled = any(row.get("average") == "pooled" or _apart(row) for row in rows)  # else it says little
    shown = headings(rows, {name: each for name, each in COMPARED.items() if pooled or name != "acc_pooled"})
    sections = {where: _lines(section, [*shown]) for where, section in groups.items()}
    titles = ["method", "seeds", *shown.values(), "MB", "s"]
    every = [titles, *(list(map(str, line)) for lines in sections.values() for line in lines)]
    wide = [max(cell_len(part) for cell in column for part in cell.split("\n")) for column in zip(*every, strict=True)]
    padding = (0, 1) if sum(wide) + 3 * len(wide) < width else (0, 0)
    blocks = [[0]]  # columns that stand side by side, each with the methods
    for i in range(1, len(titles)):
        if blocks[-1] != [0] and sum(wide[j] + 1 + 2 * padding[1] for j in (*blocks[-1], i)) >= width:
            blocks.append([0])
        blocks[-1].append(i)
    parts: list[Text | Table] = []
    for where, lines in (sections or {(): []}).items():
        parts.append(Text(", ".join(filter(None, where)), style="italic"))
        for block in blocks:
            table = Table(padding=padding)
            for i in block:
                table.add_column(titles[i], justify="right" if i else "left", min_width=wide[i], no_wrap=i > 0)
            for line in lines:
                table.add_row(*(line[i] for i in block))
            parts.append(table)
        methods = _grouped(groups.get(where, []), METHOD)
        said = (fewer_said(" ".join(filter(None, method)), runs) for method, runs in methods.items())
        parts += [Text(line) for line in said if line]
    return Group(*parts)


def _apart(row: Mapping[str, Any]) -> bool:
    """Return whether the means over clients and over samples differ by more than APART, as with unequal clients."""
    mean, pooled = number(row.get("acc")), number(row.get("acc_pooled"))
    return mean is not None and pooled is not None and abs(mean - pooled) > APART


def _lines(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[list[Text]]:
    """Return the cells of a table, a line for each method: columns `names`, megabytes, seconds; means over runs.

    The highest mean accuracy (pooled if the protocol reports that) comes first, methods without accuracy last.
    """
    methods = _grouped(rows, METHOD)
    values = {
        name: {
            method: [known for row in runs if (known := number(row.get(name))) is not None]
            for method, runs in methods.items()
        }
        for name in (*names, "seconds_total")
    }
    best = {name: _best(column, name in LOWER_IS_BETTER) for name, column in values.items()}
    accuracy = values["acc_pooled" if any(row.get("average") == "pooled" for row in rows) else "acc"]
    lines = []
    for method, runs in sorted(methods.items(), key=lambda each: -statistics.fmean(accuracy[each[0]] or [-math.inf])):
        seeds = len({row.get("seed") for row in runs})
        count = str(seeds) if seeds == len(runs) else f"{seeds} ({len(runs)} runs)"
        mark = STALE if any(row.get("code_changed") for row in runs) else ""
        texts = {name: _over(values[name][method], len(runs)) + mark * bool(values[name][method]) for name in names}
        cells = [Text(text, style="bold" if method in best[name] else "") for name, text in texts.items()]
        sent = [row.get("bytes_up", 0) + row.get("bytes_down", 0) for row in runs]
        taken = values["seconds_total"][method]
        costs = [Text(f"{statistics.fmean(sent) / 1e6:.1f}"), Text(f"{statistics.fmean(taken):.1f}" if taken else "-")]
        lines.append([Text(" ".join(filter(None, method))), Text(count), *cells, *costs])
    return lines


def _over(values: Sequence[float], runs: int) -> str:
    """Return mean ± sample deviation of the `values` of `runs`, "-" for none, and their number if some have none."""
    if not values:
        return "-"
    text = decimals(statistics.fmean(values)) + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")
    return text + (f" ({len(values)} of {runs} runs)" if len(values) < runs else "")


def _best(column: Mapping[tuple[str, ...], Sequence[float]], lower: bool) -> set[tuple[str, ...]]:
    """Methods whose mean, as printed, is the best; none if there is nothing to beat."""
    means = {key: round(statistics.fmean(known), 2) for key, known in column.items() if known}
    if len(means) < 2:
        return set()
    target = min(means.values()) if lower else max(means.values())
    return {key for key, mean in means.items() if mean == target}


def _grouped(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
    """Rows by their values of `names`, in order of first appearance."""
    from fedbench.core.tables import grouped  # which a single run does without

    return grouped((tuple(str(row.get(name) or "") for name in names), row) for row in rows)


QUIET = 10.0  # seconds between two lines on the reading of files, where there is no terminal


class FileProgress:
    """Shows on standard error how far files are read or fetched (fedbench.core.errors.Report); `about` opens a line."""

    def __init__(self, about: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._about, self._clock = about, clock
        self._console = Console(stderr=True)
        self._bar: bars.Progress | None = None
        self._tasks: dict[str, bars.TaskID] = {}
        self._said = -math.inf

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show `done` of `total` files or bytes of an activity: a bar on a terminal, else a line now and then."""
        what, now = self._about + what, self._clock()
        if self._console.is_terminal:
            if self._bar is None:
                columns = bars.BarColumn(), bars.TaskProgressColumn(), bars.TimeRemainingColumn()
                said = bars.TextColumn("{task.description}", markup=False)
                self._bar = bars.Progress(said, *columns, console=self._console)
                self._bar.start()
            if what not in self._tasks:
                self._tasks[what] = self._bar.add_task(what, total=total)
            self._bar.update(self._tasks[what], completed=done, total=total)
        elif now >= self._said + QUIET or done == total:
            self._said = now
            print(f"{what}{f': {100 * done // max(1, total)} %' if total else ''}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Release the terminal."""
        if self._bar is not None:
            self._bar.stop()


class Output(Console):
    """Standard output that may be closed early (`| head`) without stopping the run; brackets in a text are its own."""

    def __init__(self, width: int | None = None, **options: Any) -> None:
        """`width`: of the lines if standard output is no terminal."""
        super().__init__(markup=False, emoji=False, width=None if sys.stdout.isatty() else width, **options)

    def on_broken_pipe(self) -> None:
        """Discard all further output; rich would end the process."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Progress(Observer):
    """A progress bar on a terminal or in a notebook; elsewhere a plain line about every tenth of the rounds."""

    def __init__(
        self,
        console: Console | None = None,
        mode: str = "auto",
        clock: Callable[[], float] = time.monotonic,
        task: str = TASKS[0],
    ) -> None:
        """`mode`: auto (bar on a terminal or in a notebook, else lines), bar, lines or none. `clock` counts seconds."""
        self._console = console or Output()
        live = self._console.is_terminal or self._console.is_jupyter
        self._mode = ("bar" if live else "lines") if mode == "auto" else mode
        self._clock = clock
        self._bar: bars.Progress | None = None
        self._rounds = self._first = self._done = self._shown = self._scored = 0
        self._phase = ""
        self._accuracy = ""
        self._score = SCORES[task] if task != TASKS[0] else "acc"

    def start(self, labels: Labels, rounds: int, resumed_from: int) -> None:
        """Show the run that starts."""
        self._rounds, self._began = rounds, self._clock()
        self._first = self._done = self._shown = resumed_from
        self._phase = self._accuracy = ""
        name = title(labels)
        if self._mode == "lines":
            where = f"{labels.dataset}, {labels.partition}, {labels.model}"
            resumed = f", resumed after round {resumed_from}" if resumed_from else ""
            self._line(f"{name} on {where}: {amount(rounds, 'round')}{resumed}")
        if self._mode == "bar":
            self._bar = _bar(self._console)
            self._bar.add_task(name, total=rounds, completed=resumed_from, accuracy="", phase="")
            self._bar.start()

    def expect(self, line: str) -> None:
        """Print it."""
        if line and self._mode != "none":
            self._line(line)

    def phase(self, name: str) -> None:
        """Show the phase; without a bar only phases before the rounds get a line."""
        if self._mode == "lines" and name == PHASES[0] and name != self._phase:
            self._line("preparing")
        self._phase = name
        self._refresh()

    def within(self, share: float) -> None:
        """Move the bar within a round."""
        if self._bar is not None and self._phase == "train":
            self._bar.update(self._bar.tasks[0].id, completed=self._done + min(share, 0.99))

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
        """Show the accuracy on the test set that judges the run."""
        accuracy = decimals(100 * record.tallies[record.primary()].mean())
        self._accuracy, self._scored = f"{self._score} {accuracy} %", record.round
        self._refresh()

    @property
    def _said(self) -> str:
        """The last score, with its round if that is an earlier one."""
        old = self._accuracy and self._scored < self._done
        return f"{self._accuracy} after round {self._scored}" if old else self._accuracy

    def recall(self, result: Mapping[str, Any]) -> None:
        """Say that the following result is an earlier one, and how to make it anew."""
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
        """Release the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _refresh(self) -> None:
        if self._bar is not None:
            task = self._bar.tasks[0].id
            self._bar.update(task, completed=self._done, accuracy=self._said, phase=self._phase)

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _bar(console: Console) -> bars.Progress:
    return bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[accuracy]}", markup=False),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[phase]}", markup=False),
        console=console,
    )
