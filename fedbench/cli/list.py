"""`python -m fedbench list KIND`: the methods, their parameters, data sets, partitions, ... to choose from."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fedbench.cli import command


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one table, for people or as Markdown; return the exit code."""
    return command.run("python -m fedbench list", arguments, _main)


def _main(arguments: Sequence[str]) -> int:
    from fedbench.cli.catalogue import KINDS, listing

    parser = argparse.ArgumentParser(prog="python -m fedbench list", description="Show what can be chosen.")
    parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument(
        "--markdown", action="store_true", help="as Markdown, without what depends on this machine"
    )
    given = parser.parse_args(arguments)
    table = listing(given.kind)
    if given.markdown:
        sys.stdout.write(table.markdown())
        return 0
    from rich.table import Table
    from rich.text import Text

    from fedbench.runs.progress import Output

    shown = Table(title=table.title, title_justify="left")
    for column in table.columns:
        shown.add_column(column, overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(row[column]) for column in table.columns))
    console = Output() if sys.stdout.isatty() else Output(width=200)
    console.print(shown if table.rows else f"no {given.kind} yet")
    return 0
