"""`python -m fedbench redraw [RESULTS]`: draw every filled table again from its files; nothing is trained."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedbench.cli import command
from fedbench.tables import store, text
from fedbench.tables.render import write
from fedbench.tables.staleness import Count


def main(arguments: Sequence[str] | None = None) -> int:
    """Redraw all tables below the folder that is given (default: results) and count verdicts; returns the exit code."""
    return command.run("python -m fedbench redraw", arguments, _main)


def _main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print("usage: python -m fedbench redraw [RESULTS]   draw every filled table again from its files")
        return 0
    results = arguments[0] if arguments else "results"
    folders = store.folders(results)
    behind = Count()
    for folder in folders:
        behind += write(folder)
        store.seal(folder)
        print(folder)
    text.write(Path(results))
    print(behind)
    if not folders:
        print(f"no filled table below {results}; python -m fedbench reproduce makes one", file=sys.stderr)
    return 0 if folders else 2
