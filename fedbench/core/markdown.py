"""A table in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(lines: Sequence[Sequence[object]]) -> str:
    """Return lines of cells, the headings first, as a table."""
    head, *rest = ([escaped(str(cell)) for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rest))


def escaped(text: str) -> str:
    """Return `text` as it may stand in Markdown, on one line and in a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")
