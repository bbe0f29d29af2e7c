"""Rewrite the tables of README.md between <!-- KIND --> and <!-- /KIND -->.

KIND is one that `python -m fedbench.list` knows, or `speed`: the latest benchmarks under results/bench/.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks import render

from fedbench.cli.listing import KINDS, listing

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
ENGINES = ("looped", "workers", "stacked")
OTHERS = {"phases": render.phases_table, "seeds": render.seeds_lines, "rivals": render.rivals_table}


def updated(text: str) -> str:
    """`text` with every marked table made anew."""

    def table(match: re.Match[str]) -> str:
        kind = match[1]
        made = speed() if kind == "speed" else listing(kind).markdown()
        return f"<!-- {kind} -->\n\n{made}\n<!-- /{kind} -->"

    return re.sub(rf"<!-- ({'|'.join([*KINDS, 'speed'])}) -->.*?<!-- /\1 -->", table, text, flags=re.DOTALL)


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
        parts.append(head + _markdown(rounds))
        parts += ["\n".join(made(found[key])) + "\n" for key, made in OTHERS.items() if found.get(key)]
        if found.get("server"):
            columns = list(found["server"][0])
            rows = [[f"{row[column]:g}" for column in columns] for row in found["server"]]
            names = [column.replace("_", " ") for column in columns]
            parts.append("The server alone, seconds a call on one thread:\n\n" + _markdown([names, *rows]))
    return "\n".join(parts)


def _markdown(lines: list[list[Any]]) -> str:
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def main() -> int:
    """Rewrite the file if a table has changed."""
    before = README.read_text(encoding="utf-8")
    after = updated(before)
    if after != before:
        README.write_text(after, encoding="utf-8")
    print(f"{README.name}: {'rewritten' if after != before else 'unchanged'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
