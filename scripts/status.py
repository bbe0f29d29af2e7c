"""What is filled under results/tables/, as Markdown: a line a table, and a line a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedbench.tables import store
from fedbench.tables.store import TableResult
from fedbench.tables.text import PAPERS, commands, data, judged, ran, seeds, setting, tallies, words

RESULTS = Path(__file__).resolve().parents[1] / "results"
VENUES = {
    "fedcollab": "ICML 2023",
    "fedsac": "ICML 2024",
    "pfedsim": "2023",
    "sosicfl": "2024",
    "fedrema": "ECAI 2024",
}


def as_markdown(lines: Sequence[Sequence[Any]]) -> str:
    """A table whose first line is its heading."""
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


@cache
def filled() -> Mapping[str, TableResult]:
    """The filled tables by the name of their folder."""
    return {folder.name: store.load_table(folder) for folder in store.folders(RESULTS)}


def tables() -> str:
    """Of each filled table: the setting, the data, the seeds, the verdicts, when and by which code it was made."""
    lines = [["table", "setting", "data", "seeds", "verdicts", "made, by code of, hours of runs"]]
    for name, table in filled().items():
        made = table.provenance
        commits = made.commit.split(", ")
        by = f"{len(commits)} commits" if len(commits) > 1 else commits[0][:7]
        when = f"{made.date}, {by}, {made.seconds / 3600:.1f}"
        counts = sorted({len(seeds(table, row)) for row in ran(table, "row")})
        spread = "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        lines.append(
            [
                f"[{name}](tables/{name}/table.md)",
                setting(table),
                data(table),
                spread,
                words(judged({name: table})),
                when,
            ]
        )
    return as_markdown(lines)


def command_block() -> str:
    """The commands that fill the tables, as a block of shell."""
    return "```\n" + "".join(f"{text}\n" for table in filled().values() for text in commands(table)) + "```\n"


def papers() -> str:
    """A line a paper: what of it was run, and the verdicts on the values of which it was run as published."""
    lines = [["paper", "what was run", "verdicts"]]
    found = {(each.paper, each.setting): each.values for each in tallies(judged(filled()))}
    for paper, name in PAPERS.items():
        of = [t for t in filled().values() if t.spec.paper == paper and not t.spec.varies]
        own = [t for t in of if t.provenance.is_paper_setting and not t.provenance.varied]
        runs: dict[str, list[str]] = {}
        for table in own or of:
            what = f"{setting(table)}; {data(table)}"
            runs.setdefault(what, []).append(table.spec.table.removeprefix("T"))
        text = "<br>".join(
            f"Table{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {what}" for what, numbers in runs.items()
        )
        label = f"[{name} ({VENUES[paper]})](results/{paper}.md)"
        lines.append([label, text or "nothing yet", words(found.get((paper, ""), ()))])
    return as_markdown(lines)
