"""A table as LaTeX (booktabs): ours with the published value below, best bold, second underlined, as the papers do."""

from __future__ import annotations

from itertools import groupby

from fedbench.tables.equivalence import DIFFERENT, EQUIVALENT, INCONCLUSIVE
from fedbench.tables.render.grid import Layout, Text
from fedbench.tables.render.remarks import remarks
from fedbench.tables.result import TableResult

SIGNS = {EQUIVALENT: r"$\approx$", DIFFERENT: r"$\neq$", INCONCLUSIVE: "?"}
SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
}


def render(table: TableResult) -> str:
    """A table environment; needs the package booktabs."""
    layout, spec = Layout(table), table.spec
    pairs = [(column, metric) for column in layout.columns for metric in spec.metrics]
    width = len(spec.metrics)
    lines = [
        r"\begin{table}",
        rf"\caption{{{escaped(table.title)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(pairs)}}}",
        r"\toprule",
    ]
    if any(column.group for column in layout.columns):
        lines.append(_spans([(column.group, width) for column in layout.columns]))
    lines.append(_spans([(column.label, width) for column in layout.columns]))
    if width > 1:
        lines.append(" & ".join(["", *(escaped(metric.label) for _, metric in pairs)]) + r" \\")
    lines.append(r"\midrule")
    for row in layout.rows:
        texts = [layout.text(row, *pair) for pair in pairs]
        lines.append(" & ".join([escaped(row.label), *map(_ours, texts)]) + r" \\")
        if spec.paper:
            lines.append(" & ".join([r"\quad published", *map(_published, texts)]) + r" \\")
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        *(f"% {remark}" for remark in remarks(layout)),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """`text` with LaTeX's special characters made printable."""
    return "".join(SPECIAL.get(character, character) for character in text)


def _spans(labels: list[tuple[str, int]]) -> str:
    """A heading line; neighbours with one label share it."""
    cells = []
    for label, same in groupby(labels, key=lambda pair: pair[0]):
        columns = sum(width for _, width in same)
        cells.append(rf"\multicolumn{{{columns}}}{{c}}{{{escaped(label)}}}")
    return " & ".join(["", *cells]) + r" \\"


def _ours(text: Text) -> str:
    if not text.ran:
        return "--"
    marked = {1: r"\textbf{%s}", 2: r"\underline{%s}"}.get(text.place, "%s")
    return marked % escaped(text.ours)


def _published(text: Text) -> str:
    if text.published == "-":
        return ""
    sign = SIGNS.get(text.verdict.kind, "") + (SPECIAL["†"] if text.verdict.exploratory else "")
    return f"{escaped(text.published)} {sign}".rstrip()
