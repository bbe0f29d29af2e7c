"""A table for the terminal: one rich table a column of the paper's, a line a row, ours beside the published value."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text as Words

from fedbench.tables.parts import ColumnSpec
from fedbench.tables.render.grid import Layout
from fedbench.tables.render.judgement import SIGNS
from fedbench.tables.result import TableResult

BEST = {1: "bold", 2: "underline"}


def render(table: TableResult) -> Group:
    """All columns in which something ran, what the signs mean, and what is left out."""
    layout = Layout(table)
    drawn = [_column(layout, column) for column in layout.columns]
    signs = ", ".join(f"{sign} {name}" for name, sign in SIGNS.items() if sign)
    judged = f"; {signs}" if table.circumstances.faithful else ""
    order = "; bold best, underlined second" if table.circumstances.trained else ""
    told = Words(f"published value in brackets{judged}{order}")
    return Group(*drawn, told, *map(Words, filter(None, [layout.left_out])))


def _column(layout: Layout, column: ColumnSpec) -> Table:
    spec = layout.table.spec
    title = ", ".join(part for part in (layout.table.title, column.group, column.label) if part)
    drawn = Table(title=Words(title), title_justify="left")
    drawn.add_column("", no_wrap=True)
    for metric in spec.metrics:
        drawn.add_column(metric.label, justify="right")
    for row in spec.rows:
        texts = [layout.text(row, column, metric) for metric in spec.metrics]
        if not any(text.ran for text in texts):
            continue
        cells = []
        for text in texts:
            beside = "" if text.published == "-" else f" ({text.published})"
            sign = SIGNS.get(text.verdict.kind, "")
            cells.append(
                Words.assemble((text.ours, BEST.get(text.place, "")), beside, f" {sign}" if sign else "")
            )
        drawn.add_row(row.label, *cells)
    return drawn
