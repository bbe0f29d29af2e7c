"""Rewrite the generated parts of README.md, docs/*.md and results/*.md: between <!-- KIND --> and <!-- /KIND -->.

KIND is one that `python -m fedbench list` knows, or one of these: `speed`, the latest benchmarks under results/bench/;
`filled`, a line for every filled table; `commands`, what fills them; `papers`, a line for every paper;
`readings` and `settings`, docs/readings.csv and docs/settings.csv.
"""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path

import sources
import status
from benchmarks import render

from fedbench.cli.list import KINDS, listing

ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("looped", "workers", "stacked")
OTHERS = {"phases": render.phases_table, "seeds": render.seeds_lines, "rivals": render.rivals_table}


def files() -> list[Path]:
    """The documents that may hold generated parts."""
    return [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "results").glob("*.md")),
    ]


def updated(text: str) -> str:
    """`text` with every generated part made anew."""

    def part(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n\n{MADE[match[1]]()}\n<!-- /{match[1]} -->"

    return re.sub(rf"<!-- ({'|'.join(MADE)}) -->.*?<!-- /\1 -->", part, text, flags=re.DOTALL)


def listed(kind: str) -> str:
    """A table of `python -m fedbench list`."""
    return listing(kind).markdown()


def speed() -> str:
    """Each engine's client-steps a second over the plain loop's, and the server's seconds, machine by machine."""
    parts = []
    for file in sorted((ROOT / "results" / "bench").glob("*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        head = f"{found['machine']} ({found['device']}), torch {found['version_torch']}, {found['date']}:\n\n"
        over = [f"{engine} / plain" for engine in ENGINES]
        rounds = [["workload", *over, "two plain loops / one", "stacked / merged", "load"]]
        for row in found["rounds"]:
            ratios = [f"{row['vs_plain'][name]:.2f}" if name in row["vs_plain"] else "-" for name in ENGINES]
            name = f"{row['workload']}: {row['what']}" + (" (fewer clients a round)" if row["quick"] else "")
            numbers = (row.get("two_processes"), row["stacking_efficiency"])
            shown = ["-" if number is None else f"{number:.2f}" for number in numbers]
            rounds.append([name, *ratios, *shown, f"{row['load_before']:.1f}"])
        parts.append(head + status.as_markdown(rounds))
        parts += ["\n".join(made(found[key])) + "\n" for key, made in OTHERS.items() if found.get(key)]
        if found.get("server"):
            columns = list(found["server"][0])
            rows = [[f"{row[column]:g}" for column in columns] for row in found["server"]]
            names = [column.replace("_", " ") for column in columns]
            parts.append(
                "The server alone, seconds a call on one thread:\n\n" + status.as_markdown([names, *rows])
            )
    return "\n".join(parts)


MADE = {
    **{kind: partial(listed, kind) for kind in KINDS},
    "speed": speed,
    "filled": status.tables,
    "commands": status.command_block,
    "papers": status.papers,
    "readings": sources.readings,
    "settings": sources.settings,
}


def main() -> int:
    """Rewrite every document of which a part has changed."""
    for file in files():
        before = file.read_text(encoding="utf-8")
        after = updated(before)
        if after != before:
            file.write_text(after, encoding="utf-8")
            print(f"{file.relative_to(ROOT)}: rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main())
