"""A table as Markdown: one line a row of the table, one column a column and metric."""

from __future__ import annotations

from fedbench.tables.render.grid import Layout, Text
from fedbench.tables.result import TableResult
from fedbench.tables.spec import ColumnSpec, MetricSpec
from fedbench.tables.verdict import DIFFERS, REPRODUCED

SIGNS = {REPRODUCED: "✓", DIFFERS: "✗"}


def render(table: TableResult) -> str:
    """The whole document."""
    layout, spec = Layout(table), table.spec
    pairs = [(column, metric) for column in layout.columns for metric in spec.metrics]
    lines = [["", *(_heading(table, *pair) for pair in pairs)], ["---"] * (len(pairs) + 1)]
    for row in spec.rows:
        texts = [layout.text(row, *pair) for pair in pairs]
        lines.append([row.label, *map(_cell, texts)])
    body = "".join(f"| {' | '.join(map(_escaped, line))} |\n" for line in lines)
    remarks = "".join(f"- {_escaped(remark)}\n" for remark in layout.remarks())
    return f"# {table.title}\n\n{body}\n{remarks}"


def _heading(table: TableResult, column: ColumnSpec, metric: MetricSpec) -> str:
    parts = [column.group, column.label, metric.label if len(table.spec.metrics) > 1 else ""]
    return ", ".join(part for part in parts if part)


def _cell(text: Text) -> str:
    if not text.ran:
        return f"{text.ours} (paper {text.published})" if text.published != "-" else text.ours
    marked = {1: f"**{text.ours}**", 2: f"<u>{text.ours}</u>"}.get(text.place, text.ours)
    if text.published == "-":
        return marked
    sign = SIGNS.get(text.verdict.kind, "")
    return f"{marked} (paper {text.published}; {text.difference}) {sign}".rstrip()


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
