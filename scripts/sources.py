"""docs/readings.csv and docs/settings.csv as Markdown: a table a paper."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from status import VENUES, as_markdown

from fedbench.tables.text import PAPERS

DOCS = Path(__file__).resolve().parents[1] / "docs"
TITLES = {name: f"{name} ({VENUES[paper]})" for paper, name in PAPERS.items()}
OTHERS = "Methods' own papers"
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


def readings() -> str:
    """Where text and code differ, paper by paper."""
    return _sections(_read("readings.csv"), "paper", READINGS)


def settings() -> str:
    """Where each value of a preset comes from: the five papers, other papers, pixels, choices of ours."""
    return _sections(_read("settings.csv"), "source", SETTINGS)


def _read(name: str) -> list[dict[str, str]]:
    with (DOCS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _sections(rows: Sequence[Mapping[str, str]], by: str, columns: Mapping[str, str]) -> str:
    ours = {"ours": "Choices of ours", "pixels": "Pixels of the data sets"}
    titles = {**TITLES, OTHERS: OTHERS, **ours}
    parts = []
    for name, title in titles.items():
        other = name == OTHERS
        found = [row for row in rows if (row[by] not in titles if other else row[by] == name)]
        lines = [[_cell(row, column, row[by] if other else "") for column in columns] for row in found]
        if lines:
            parts.append(f"## {title}\n\n{as_markdown([list(columns.values()), *lines])}")
    return "\n".join(parts)


def _cell(row: Mapping[str, str], column: str, source: str) -> str:
    """The text of a cell; statements are code, and a method's name stands before the place in its paper."""
    text = row[column].replace("|", "\\|")
    if source and column in ("about", "place"):
        text = f"{source}: {text}"
    if column == "about" and row["key"]:
        text += f"<br>`{row['key']}`"
    if column in CODE and ("=" in text or column == "settings"):
        return "<br>".join(f"`{part}`" for part in text.split("; "))
    return text
