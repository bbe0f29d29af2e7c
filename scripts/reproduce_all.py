"""Run every published table end to end, at a reduced scale and on one data set, and write down how long each took.

    python scripts/reproduce_all.py [TABLE ...] [scale=smoke] [substitute=fashion_mnist] [KEY=VALUE ...]

Without names it runs all tables. Other arguments go to `python -m fedbench reproduce`. The times go to
RESULTS/tables/times-SCALE-SUBSTITUTE.csv. Tables whose runs are all there take seconds, so an interrupted script
goes on where it stopped.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedbench.cli.reproduce import select
from fedbench.core.errors import unknown
from fedbench.core.files import read_csv, write_csv
from fedbench.runs.environment import machine
from fedbench.tables import spec

DEFAULTS = {"scale": "smoke", "substitute": "fashion_mnist"}


def main(arguments: list[str]) -> int:
    """Run all tables; returns 1 if one of them did not end well."""
    chosen = [text for text in arguments if "=" not in text]
    arguments = [text for text in arguments if "=" in text]
    if unknown_names := sorted(set(chosen) - set(spec.names())):
        print(f"error: {unknown('table', unknown_names[0], spec.names())}", file=sys.stderr)
        return 2
    given = {text.partition("=")[0] for text in arguments}
    arguments = [*arguments, *(f"{key}={value}" for key, value in DEFAULTS.items() if key not in given)]
    request, _ = select(["table=all", *arguments])
    file = Path(request.results) / "tables" / f"times-{request.scale}-{request.substitute}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    times = {row["table"]: row for row in read_csv(file)} if file.is_file() else {}
    for name in chosen or spec.names():
        print(f"== {name}", flush=True)
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "fedbench", "reproduce", f"table={name}", *arguments], check=False
        )
        seconds = time.perf_counter() - begin
        earlier = times.get(name)
        if earlier is None or earlier["exit code"] != "0":
            seconds += float(earlier["seconds"]) if earlier else 0.0
            times[name] = {
                "table": name,
                "seconds": f"{seconds:.0f}",
                "exit code": str(done.returncode),
                "machine": machine(),
            }
        write_csv(file, list(times.values()))
    show(list(times.values()))
    return int(any(row["exit code"] != "0" for row in times.values()))


def show(times: list[dict[str, str]]) -> None:
    """Print the times as a table."""
    shown = Table(title="Every table, end to end", title_justify="left")
    for column in times[0]:
        shown.add_column(column)
    for row in times:
        shown.add_row(*row.values())
    Console().print(shown)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
