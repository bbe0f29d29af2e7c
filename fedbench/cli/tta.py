"""`python -m fedbench tta RUN...`: rounds, seconds and bytes to an accuracy, and how many times fewer than a baseline.

As SosicFL, Section 5 and Table 5: the reference is a number, or the best accuracy of another run; the ratio is the
baseline's rounds over the run's. A run that never gets there is censored: "> T", T its last scored round.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedbench.cli import command
from fedbench.core.errors import ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one table; return the exit code."""
    return command.run("python -m fedbench tta", arguments, _main)


def _main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m fedbench tta", description=__doc__.partition("\n\n")[2])
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folders of finished runs")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--reference", type=float, metavar="PERCENT", help="the accuracy to reach")
    chosen.add_argument(
        "--baseline", type=Path, metavar="RUN", help="the run whose best accuracy is to be reached"
    )
    parser.add_argument("--set", default="local", help="local, global or common (the one global model)")
    given = parser.parse_args(arguments)
    show(given.runs, given.reference, given.baseline, given.set)
    return 0


def show(runs: Sequence[Path], percent: float | None, baseline: Path | None, test_set: str) -> None:
    """Print the table of `runs`, against `percent` or the best of `baseline`.

    Raises:
        FedbenchError: a folder holds no finished run, or was not scored on `test_set`.
    """
    from rich.table import Table

    from fedbench.runs.execution import changed_since
    from fedbench.runs.progress import Output, remark

    title, lines = rows(runs, percent, baseline, test_set)
    table = Table("run", "rounds", "seconds", "MB", "times fewer rounds", title=title, title_justify="left")
    for line in lines:
        table.add_row(*line)
    console = Output() if sys.stdout.isatty() else Output(width=140)
    console.print(table)
    folders = [*([baseline] if baseline else []), *runs]
    if said := remark(part for folder in folders for part in changed_since(folder)):
        print(said)


def rows(
    runs: Sequence[Path], percent: float | None, baseline: Path | None, test_set: str
) -> tuple[str, list[tuple[str, ...]]]:
    """The title, and a line of text for the baseline, if there is one, and for each run."""
    from fedbench.metrics import improvement
    from fedbench.runs.execution import changed_since
    from fedbench.runs.folder import RESULT
    from fedbench.runs.progress import STALE
    from fedbench.runs.run import Run
    from fedbench.tables.measures import reaches

    folders = [*([baseline] if baseline else []), *runs]
    for folder in folders:
        if not (folder / RESULT).is_file():
            raise ConfigError(f"{folder} holds no finished run: it has no {RESULT}")
    finished = [Run(folder) for folder in folders]
    reference = max(finished[0].curve(test_set)) if percent is None else percent / 100
    times = [reaches(run, reference, test_set) for run in finished]
    found: list[tuple[str, ...]] = []
    for run, time in zip(finished, times, strict=True):
        ratio = improvement(times[0], time) if baseline else None
        mark = STALE if changed_since(run.folder) else ""
        name = (
            f"{run.row['method']}, {run.row['dataset']}, {run.row['partition']}, seed {run.row['seed']}{mark}"
        )
        cells = (
            (f"> {time.horizon}", "-", "-")
            if time.rounds is None
            else (str(time.rounds), f"{time.seconds:.1f}", f"{(time.bytes or 0) / 1e6:.1f}")
        )
        found.append((name, *cells, "-" if ratio is None else f"{ratio:.1f}"))
    return f"To {100 * reference:.2f} % on the {test_set} test set", found
