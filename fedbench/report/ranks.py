"""The critical-difference diagram of a table as an image within the page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

from fedbench.plots import runs, style
from fedbench.tables import significance
from fedbench.tables.result import TableResult


@dataclass(frozen=True)
class Diagram:
    """Of the average ranks of a table's rows."""

    source: str  # data: address
    words: str  # what it shows, for those who do not see it


def diagram(table: TableResult, name: str) -> Diagram | None:
    """By the table's first metric; None where ranks have no meaning. The same table gives the same image."""
    metric = table.spec.metrics[0]
    if not table.circumstances.trained or not (found := significance.ranks(table, metric)):
        return None
    out = io.StringIO()
    with style.styled(name):
        figure = runs.critical_difference(found.ranks, found.critical, found.blocks, metric.label)
        figure.savefig(out, format="svg", metadata={"Date": None})
    order = sorted(found.ranks.items(), key=lambda pair: pair[1])
    told = ", ".join(f"{row} {rank:.1f}" for row, rank in order)
    words = f"Average ranks by {metric.label}, critical difference {found.critical:.2f}: {told}"
    return Diagram(f"data:image/svg+xml;base64,{base64.b64encode(out.getvalue().encode()).decode()}", words)
