"""Rewrite the generated parts of *.md, docs/*.md and results/*.md: between <!-- KIND --> and <!-- /KIND -->.

KIND is one that `python -m fedbench list` knows, or one of these: `speed`, the latest benchmarks under results/bench/;
`filled`, a line for every filled table; `commands`, what fills them; `papers`, a line for every paper;
`readings` and `settings`, docs/readings.csv and docs/settings.csv; `keys` and `code`, the changelog's part on results.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path

from benchmarks.render import markdown

from fedbench.cli.list import KINDS, listing
from fedbench.config import groups
from fedbench.config.schema import ADDED, ProtocolConfig
from fedbench.core.markdown import markdown as markdown_table
from fedbench.papers import store, summary, text
from fedbench.papers.store import TableResult
from fedbench.runs.fingerprint import SAME_NUMBERS

ROOT = Path(__file__).resolve().parents[1]
VENUES = {
    "fedcollab": "ICML 2023",
    "fedsac": "ICML 2024",
    "pfedsim": "2023",
    "sosicfl": "2024",
    "fedrema": "ECAI 2024",
}
TITLES = {name: f"{name} ({VENUES[paper]})" for paper, name in text.PAPERS.items()}
READINGS = {
    "about": "about",
    "where": "where",
    "the_text": "the text",
    "the_code": "the authors' code",
    "follows_text": "to follow the text",
    "follows_code": "to follow the code",
    "default": "default",
    "why": "why",
}
SETTINGS = {"preset": "preset", "settings": "values", "place": "from", "remark": ""}
CODE = ("follows_text", "follows_code", "default", "preset", "settings")


def listed(kind: str) -> str:
    """Return a table of `python -m fedbench list`."""
    return listing(kind).markdown()


def speed() -> str:
    """Return the page of each machine's benchmarks."""
    files = sorted((ROOT / "results" / "bench").glob("*.json"))
    return "\n".join(markdown(json.loads(file.read_text(encoding="utf-8"))) for file in files)


@cache
def filled() -> Mapping[str, TableResult]:
    """Return the filled tables by their names."""
    return {name: store.read_table(folder) for name, folder in store.table_folders(ROOT / "results").items()}


def tables() -> str:
    """Return of each filled table: setting, data, seeds, verdicts, when and by which code it was made."""
    rows = []
    for name, found in filled().items():
        made = found.provenance
        commits = made.commit.split(", ")
        by = f"{len(commits)} commits" if len(commits) > 1 else commits[0][:7]
        counts = sorted({len(own) for own in text.seeds(found).values()})
        cells = (
            f"[{name}](tables/{name}/table.md)",
            text.setting(found),
            text.data(found),
            "-".join(map(str, dict.fromkeys((counts[0], counts[-1])))),
            summary.count_words(summary.judged({name: found})),
            f"{made.date}, {by}, {made.seconds / 3600:.1f}",
        )
        rows.append(cells)
    head = ("table", "setting", "data", "seeds", "verdicts", "made, by code of, hours of runs")
    return markdown_table([head, *rows])


def commands() -> str:
    """Return the commands that fill the tables, as a block of shell."""
    lines = (line for found in filled().values() for line in text.commands(found))
    return "\n".join(["```", *lines, "```\n"])


def papers() -> str:
    """Return a line a paper: what runs at its own setting and data say of its published values."""
    counts = summary.paper_counts(summary.judged(filled()))
    rows = [[f"[{TITLES[name]}](results/{paper}.md)", *map(str, counts[paper])] for paper, name in text.PAPERS.items()]
    return markdown_table([("paper", "agree", "differ", "undecided", "not run"), *rows])


def sections(file: str, by: str, columns: Mapping[str, str]) -> str:
    """Return docs/`file` as a table a paper; `by` is the column that names the paper or another source."""
    with (ROOT / "docs" / file).open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    others = "Methods' own papers"
    ours = {"ours": "Choices of ours", "pixels": "Pixels of the data sets"}
    titles = {**TITLES, others: others, **ours}
    parts = []
    for name, title in titles.items():
        other = name == others
        found = [row for row in rows if (row[by] not in titles if other else row[by] == name)]
        lines = [[cell(row, column, row[by] if other else "") for column in columns] for row in found]
        if lines:
            parts.append(f"## {title}\n\n{markdown_table([list(columns.values()), *lines])}")
    return "\n".join(parts)


def cell(row: Mapping[str, str], column: str, source: str) -> str:
    """Return the text of a cell; statements are code, and a method's name stands before the place in its paper."""
    words = row[column]
    if source and column in ("about", "place"):
        words = f"{source}: {words}"
    if column == "about" and row["key"]:
        words += f"<br>`{row['key']}`"
    if column in CODE and ("=" in words or column == "settings"):
        return "<br>".join(f"`{part}`" for part in words.split("; "))
    return words


def keys() -> str:
    """Return the options that came after results were recorded, each with the value that leaves a key as it was."""
    found: dict[tuple[str, str], list[str]] = {}
    for group in groups.REGISTRIES:
        registry = groups.registry(group)
        for cls in dict.fromkeys(registry.get(name) for name in registry):
            for option, value in added_fields(cls, group):
                found.setdefault((option, value), []).append(cls.__name__)
    for option, value in added_fields(ProtocolConfig, "protocol"):
        found[option, value] = ["every run"]
    lines = [(f"`{option}={value}`", ", ".join(sorted(of))) for (option, value), of in sorted(found.items())]
    return markdown_table([("option and value", "of"), *lines])


def added_fields(cls: type, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of each field that is declared `added`, also of the dataclasses inside."""
    for each in dataclasses.fields(cls):
        option, inner = f"{prefix}.{each.name}", each.default_factory
        if each.metadata.get(ADDED):
            value = dataclasses.asdict(each.default) if dataclasses.is_dataclass(each.default) else each.default
            yield option, json.dumps(value).replace('"', "")
        elif dataclasses.is_dataclass(inner):
            yield from added_fields(inner, option)


def code() -> str:
    """Return what changed in code that decides numbers without changing any, the latest change first."""
    changes: dict[str, Counter[str]] = {}
    with SAME_NUMBERS.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            what = re.sub(r"; (\d+|all) runs equal those of .*$", "", line["reason"])
            changes.setdefault(what, Counter())[line["part"]] += 1
    lines = [
        (what, ", ".join(f"{part} × {count}" for part, count in sorted(counts.items())))
        for what, counts in reversed(changes.items())
    ]
    return markdown_table([("change", "hashes that changed"), *lines])


MADE = {
    **{kind: partial(listed, kind) for kind in KINDS},
    "speed": speed,
    "filled": tables,
    "commands": commands,
    "papers": papers,
    "keys": keys,
    "code": code,
    "readings": partial(sections, "readings.csv", "paper", READINGS),
    "settings": partial(sections, "settings.csv", "source", SETTINGS),
}


def updated(before: str) -> str:
    """Return the text of a document with every generated part made anew."""

    def part(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n\n{MADE[match[1]]()}\n<!-- /{match[1]} -->"

    return re.sub(rf"<!-- ({'|'.join(MADE)}) -->.*?<!-- /\1 -->", part, before, flags=re.DOTALL)


def files() -> list[Path]:
    """Return the documents that may hold generated parts."""
    return [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "results").glob("*.md")]


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
