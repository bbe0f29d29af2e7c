"""Tables for people: rows by group, Markdown, LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


def grouped(pairs: Iterable[tuple[KeyT, ValueT]]) -> dict[KeyT, list[ValueT]]:
    """Return the values of each key in (key, value) `pairs`; keys and values are in the order of their appearance."""
    found: dict[KeyT, list[ValueT]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def markdown(lines: Sequence[Sequence[object]]) -> str:
    """Return lines of cells, the headings first, as a table."""
    head, *rest = ([escaped(str(cell)) for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rest))


def escaped(text: str) -> str:
    """Return `text` as it may stand in Markdown, on one line and in a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "[": "{[}",  # at the beginning of a line it would be an option of the \\ or \midrule before
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≈": r"$\approx$",
    "≠": r"$\neq$",
    "∅": r"$\emptyset$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
}


def latex(text: str) -> str:
    """Return `text` with LaTeX's special characters made printable."""
    return "".join(SPECIAL.get(character, character) for character in text)


def latex_line(cells: Sequence[str]) -> str:
    """Return a line of cells that are LaTeX already."""
    return " & ".join(cells) + r" \\"


def latex_spans(labels: Sequence[str], width: int) -> str:
    """Return a heading line over `width` columns a label, behind an empty cell; neighbours with one label share it."""
    found = [(label, width * len([*same])) for label, same in groupby(labels)]
    return latex_line(["", *(rf"\multicolumn{{{n}}}{{c}}{{{latex(label)}}}" for label, n in found)])


def latex_table(
    title: str, name: str, columns: str, head: Sequence[str], body: Sequence[str], notes: Sequence[str]
) -> str:
    """Return a table environment, captioned `title` and labelled tab:NAME.

    `columns` as of tabular; `head` and `body` are lines of it; `notes` become comments. No line is empty, which LaTeX
    would take for the end of a paragraph.
    """
    return "\n".join(
        (
            r"% needs \usepackage{booktabs} in the preamble",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex(title)}}}",
            rf"\label{{tab:{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            *head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *(f"% {' '.join(note.split())}" for note in notes if note.strip()),
            r"\end{table}",
            "",
        )
    )
