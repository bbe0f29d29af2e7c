"""A table as Markdown: one line a row of the table, one column a column and metric."""

from __future__ import annotations

import math

from fedbench.tables import specificity
from fedbench.tables.parts import ColumnSpec, MetricSpec
from fedbench.tables.render.grid import Layout, Text
from fedbench.tables.render.judgement import SIGNS
from fedbench.tables.render.remarks import remarks
from fedbench.tables.result import TableResult


def render(table: TableResult) -> str:
    """The whole document."""
    layout, spec = Layout(table), table.spec
    pairs = [(column, metric) for column in layout.columns for metric in spec.metrics]
    lines = [["", *(_heading(table, *pair) for pair in pairs)], ["---"] * (len(pairs) + 1)]
    for row in layout.rows:
        texts = [layout.text(row, *pair) for pair in pairs]
        lines.append([row.label, *map(_cell, texts)])
    said = "".join(f"- {_escaped(remark)}\n" for remark in remarks(layout))
    matrices = "".join(_matrix(layout, column) for column in layout.columns)
    return f"# {table.title}\n\n{_lines(lines)}\n{said}{matrices}"


def _matrix(layout: Layout, column: ColumnSpec) -> str:
    """For which published rows each row of ours passes, a sign a metric; "" without a verdict."""
    found = specificity.matrix(layout.matches, column.label)
    rows = list(dict.fromkeys(row for row, _ in found))
    published = list(dict.fromkeys(name for _, name in found))
    if len(published) < 2:
        return ""
    lines = [["ours \\ published", *published], ["---"] * (len(published) + 1)]
    signs = {pair: "".join(SIGNS[outcome] for outcome in outcomes) for pair, outcomes in found.items()}
    lines += [[row, *(signs.get((row, name), "") for name in published)] for row in rows]
    metrics = ", ".join(metric.label for metric in layout.table.spec.metrics)
    return (
        f"\n## For which published rows does a row of ours pass? {_escaped(column.label)}\n\n"
        f"A sign for each of {metrics} that both have.\n\n{_lines(lines)}"
    )


def _lines(lines: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(map(_escaped, line))} |\n" for line in lines)


def _heading(table: TableResult, column: ColumnSpec, metric: MetricSpec) -> str:
    parts = [column.group, column.label, metric.label if len(table.spec.metrics) > 1 else ""]
    return ", ".join(part for part in parts if part)


def _cell(text: Text) -> str:
    if not text.ran:
        return f"{text.ours} (paper {text.published})" if text.published != "-" else text.ours
    marked = {1: f"**{text.ours}**", 2: f"<u>{text.ours}</u>"}.get(text.place, text.ours)
    if text.published == "-":
        return marked
    sign = SIGNS.get(text.verdict.kind, "") + ("†" if text.verdict.exploratory else "")
    needed = f" {text.verdict.seeds:.0f}" if math.isfinite(text.verdict.seeds) else ""
    return f"{marked} (paper {text.published}; {text.difference}) {sign}{needed}".rstrip()


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
