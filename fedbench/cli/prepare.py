"""`python -m fedbench prepare`: download, verify and prepare data sets, or show what is here.

    python -m fedbench prepare mnist cifar10              fetch what is missing, prepare it for runs
    python -m fedbench prepare cub text=true --root DIR   options of a data set follow its name
    python -m fedbench prepare --check                    the state of every data set
    python -m fedbench prepare --check cub text=true      of these; the exit code is 1 if one is missing

Downloads resume where they broke off. Without --root, data goes to the environment's FEDBENCH_DATA, else to
~/.cache/fedbench/data; runs look there too (with --root, give them dataset.root=DIR).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedbench.cli.program import report
from fedbench.core.errors import FedbenchError
from fedbench.data.prepare import parse_request, prepare, states
from fedbench.runs.progress import Output, human_seconds

STEP = 10.0  # percent between two lines where there is no terminal


class Shown:
    """Progress: a bar for each activity on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self.tasks: dict[str, TaskID] = {}
        self.printed: dict[str, float] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show `done` of `total` bytes or files of an activity (fedbench.core.errors.Report)."""
        if self.console.is_terminal:
            if what not in self.tasks:
                self.tasks[what] = self.bar.add_task(what, total=total)
            self.bar.update(self.tasks[what], completed=done, total=total)
        elif total:
            percent = 100 * done / total
            if what not in self.printed or percent >= self.printed[what] + STEP or done == total:
                self.printed[what] = percent
                self.console.print(f"{what}: {percent:.0f} %", highlight=False, soft_wrap=True)


def check(console: Console, root: str | None, configs: Sequence[dict[str, Any]]) -> int:
    """Print the state of the data sets asked for, else of all; 1 if one that was asked for is missing."""
    table = Table("data set", "state", "where, or how to get it", box=None)
    rows = states(root, configs or None)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    return int(bool(configs) and any(state == "missing" for _, state, _ in rows))


def prepare_command(arguments: Sequence[str]) -> int:
    """Prepare or show data sets; return 2 if one could not be prepared, 1 if one that was asked for is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m fedbench prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="data sets, each followed by its options key=value"
    )
    parser.add_argument("--root", help="folder to download to; runs then need dataset.root=DIR")
    parser.add_argument(
        "--check", action="store_true", help="show the state of these, or of every data set, and stop"
    )
    given = parser.parse_args(arguments)
    out, err = Output(soft_wrap=True), Console(stderr=True)
    if not given.names and not given.check:
        parser.print_help()
        return 2
    configs = parse_request(given.names)
    if given.check:
        return check(out, given.root, configs)
    return max(_prepared(config, given.root, out, err) for config in configs)


def _prepared(config: dict[str, Any], root: str | None, out: Console, err: Console) -> int:
    """Prepare one data set; the others are prepared even if it cannot be."""
    start = time.monotonic()
    try:
        shown = Shown(err)
        with shown.bar:
            line = prepare(config, root, shown)
    except FedbenchError as error:
        return report(error)
    out.print(f"{line} ({human_seconds(time.monotonic() - start)})", highlight=False)
    return 0
